"""`reward-health` on planted and clean runs: what is found, what is not, and what comes back."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from synthetic_runs import healthy, predictions, with_explosion, with_leak, write_run

from greenward.cli.rldk import rldk
from greenward.config.loading import load_recipe
from greenward.diagnostics.diagnose import diagnose_reward_health

FILES = {
    f"{name}.{suffix}"
    for name in (
        *("compute_profile", "calibration_report", "gradient_drift_card", "reward_card", "policy_card"),
        "values_card",
    )
    for suffix in ("md", "json")
} | {"training_metrics.jsonl", "reward_health.html", "reward_health.md", "reward_health.json"}


def command(*arguments):
    return CliRunner().invoke(rldk, ["reward-health", *map(str, arguments)])


def named(diagnosis):
    return {finding.name: finding for finding in diagnosis.findings}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    signals = with_explosion(with_leak(healthy(2)))
    return write_run(tmp_path_factory.mktemp("runs") / "run_1", signals, predictions(2, scale=4))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run_2", healthy(1), predictions(1))


def test_the_three_faults_of_the_seed_are_found_with_size_and_onset(faulty):
    diagnosis = diagnose_reward_health(faulty)
    found = named(diagnosis)
    assert {f.name for f in diagnosis.findings if f.severity == "critical"} == {
        "memory-leak",
        "poor-calibration",
        "gradient-explosion",
    }
    data = {card.name: card.data for card in diagnosis.cards}
    assert data["compute_profile"]["perf/rss_mb"]["factor"] == pytest.approx(2.1, abs=0.1)
    assert abs(found["gradient-explosion"].onset.step - 300) <= 5
    assert data["calibration_report"]["score"] < 0.7
    assert data["calibration_report"]["slope"]["slope"] == pytest.approx(0.25, abs=0.03)
    falls = [row for row in data["gradient_drift_card"]["divergence"] if row["onset"]]
    assert {row["signal"] for row in falls} == {"reward/mean", "reward/code_score"}
    assert all(row["after"] < row["before"] and abs(row["onset"]["step"] - 310) <= 5 for row in falls)


def test_each_of_three_faults_is_a_cause_of_its_own(faulty):
    diagnosis = diagnose_reward_health(faulty)
    causes = {one.finding.name: {effect.name for effect in one.consequences} for one in diagnosis.causes}
    assert {"memory-leak", "poor-calibration", "gradient-explosion"} <= causes.keys()
    critical = {one.name for one in diagnosis.findings if one.severity == "critical"}
    assert critical <= causes.keys() | set().union(*causes.values())


@pytest.mark.parametrize("first", [1, 101, 201, 301])
@pytest.mark.parametrize("seed", range(3))
def test_poor_calibration_is_dated_by_the_step_from_which_predictions_are_wrong(tmp_path, first, seed):
    predicted, passed = predictions(seed)
    scaled, _ = predictions(seed, scale=6)
    steps = np.arange(1, len(predicted) + 1)[:, None]
    run = write_run(tmp_path / "run", healthy(seed), (np.where(steps >= first, scaled, predicted), passed))
    onset = named(diagnose_reward_health(run))["poor-calibration"].onset
    # The part of the run that holds it is a quarter of the steps.
    assert onset.low <= first + 5 and onset.high >= first - 5
    assert abs(onset.step - first) <= 30


def test_healthy_runs_are_not_accused(tmp_path):
    accused = []
    for seed in range(20):
        run = write_run(
            tmp_path / str(seed), healthy(seed, 200, (0.3, 0.7, 0.9)[seed % 3]), predictions(seed, steps=40)
        )
        accused += [f.name for f in diagnose_reward_health(run).findings if f.severity == "critical"]
    assert len(accused) <= 1, accused


def test_the_command_writes_every_card_and_ends_with_1(faulty, tmp_path):
    done = command("--run", faulty, "--output-dir", tmp_path / "code_analysis")
    assert done.exit_code == 1, done.output
    assert "CRITICAL: Resident memory ×2.09 from step 1 (2 other causes found)" in done.output
    for title in ("Memory grows at every step", "The reward model's probabilities", "The gradient norm left"):
        assert title in done.output
    assert "300" in done.output
    written = {path.name for path in (tmp_path / "code_analysis").iterdir()}
    assert written == FILES | {"reliability_diagram.svg", ".greenward.json"}
    record = json.loads((tmp_path / "code_analysis/reward_health.json").read_text())
    assert record["verdict"] == "findings" and len(record["findings"]) >= 3
    for finding in record["findings"]:
        assert finding["measured"] and finding["actions"] and finding["confirm"]
        assert finding["docs"] == f"docs/findings/{finding['name']}.md"
    metrics = (tmp_path / "code_analysis/training_metrics.jsonl").read_text()
    assert metrics == (faulty / "metrics.jsonl").read_text()


def test_a_clean_run_is_healthy_and_ends_with_0(clean, tmp_path):
    done = command("--run", clean, "--output-dir", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["verdict"] == "healthy" and record["findings"] == []
    assert command("--run", clean, "--output-dir", tmp_path).exit_code == 0  # its own files are replaced


def test_old_diagrams_do_not_outlive_their_predictions(faulty, clean, tmp_path):
    command("--run", faulty, "--output-dir", tmp_path)
    bare = write_run(tmp_path / "bare", healthy(1))
    assert command("--run", bare, "--output-dir", tmp_path).exit_code == 0
    assert not (tmp_path / "reliability_diagram.svg").exists()
    assert "predictions.jsonl" in (tmp_path / "calibration_report.md").read_text()


@pytest.mark.parametrize(("scaled_until", "scale", "severity"), [(250, 3.5, "critical"), (125, 6, "warning")])
def test_a_badly_calibrated_part_is_not_hidden_by_what_is_easy_to_predict(
    tmp_path, scaled_until, scale, severity
):
    predicted, passed = predictions(4)
    predicted[:scaled_until] = predictions(4, scale=scale)[0][:scaled_until]
    predicted[250:], passed[250:] = 0.001, False  # from here on all answers fail, as foreseen
    run = write_run(tmp_path / "run", healthy(4), (predicted, passed))
    diagnosis = diagnose_reward_health(run)
    found = named(diagnosis)["poor-calibration"]
    assert found.severity == severity
    assert found.measured.startswith("The calibration score of the whole run is 0.7")
    assert "over steps 1 to 125" in found.measured


def test_fail_on_and_thresholds_decide_the_exit_code(tmp_path):
    signals = healthy(3)
    signals["completion/truncated"] = np.full(500, 0.3)
    run = write_run(tmp_path / "run", signals, predictions(3, scale=1.6))
    assert command("--run", run).exit_code == 0
    assert command("--run", run, "--fail-on", "warning").exit_code == 1
    assert command("--run", run, "--calibration-threshold", "0.95").exit_code == 1


@pytest.mark.parametrize(
    ("name", "change", "severity"),
    [
        ("constant-reward", {"reward/mean": np.full(500, 0.25)}, "critical"),
        ("dead-groups", {"groups/with_signal": np.full(500, 0.5), "groups/dead_all_fail": np.full(500, 9.0)}, "warning"),
        ("truncated-answers", {"completion/truncated": np.linspace(0, 0.9, 500)}, "warning"),
        ("value-function-useless", {"explained_variance": np.full(500, -0.4)}, "warning"),
        ("value-function-useless", {"explained_variance": np.zeros(500)}, "warning"),
        ("large-policy-steps", {"approx_kl": np.full(500, 0.08)}, "warning"),
        ("gradient-vanished", {"grad_norm": np.where(np.arange(500) % 2, 0.0, 0.5)}, "warning"),
        ("non-finite", {"grad_norm": np.where(np.arange(500) > 450, np.nan, 0.5)}, "critical"),
        ("non-finite", {"updates/non_finite": np.where(np.arange(500) == 77, 1.0, 0.0)}, "warning"),
    ],
)  # fmt: skip
def test_plain_faults_have_their_finding(tmp_path, name, change, severity):
    found = named(diagnose_reward_health(write_run(tmp_path / "run", {**healthy(4), **change})))
    assert found[name].severity == severity


def test_a_norm_that_grows_from_the_start_on_is_no_critical_finding(tmp_path):
    signals = healthy(4)
    signals["grad_norm"] = signals["grad_norm"] * np.exp(np.linspace(0, 3, 500))
    diagnosis = diagnose_reward_health(write_run(tmp_path / "run", signals))
    assert all(finding.severity != "critical" for finding in diagnosis.findings)


def test_gradual_faults_have_their_finding(tmp_path):
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 500)
    signals = healthy(5)
    signals["entropy"] = 0.4 * np.exp(-4 * t) + 0.002 * rng.random(500)
    signals["kl"] = 0.02 + np.exp(6 * t - 5) + 0.002 * rng.random(500)
    signals["reward/mean"] = 0.5 + 0.02 * rng.standard_normal(500)
    signals["reward/readability"] = 0.5 + 0.3 * rng.standard_normal(500)
    signals["reward/correctness"] = 0.5 + 0.02 * rng.standard_normal(500)
    signals["perf/tokens_per_second"] = signals["perf/tokens_per_second"] * np.where(t > 0.6, 0.6, 1)
    found = named(diagnose_reward_health(write_run(tmp_path / "run", signals)))
    assert {"entropy-collapse", "kl-runaway", "auxiliary-reward-dominates", "throughput-drop"} <= found.keys()
    assert abs(found["throughput-drop"].onset.step - 300) <= 5


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_of_the_kl_is_dated_by_the_jump(tmp_path, seed):
    signals = healthy(6 + seed)
    noise = np.random.default_rng(seed).lognormal(0, 0.5, 500)
    signals["kl"] = 0.15 * noise + 8.5 * (np.arange(500) >= 380)
    signals["reward/mean"] = 0.3 + 0.02 * np.random.default_rng(seed).standard_normal(500)
    onset = named(diagnose_reward_health(write_run(tmp_path / "run", signals)))["kl-runaway"].onset
    assert (onset.step, onset.low) == (381, 381)


@pytest.mark.parametrize("options", [{}, {"correctness": 0.8, "readability": 0.2}, {"readability": 0.2}])
def test_the_parts_of_code_score_weigh_what_the_recipe_says(tmp_path, options):
    """Variances 0.04 and 0.065, weighted by 0.8² and 0.2²: readability owns 9 % and not 62 %."""
    rng = np.random.default_rng(1)
    signals = {name: values for name, values in healthy(5).items() if not name.startswith("reward/")}
    correctness, readability = rng.standard_normal((2, 500))
    signals["reward/correctness"] = 0.5 + 0.200 * correctness / correctness.std()
    signals["reward/readability"] = 0.5 + 0.255 * readability / readability.std()
    signals["reward/mean"] = 0.8 * signals["reward/correctness"] + 0.2 * signals["reward/readability"]
    rewards = [{"name": "code_score", "weight": 1.0, "options": options}]
    diagnosis = diagnose_reward_health(write_run(tmp_path / "run", signals, rewards=rewards))
    card = next(card for card in diagnosis.cards if card.name == "reward_card")
    share = 0.2**2 * 0.255**2 / (0.2**2 * 0.255**2 + 0.8**2 * 0.2**2)
    assert card.data["variance_shares"]["reward/readability"] == pytest.approx(share, rel=1e-6)
    assert "auxiliary-reward-dominates" not in named(diagnosis)


def test_no_term_of_tests_is_auxiliary_in_a_shipped_recipe(tmp_path):
    """`all_tests` owns most of the variance of the recipe for repair: passing the tests is its purpose."""
    rng = np.random.default_rng(3)
    signals = {name: values for name, values in healthy(5).items() if not name.startswith("reward/")}
    signals["reward/all_tests"] = 0.5 + 0.1 * rng.standard_normal(500)
    signals["reward/correctness"] = 0.7 + 0.05 * rng.standard_normal(500)
    signals["reward/readability"] = 0.9 + 0.01 * rng.standard_normal(500)
    signals["reward/mean"] = 0.5 * signals["reward/all_tests"] + 0.4 * signals["reward/correctness"]
    rewards = load_recipe("ppo_code_fix").model_dump(mode="json")["rewards"]
    diagnosis = diagnose_reward_health(write_run(tmp_path / "run", signals, rewards=rewards))
    card = next(card for card in diagnosis.cards if card.name == "reward_card")
    assert card.data["variance_shares"]["reward/all_tests"] > 0.5
    assert "auxiliary-reward-dominates" not in named(diagnosis)


def test_a_part_of_code_score_that_weighs_much_is_still_named(tmp_path):
    signals = healthy(5)
    signals["reward/readability"] = 0.5 + 0.3 * np.random.default_rng(2).standard_normal(500)
    rewards = [{"name": "code_score", "options": {"correctness": 0.2, "readability": 0.8}}]
    diagnosis = diagnose_reward_health(write_run(tmp_path / "run", signals, rewards=rewards))
    assert "auxiliary-reward-dominates" in named(diagnosis)


def test_few_calibrated_predictions_raise_no_calibration_finding(tmp_path):
    found = 0
    for seed in range(20):
        run = write_run(tmp_path / str(seed), healthy(seed, 60), predictions(seed, steps=60, each=4))
        found += "poor-calibration" in named(diagnose_reward_health(run))
    assert found == 0


def test_the_time_to_out_of_memory_is_that_of_the_planted_line(tmp_path):
    run = write_run(tmp_path / "run", with_leak(healthy(6)))
    diagnosis = diagnose_reward_health(run, memory_limit_mb=4000)
    card = next(card for card in diagnosis.cards if card.name == "compute_profile")
    per_step = 920 * 1.1 / 499
    expected = (4000 - (930 + 920 * 1.1)) / per_step
    assert card.data["perf/rss_mb"]["steps_to_limit"] == pytest.approx(expected, rel=0.05)
    assert "steps, about" in named(diagnosis)["memory-leak"].measured


def test_the_memory_of_the_machine_is_the_limit_where_it_is_known(tmp_path):
    run = write_run(tmp_path / "run", healthy(6))
    (run / "provenance.json").write_text(json.dumps({"sessions": [{"memory_mb": 8000}]}))
    diagnosis = diagnose_reward_health(run)
    card = next(card for card in diagnosis.cards if card.name == "compute_profile")
    assert card.data["perf/rss_mb"]["limit_mb"] == 8000
    assert not [gap for gap in diagnosis.gaps if "out-of-memory" in gap.subject]


def test_planted_faults_in_the_config_are_not_read(faulty, tmp_path):
    with_truth = write_run(tmp_path / faulty.name, healthy(1), faults={"memory_leak": {"growth_factor": 9}})
    (with_truth / "faults.json").write_text("not even JSON")
    assert diagnose_reward_health(with_truth).verdict == "healthy"


def test_few_steps_are_never_healthy(tmp_path):
    for count in (1, 29):
        run = write_run(tmp_path / str(count), {k: v[:count] for k, v in healthy(7).items()})
        done = command("--run", run, "--output-dir", tmp_path / "out")
        assert done.exit_code == 2, done.output
        assert f"CANNOT TELL: the log has {count} row(s)" in done.output


def test_a_run_without_rewards_is_never_healthy(tmp_path):
    signals = {k: v for k, v in healthy(7).items() if not k.startswith("reward/")}
    signals["rewrad/mean"] = healthy(7)["reward/mean"]
    done = command("--run", write_run(tmp_path / "run", signals))
    assert done.exit_code == 2 and "reward/mean could not be tested" in done.output
    assert "rewrad/mean" in done.output  # the nearest name


def test_a_log_of_others_without_a_known_reward_says_so_and_names_the_likeliest(tmp_path):
    count = 40
    for names, likely in (
        (
            ("rewards/json/std", "total_secs", "rewards/json/mean", "rewards/sum of all/mean"),
            "rewards/json/mean",
        ),
        (("total_secs", "agent_7_reward_in_env", "seconds"), "agent_7_reward_in_env"),
        (("stress", "crossings"), "NAME"),
    ):
        rows = (dict.fromkeys(names, row % 7 / 7) for row in range(count))
        log = tmp_path / "log.jsonl"
        log.write_text("".join(json.dumps({"step": step, **row}) + "\n" for step, row in enumerate(rows)))
        done = command("--run", log)
        assert done.exit_code == 2
        said = " ".join(done.output.split())
        assert "no name in the log is known as that of a reward" in said
        assert f"{likely}=reward/mean" in said


def test_disorder_is_said_and_mended(clean, tmp_path):
    lines = (clean / "metrics.jsonl").read_text().splitlines(keepends=True)
    rng = np.random.default_rng(0)
    run = write_run(tmp_path / "run", healthy(1))
    evaluation = '{"step": 100, "eval/pass@1": 0.5}\n'
    mixed = [lines[i] for i in rng.permutation(500)] + lines[7:9] + [evaluation, '{"step": 501, "rew']
    (run / "metrics.jsonl").write_text("".join(mixed))
    done = command("--run", run, "--output-dir", tmp_path / "out")
    assert done.exit_code == 0, done.output
    for note in ("sorted", "2 row(s) repeat the numbers of their step", "torn"):
        assert note in done.output
    rows = [json.loads(line) for line in (tmp_path / "out/training_metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 501))
    assert rows[99]["evaluation/score"] == 0.5 and rows[99]["grad_norm"] == json.loads(lines[99])["grad_norm"]


def test_what_cannot_be_read_is_a_clear_line(tmp_path, clean):
    study = tmp_path / "study"
    for seed in (0, 1):
        write_run(study / f"seed_{seed}", healthy(seed, 40))
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "file").write_text("")
    broken = write_run(tmp_path / "broken", healthy(1, 40))
    (broken / "predictions.jsonl").write_text('{"step": 1, "predicted": ["x"], "passed": [1]}\n')
    for arguments, expected in (
        (("--run", empty), "has no metrics.jsonl"),
        (("--run", tmp_path / "nowhere"), "there is no such file or folder"),
        (("--run", study), "seed_0"),
        (("--run", broken), "predictions.jsonl, row 1"),
        (("--run", clean, "--output-dir", tmp_path / "file" / "inside"), "cannot write"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "greenward", "reward-health", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2 and expected in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_hopeless_predictions_are_said_and_not_measured(tmp_path):
    ones = np.ones((40, 4))
    run = write_run(tmp_path / "run", healthy(1), (ones * 0.9, ones))
    diagnosis = diagnose_reward_health(run)
    assert any("outcomes are 1" in gap.reason for gap in diagnosis.gaps)


def test_the_page_loads_nothing_and_escapes_everything(tmp_path):
    evil = "<script>alert(1)</script>\x1b[31m"
    signals = with_explosion({**healthy(8), f"reward/{evil}": np.where(np.arange(500) > 250, 0.0, 1.0)})
    run = write_run(tmp_path / "a<b>`|run", signals, predictions(8))
    done = command("--run", run, "--output-dir", tmp_path / "out")
    assert done.exit_code == 1 and "\x1b[31m" not in done.output
    page = (tmp_path / "out/reward_health.html").read_text()
    assert "Content-Security-Policy" in page and "<script" not in page and "a<b>" not in page
    assert not re.search(r"""(?:src|href)\s*=|url\(|@import|https?://""", page)
    card = (tmp_path / "out/reward_card.md").read_text()
    assert "<script>" not in card.replace("\\<", "")


def test_the_diagram_is_an_image_of_its_own(faulty, tmp_path):
    from xml.etree import ElementTree

    command("--run", faulty, "--output-dir", tmp_path)
    root = ElementTree.fromstring((tmp_path / "reliability_diagram.svg").read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "reliability_diagram.svg" in (tmp_path / "calibration_report.md").read_text()


def test_the_command_loads_nothing_heavy():
    code = (
        "import sys; from greenward.cli.rldk import rldk; "
        "rldk(['reward-health', '--run', 'nowhere'], standalone_mode=False)"
    )
    probe = f"try:\n    exec({code!r})\nexcept Exception:\n    pass\n"
    probe += (
        "import sys; print([m for m in ('torch', 'scipy', 'matplotlib', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_pages_of_findings_are_those_that_their_records_make():
    path = Path(__file__).parents[2] / "docs" / "make_findings.py"
    spec = importlib.util.spec_from_file_location("make_findings", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    pages = {file.stem: file.read_text(encoding="utf-8") for file in made.FOLDER.glob("*.md")}
    assert pages == made.pages()
