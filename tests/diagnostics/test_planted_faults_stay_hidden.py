"""What was planted is the truth that diagnostics are measured against: they never see it."""

import json
from pathlib import Path

import greenward.diagnostics
from greenward.diagnostics.diff import different_settings
from greenward.diagnostics.readers import read_run_signals


def write_run(folder, **config):
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"seed": 0, **config}))
    (folder / "provenance.json").write_text(json.dumps({"sessions": [{"version": "1"}]}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    return read_run_signals(folder)


def test_the_settings_of_a_faulty_and_a_clean_run_do_not_differ(tmp_path):
    off = {"memory_leak": None, "gradient_explosion": None}
    on = {"memory_leak": {"growth_factor": 2.1}, "gradient_explosion": None}
    clean = write_run(tmp_path / "clean", faults=off)
    faulty = write_run(tmp_path / "faulty", faults=on)
    before = write_run(tmp_path / "before")  # a run of a version without the section
    assert different_settings(clean, faulty) == ([], [])
    assert different_settings(before, faulty) == ([], [])


def test_no_module_of_the_diagnostics_names_the_record():
    modules = list(Path(greenward.diagnostics.__path__[0]).rglob("*.py"))
    assert modules
    assert not [file.name for file in modules if "faults.json" in file.read_text(encoding="utf-8")]
