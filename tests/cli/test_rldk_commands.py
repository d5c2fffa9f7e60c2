"""The commands that users of RLDK know, as views of the same diagnosis."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.cli.rldk_names import ALIASES, OPTIONS, VERBS

sys.path.insert(0, str(Path(__file__).parents[1] / "diagnostics"))
from synthetic_runs import healthy, predictions, with_explosion, with_leak, write_run


def command(*arguments):
    return CliRunner().invoke(rldk, list(map(str, arguments)))


def test_ingest_writes_rows_under_greenwards_names(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        "".join(json.dumps({"step": i, "data": {"actor/grad_norm": 1.0, "mine": i}}) + "\n" for i in range(3))
    )
    done = command("ingest", log, "-o", tmp_path / "out.jsonl", "--map", "mine=reward/mean")
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[2] == {"step": 2, "grad_norm": 1.0, "reward/mean": 2.0}


def test_validate_format_says_what_is_known(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("global_step,train/kl,foo\n1,0.1,2\n2,0.2,3\n")
    done = command("validate-format", log)
    assert (
        "CSV: 2 steps" in done.output
        and "kl (from train/kl): 2 values" in done.output
        and "foo" in done.output
    )


def test_cards_show_their_part_and_differences(tmp_path):
    sound, broken = (
        write_run(tmp_path / "a", healthy(2)),
        write_run(tmp_path / "b", with_explosion(healthy(2))),
    )
    done = command("card", "drift", broken)
    assert done.exit_code == 1 and "The gradient norm left its scale" in done.output
    assert command("card", "drift", sound).exit_code == 0
    assert command("card", "determinism", sound, sound).exit_code == 0
    assert "DIVERGED" in command("card", "determinism", sound, broken).output
    alone = command("card", "determinism", sound)
    assert alone.exit_code == 0 and "check-determinism" in alone.output
    assert command("kl-drift", sound).exit_code == 0
    assert command("length-bias", sound).exit_code == 0


def test_log_scan_lists_alarms(tmp_path):
    done = command("log-scan", write_run(tmp_path / "b", with_explosion(healthy(2), factor=30)))
    assert done.exit_code == 1
    assert json.loads(done.output.splitlines()[0])["name"] == "gradient-explosion"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda s: s, "NO DRIFT"),
        (lambda s: 2 * s + 1, "SAME ORDER, other size: shift"),
        (lambda s: np.random.default_rng(1).permutation(s), "ORDER CHANGED"),
    ],
)
def test_reward_drift_tells_a_scale_from_an_order(tmp_path, change, expected):
    scores = np.random.default_rng(0).standard_normal(50)
    for name, values in (("a", scores), ("b", change(scores))):
        rows = ({"prompt": f"p{i}", "score": float(v)} for i, v in enumerate(values))
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command("reward-drift", tmp_path / "a", tmp_path / "b")
    assert expected in done.output, done.output


def test_the_audit_of_the_environment_names_what_changed(tmp_path):
    run = write_run(tmp_path / "run", healthy(1, 40), seed=1)
    sessions = [{"python": "3.11", "torch": "2.9"}, {"python": "3.11", "torch": "2.10"}]
    (run / "provenance.json").write_text(json.dumps({"sessions": sessions}))
    done = command("env-audit", run)
    assert "session 2: torch 2.9 -> 2.10" in done.output
    assert command("env-audit", tmp_path).exit_code != 0


def wide_log(folder, signals, name="log.jsonl", gigabytes=True):
    """A log of one's own loop under RLDK's names, one row a step."""
    names = {
        "reward/mean": "reward_mean", "reward/code_score": "code_score", "grad_norm": "gradient_norm",
        "kl": "kl_mean", "entropy": "entropy_mean", "learning_rate": "lr", "perf/rss_mb": "memory_usage",
    }  # fmt: skip
    scale = {"perf/rss_mb": 1 / 1024 * 10 if gigabytes else 1}
    rows = (
        {
            "step": i + 1,
            **{theirs: float(signals[ours][i] * scale.get(ours, 1)) for ours, theirs in names.items()},
        }
        for i in range(len(signals["grad_norm"]))
    )
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.mark.parametrize("gigabytes", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_leak_under_the_name_memory_usage_is_found_without_a_mapping(tmp_path, gigabytes, seed):
    log = wide_log(tmp_path, with_leak(healthy(seed)), gigabytes=gigabytes)
    done = command("reward-health", "--run", log, "--json")
    record = json.loads(done.output[done.output.index("{") :])
    found = {one["name"]: one for one in record["findings"]}
    assert found["memory-leak"]["severity"] == "critical"
    growth = record["cards"]["compute_profile"]["data"]["perf/device_memory_mb"]
    assert growth["factor"] == pytest.approx(2.1, abs=0.1)
    # 900 MiB, or ten times as much in GiB.
    assert growth["at_start"] == pytest.approx(9000 if gigabytes else 900, rel=0.2)


def test_map_names_what_is_not_known_in_reward_health_evals_and_diff(tmp_path):
    signals = with_leak(healthy(1))
    renamed = {("hbm" if name == "perf/rss_mb" else name): values for name, values in signals.items()}
    run = write_run(tmp_path / "run", renamed)
    (run / "config.yaml").unlink()
    without = command("reward-health", "--run", run)
    assert "hbm" in without.output and "(--map)" in without.output and "Memory grows" not in without.output
    assert "Memory grows" in command("reward-health", "--run", run, "--map", "hbm=perf/rss_mb").output
    sound = write_run(tmp_path / "sound", {**renamed, "hbm": healthy(1)["perf/rss_mb"]})
    (sound / "config.yaml").unlink()
    both = ("--a", sound, "--b", run, "--signals", "rss")
    assert "has no signal 'rss'" in str(command("diff", *both).exception)
    done = command("diff", *both, "--map", "hbm=perf/rss_mb")
    assert done.exit_code == 1 and "perf/rss_mb" in done.output
    evals = command("evals", "--run", run, "--map", "reward/mean=mine")
    assert evals.exit_code == 2 and "cannot tell" in evals.output.lower(), evals.output
    wrong = command("evals", "--run", run, "--map", "nothing=mine")
    assert "the log has no 'nothing' to map" in str(wrong.exception)


def test_map_names_what_is_not_known_in_monitor_and_card(tmp_path):
    signals = with_explosion(healthy(2))
    renamed = {("mine" if name == "grad_norm" else name): values for name, values in signals.items()}
    run = write_run(tmp_path / "run", renamed)
    (run / "config.yaml").unlink()
    for words, said in (
        (("monitor", run, "--once"), "critical: gradient-explosion"),
        (("card", "drift", run), "The gradient norm left its scale"),
    ):
        without, mapped = command(*words), command(*words, "--field-map", '{"mine": "gradient_norm"}')
        assert said not in without.output
        assert mapped.exit_code == 1 and said in mapped.output


@pytest.mark.parametrize("option", [[], ["--suite", "quick"]])
def test_their_eval_of_a_run_is_answered_by_the_command_for_runs(option):
    done = CliRunner().invoke(cli, ["eval", "--run", "run_1", *option])
    assert done.exit_code == 2 and "`rldk evals --run RUN`" in done.output.splitlines()[-1]


@pytest.mark.parametrize("name", ["log-scan", "env-audit"])
def test_commands_of_rldk_alone_are_named_by_greenward(name):
    done = CliRunner().invoke(cli, [name, "run_1"])
    assert done.exit_code == 2 and f"`rldk {name}`" in done.output


def test_code_score_is_the_reward_where_no_reward_was_logged(tmp_path):
    log = tmp_path / "log.csv"
    log.write_text("step,code_score,gradient_norm\n" + "".join(f"{i},{i / 100},1\n" for i in range(3)))
    assert "reward/mean (from code_score)" in command("validate-format", log).output
    log.write_text("step,code_score,reward_mean\n" + "".join(f"{i},{i / 100},1\n" for i in range(3)))
    assert "reward/code_score (from code_score)" in command("validate-format", log).output


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    broken = write_run(folder / "b", with_explosion(healthy(2)), predictions(2, scale=2))
    return write_run(folder / "a", healthy(2)), broken


@pytest.mark.parametrize("program", [cli, rldk], ids=["greenward", "rldk"])
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("diff -a {a} -b {b} --signals gradient_norm", "diff --a {a} --b {b} --signals gradient_norm"),
        ("diff --a {a} --b {b} -o {out}", "diff --a {a} --b {b} --output-dir {out}"),
        ("reward-health --run {b} -o {out}", "reward-health --run {b} --output-dir {out}"),
        (
            "reward-health --run {b} --threshold-calibration 0.4",
            "reward-health --run {b} --calibration-threshold 0.4",
        ),
        ("reward-health --run {b} --threshold_calibration=0.4 --gate", "reward-health --run {b} --calibration-threshold 0.4"),
        ("reward-health --run {b} --threshold-drift 0.1 --preset trl", "reward-health --run {b}"),
        ("evals -s code --run {b} -o {out} --gate", "evals --suite code --run {b} --output-dir {out}"),
        ("evals evaluate {b} --min-samples 3", "evals --run {b}"),
    ],
)  # fmt: skip
def test_options_of_rldk_are_read(two, tmp_path, program, theirs, ours):
    results = []
    for number, text in enumerate((theirs, ours)):
        out = tmp_path / str(number)
        arguments = text.format(a=two[0], b=two[1], out=out).split()
        done = CliRunner().invoke(program, arguments)
        files = sorted(file.name for file in out.glob("*")) if out.exists() else []
        results.append((done.exit_code, done.stdout, files))
    assert results[0] == results[1]
    assert results[0][0] in (0, 1, 2) and results[0][1]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("ingest {log} -a custom_jsonl --validation-mode strict --validate -v", ["ingest", "{log}"]),
        ("ingest {log} --adapter trl", ["ingest", "{log}"]),
        ("replay --run {log} --max-steps 5 -o out", ["replay", "{log}", "--steps", "5", "--output", "out"]),
        ("bisect --good a --bad {log}", ["bisect", "--good", "a", "{log}"]),
        ("check-determinism -c x -m loss,kl --runs 2 --stride 50 --gate",
         ["check-determinism", "-c", "x", "--compare", "loss,kl", "--replicas", "2"]),
        ("determinism --cmd x --compare loss", ["check-determinism", "--cmd", "x", "--compare", "loss"]),
        ("monitor --stream {log} --rules r --alerts a.jsonl --retries 2",
         ["monitor", "{log}", "--rules", "r", "--alarms", "a.jsonl"]),
        ("forensics kl-drift {log} --kl-col mine", ["kl-drift", "{log}", "--map", "mine=kl"]),
        ("forensics diff-ckpt a b", ["diff-ckpt", "a", "b"]),
        ("reward length-bias --run-path {log}", ["length-bias", "{log}"]),
        ("reward-health --run x --reward-col r", ["reward-health", "--run", "x", "--map", "r=reward/mean"]),
        ("card drift {log} -o cards", ["card", "drift", "{log}"]),
        ("diagnose {log} -- -o", ["diagnose", "{log}", "--", "-o"]),
    ],
)  # fmt: skip
def test_arguments_of_rldk_become_ours(arguments, expected):
    from greenward.cli.rldk_names import translated

    name, *rest = arguments.split()
    found, changed = translated(name, rest, rldk.commands)
    assert [found, *changed] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"my_reward": "reward_mean"}', ["--map", "my_reward=reward/mean"]),
        ('{"reward_mean": "my_reward"}', ["--map", "my_reward=reward/mean"]),
        ('{"my_step": "step", "kl_mean": "d"}', ["--map", "d=kl"]),
    ],
)
def test_a_field_map_is_read_in_both_directions(text, expected):
    from greenward.cli.rldk_names import translated

    assert translated("ingest", ["log", "--field-map", text], rldk.commands)[1] == ["log", *expected]


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1}', "[" * 100_000, "7"])
def test_a_field_map_that_is_none_is_a_clear_error(tmp_path, text):
    done = command("ingest", tmp_path, "--field-map", text)
    assert done.exit_code == 2 and "--field-map: expected JSON such as" in done.output


@pytest.mark.parametrize("words", [*VERBS, ("forensics", "unknown"), ("reward", "reward-health", "run")])
def test_verbs_that_there_are_not_are_answered_by_the_command_that_does_the_job(words):
    done = command(*words)
    assert done.exit_code == 2
    last = done.output.splitlines()[-1]
    assert last.startswith("Error: there is no") and "`" in last
    commands = [part.split()[0:2] for part in last.split("`")[1::2]]
    for program, name, *_ in (part for part in commands if len(part) > 1):
        group = {"rldk": rldk, "greenward": cli}[program]
        assert name.startswith("--") or name in group.commands, last


def test_every_option_of_the_table_is_one_of_a_command_here():
    for name, table in OPTIONS.items():
        command_here = {**cli.commands, **rldk.commands}[name]
        own = {text for option in command_here.params for text in option.opts}
        for theirs, row in table.items():
            assert row.ours in (None, "") or row.ours in own, (name, theirs)
            assert theirs not in own, (name, theirs)
            assert row.why or row.ours is not None
    assert {first for first, *_ in ALIASES.values()} <= rldk.commands.keys()


@pytest.mark.parametrize("group", [cli, rldk], ids=["greenward", "rldk"])
def test_commands_that_there_are_keep_their_arguments(group):
    from greenward.cli.rldk_names import translated

    for name in group.commands:
        for arguments in ([], ["--help"], ["run"], ["CONFIG", "key=value", "--output", "x"]):
            assert translated(name, arguments, group.commands) == (name, arguments)


@pytest.mark.parametrize("options", ["--cmd pytest", "--metric loss --cmp >0.2"])
def test_bisecting_commits_is_answered_by_what_does_it(options):
    done = command("bisect", "--good", "v1", "--bad", "HEAD", *options.split())
    assert done.exit_code == 2 and "git bisect run" in done.output


def test_only_the_named_signals_are_compared_for_determinism(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import json, os, sys\n"
        "rows = [{'step': i, 'loss': 1.0, 'noise': int.from_bytes(os.urandom(4), 'big')} for i in range(5)]\n"
        "open(sys.argv[1] + '/log.jsonl', 'w').write(''.join(json.dumps(row) + chr(10) for row in rows))\n"
    )
    run = ("check-determinism", "-c", f"{sys.executable} {script} {{out}}", "--runs", "2")
    assert command(*run).exit_code == 1
    assert command(*run, "-m", "loss").exit_code == 0
    done = command(*run, "-m", "lost")
    assert done.exit_code == 1 and "no signal 'lost'" in str(done.exception)
