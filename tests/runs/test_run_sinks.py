"""Mirrors: what they are given arrives; what they do wrong never stops a run."""

from __future__ import annotations

import os
import sys
import types
import warnings

import pytest

from greenward.errors import ConfigError
from greenward.runs.trackers import FailSafeSink, evaluation_values, make_sinks, tracker_name

ONLINE = {"wandb": {"project": "p", "entity": None, "mode": "online"}}


@pytest.fixture
def fake_wandb(monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values))

        def finish(self):
            calls.append("finish")

    def init(**options):
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    monkeypatch.setenv("WANDB_SILENT", "")
    monkeypatch.delenv("WANDB_SILENT")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    return calls


def test_tensorboard_reads_back_what_was_logged(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (sink,) = make_sinks({"tensorboard": True, "wandb": None}, tmp_path, {})
    for step in range(3):
        sink.log(step, {"loss": 0.5 * step, "note": "text"})
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(0, 0.0), (1, 0.5), (2, 1.0)]


@pytest.mark.parametrize(
    ("package", "tracking"),
    [("tensorboard", {"tensorboard": True}), ("wandb", {"wandb": {"project": "p"}})],
)
def test_a_missing_package_is_a_config_error_that_names_the_extra(tmp_path, monkeypatch, package, tracking):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"pip install 'greenward\[{package}\]'"):
        make_sinks(tracking, tmp_path, {})


def test_wandb_is_offline_and_silent_unless_asked(tmp_path, fake_wandb, monkeypatch):
    (sink,) = make_sinks({"wandb": {"project": "p", "entity": None}}, tmp_path / "run", {"seed": 3})
    sink.log(4, {"loss": 1.0, "text": "x"})
    sink.close()
    options = fake_wandb[0]
    assert options["mode"] == "offline" and options["config"] == {"seed": 3} and options["name"] == "run"
    assert fake_wandb[1:] == [(4, {"loss": 1.0}), "finish"]
    assert os.environ["WANDB_SILENT"] == "true"


def test_wandb_online_without_a_key_is_refused_instead_of_asking(tmp_path, fake_wandb, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="WANDB_API_KEY"):
        make_sinks(ONLINE, tmp_path, {})
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert len(make_sinks(ONLINE, tmp_path, {})) == 1


def test_a_failing_mirror_warns_once_and_the_run_goes_on():
    class Broken:
        calls = 0

        def log(self, step, values):
            Broken.calls += 1
            raise ConnectionError("server is gone")

        def close(self):
            raise ConnectionError("server is gone")

    sink = FailSafeSink("Broken", Broken)
    with pytest.warns(UserWarning, match="server is gone"):
        sink.log(1, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sink.log(2, {})
        sink.close()
    assert Broken.calls == 1


def test_a_mirror_that_cannot_start_is_left_out():
    def fail():
        raise ConnectionError("no route")

    with pytest.warns(UserWarning, match="no route"):
        sink = FailSafeSink("Gone", fail)
    sink.log(1, {"loss": 1.0})
    sink.close()


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("mbpp", "mbpp"),
        ("mbpp:test", "mbpp_test"),
        ("humaneval", "humaneval"),
        ("humaneval+", "humaneval_plus"),
        ("humaneval+mini", "humaneval_plus_mini"),
        ("../../etc/passwd", "etc_passwd"),
        ("…", "suite"),
    ],
)
def test_suites_have_names_that_trackers_and_file_systems_take(suite, name):
    assert tracker_name(suite) == name


def test_trackers_get_pass_rate_with_interval_and_problems_passed():
    metric = {"value": 0.4, "low": 0.1, "high": 0.8}
    record = {"suite": "mbpp", "metrics": {"pass@1": metric}, "problems_passed": 2}
    assert evaluation_values(record) == {
        "mbpp_eval/pass@1": 0.4,
        "mbpp_eval/pass@1_low": 0.1,
        "mbpp_eval/pass@1_high": 0.8,
        "mbpp_eval/pass_rate": 0.4,
        "mbpp_eval/pass_rate_low": 0.1,
        "mbpp_eval/pass_rate_high": 0.8,
        "mbpp_eval/problems_passed": 2,
    }
