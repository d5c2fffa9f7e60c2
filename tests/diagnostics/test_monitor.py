"""Live alarms: soon after the onset, hardly ever on healthy runs, and what is done about them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from synthetic_runs import healthy, with_explosion, write_run

from greenward.cli.main import cli
from greenward.common.errors import DiagnosticsError
from greenward.diagnostics import Monitor
from greenward.diagnostics import alerts as alerts_module
from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.findings import FINDINGS
from greenward.diagnostics.monitor import PRESETS, Alarm, LiveTests, Rule, Rules, Webhook, load_rules
from greenward.diagnostics.readers import read_run_signals


def fed(signals, rules="default", **options):
    monitor = Monitor(rules, say=lambda text: None, **options)
    count = len(next(iter(signals.values())))
    for i in range(count):
        monitor.log(i + 1, {name: float(values[i]) for name, values in signals.items()})
    return monitor


@pytest.mark.parametrize("seed", range(4))
def test_an_abrupt_fault_is_told_within_fifteen_steps(seed):
    found = fed(with_explosion(healthy(seed), factor=30)).found
    first = found[0]
    assert first.name == "gradient-explosion" and first.severity == "critical"
    assert 300 <= first.step <= 315 and abs(first.onset - 300) <= 3
    assert [alarm.name for alarm in found].count("gradient-explosion") == 1  # told once


@pytest.mark.parametrize("seeds", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_healthy_runs_raise_hardly_any_alarm(seeds):
    alarmed = [bool(fed(healthy(seed, 300, phi=phi)).found) for phi in (0.3, 0.8) for seed in range(seeds)]
    assert sum(alarmed) <= 1


@pytest.mark.parametrize(("work", "machine"), [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0)])
def test_other_work_on_the_machine_is_no_alarm(work, machine):
    slower = np.where(np.arange(120) < 60, 1.0, 3.0)
    signals = {
        "perf/tokens_per_second": 1000
        * np.exp(0.05 * np.random.default_rng(0).standard_normal(120))
        / slower,
        "time/step": slower,
        "perf/cpu_seconds": np.where(slower > 1, work, 1.0),
        "perf/probe_seconds": np.where(slower > 1, machine, 1.0) / 5000,
    }
    assert [alarm.name for alarm in fed(signals).found] == ["throughput-drop"] * (work > machine)


def test_a_number_that_is_not_finite_is_told_at_once():
    signals = healthy(1, 60)
    signals["loss"] = np.where(np.arange(60) >= 20, np.nan, 0.1)
    (alarm,) = fed(signals).found
    assert (alarm.step, alarm.name) == (21, "non-finite")
    assert alarm.text == "non-finite: loss is nan at step 21"


@pytest.mark.parametrize("seed", range(5))
def test_a_kl_below_0_is_told_while_its_noise_is_not(seed):
    noise = 0.1 * np.random.default_rng(seed).standard_normal(200)
    steps = np.arange(200)
    for logged_as in ("objective/kl", "kl"):
        assert not fed({logged_as: noise}).found
        (alarm,) = fed({logged_as: noise - np.where(steps < 100, 0, 0.05) * (steps - 100)}).found
        assert (alarm.name, alarm.severity) == ("impossible-value", "critical")
        assert 100 < alarm.step <= 150 and abs(alarm.onset - 101) <= 15
    own = {"algorithm": {"kl": {"estimator": "k3"}}}
    (alarm,) = fed({"kl": np.where(steps == 50, -0.01, 0.02)}, config=own).found
    assert alarm.step == alarm.onset == 51


def test_a_leak_is_told_while_it_grows():
    signals = {"perf/rss_mb": 900 + 3.0 * np.arange(300) + np.random.default_rng(0).random(300)}
    assert [alarm.name for alarm in fed(signals).found] == ["memory-leak"]


def test_looks_count_the_steps_that_are_logged_not_their_numbers():
    rng = np.random.default_rng(0)
    found = []
    for apart in (1, 7):  # a trainer that logs every 7th step reaches a multiple of 50 at every 50th row only
        monitor = Monitor(say=lambda text: None)
        for row, memory in enumerate(900 + 3.0 * np.arange(170) + rng.random(170), start=1):
            monitor.log(apart * row, {"perf/rss_mb": memory})
            monitor.log(apart * row, {"loss": 1.0})  # some trainers log a step in parts
        found.append([(alarm.name, alarm.step // apart) for alarm in monitor.found])
    assert found[0] == found[1] == [("memory-leak", 100)]


def test_the_levels_of_all_looks_add_up_to_alpha():
    tests = LiveTests(alpha=0.05)
    assert sum(0.05 / (k * (k + 1)) for k in range(1, 10_000)) <= 0.05
    assert tests.alpha == 0.05


def test_a_resumed_monitor_goes_on_where_it_stopped():
    signals = with_explosion(healthy(2), after=200, factor=30)
    rows = [{name: float(values[i]) for name, values in signals.items()} for i in range(260)]
    whole, first = Monitor(say=lambda text: None), Monitor(say=lambda text: None)
    for i, row in enumerate(rows):
        whole.log(i + 1, row)
        if i < 198:
            first.log(i + 1, row)
    second = Monitor(say=lambda text: None)
    second.tests.load_state_dict(json.loads(json.dumps(first.tests.state_dict())))
    for i in range(198, 260):
        second.log(i + 1, rows[i])
    assert second.found == [alarm for alarm in whole.found if alarm.step > 198]


def test_rules_have_windows_grace_and_cooldown():
    rule = Rule(id="kl", signal="kl", above=0.3, window=3, grace=10, cooldown=20)
    monitor = Monitor(Rules(rules=(rule,), tests=False), say=lambda text: None)
    steps = [
        alarm.step for step in range(1, 60) for alarm in monitor.log(step, {"kl": 0.5 if step != 11 else 0.1})
    ]
    assert steps == [14, 35, 56]


def test_the_rule_of_dead_groups_reads_counts_and_shares():
    """Our trainer counts groups, TRL logs the share without signal."""
    counts = {
        "groups/with_signal": 1.0,
        "groups/dead_all_pass": 3.0,
        "groups/dead_all_fail": 15.0,
        "groups/constant": 1.0,
    }
    for dead in (counts, {"frac_reward_zero_std": 0.95}):
        monitor = Monitor("grpo_safe", say=lambda text: None)
        alarms = [alarm for step in range(1, 40) for alarm in monitor.log(step, dead)]
        assert [alarm.name for alarm in alarms] == ["dead groups"]
    monitor = Monitor("grpo_safe", say=lambda text: None)
    assert not [1 for step in range(1, 40) if monitor.log(step, {**counts, "groups/with_signal": 10.0})]


@pytest.mark.parametrize(
    ("limits", "values", "breaks"),
    [
        ({"above": 1.0, "aggregate": "mean"}, [0, 1, 3], True),
        ({"above": 1.0}, [0, 2, 3], False),
        ({"below": 0.1, "aggregate": "range"}, [0.5, 0.55, 0.5], True),
        ({"below": 0.1, "aggregate": "max"}, [0.0, 0.2, 0.0], False),
    ],
)
def test_aggregates_of_a_window(limits, values, breaks):
    assert (Rule(id="r", signal="s", window=3, **limits).broken_by(values) is not None) is breaks


def test_names_of_other_trainers_are_understood():
    monitor = Monitor(
        Rules(rules=(Rule(id="m", signal="perf/device_memory_mb", above=1000),), tests=False),
        say=lambda t: None,
    )
    (alarm,) = monitor.log(1, {"train/gpu_mem_gb": 2.0, "text": "x"})
    assert alarm.value == 2048


class Receiver:
    """A server for webhooks, which keeps what was posted. `answer` is the status that it gives."""

    def __init__(self, answer=200, seconds=0.0):
        self.received, self.headers = [], []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                receiver.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                receiver.headers.append(dict(self.headers))
                threading.Event().wait(seconds)
                self.send_response(answer)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *arguments):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/services/SECRET"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def raised(step, severity="warning", name="gradient-explosion", text="grad_norm went from 0.5 to 20"):
    return Alarm(step, name, severity, f"{name}: {text}", step, "test", 20.0)


@pytest.fixture
def receiver():
    with Receiver() as made:
        yield made


def alerted(receiver, alarms, said=None, run="grpo-7", **options):
    """The monitor after the alarms, each of which went to the webhook."""
    webhook = Webhook(webhook=receiver if isinstance(receiver, str) else receiver.url, **options)
    monitor = Monitor(say=(said if said is not None else []).append, webhook=webhook, run=run)
    for alarm in alarms:
        monitor._act(alarm, monitor._for_all)
    return monitor


def test_chats_get_the_forms_that_they_take(receiver):
    alarm = raised(303, "critical", text="a <!channel> & @everyone")
    sentence = (
        "CRITICAL in grpo-7 at step 303: Gradient norms became many times as large: a <!channel> & @everyone. "
    ).replace("Gradient norms became many times as large", FINDINGS["gradient-explosion"].title)
    whole = f"{sentence}First: {FINDINGS['gradient-explosion'].actions[0].rstrip('.')}."
    for form in ("auto", "slack", "discord"):
        alerted(receiver, [alarm], format=form, role="42")
    alerted(receiver, [raised(1)], format="discord", role="42")
    plain, slack, discord, warning = receiver.received
    assert plain["message"] == whole and plain["run"] == "grpo-7" and plain["name"] == "gradient-explosion"
    assert (
        plain["step"] == 303
        and plain["severity"] == "critical"
        and whole.endswith(f"{plain['action'][:-1]}.")
    )
    assert slack.keys() == {"text"} and "&lt;!channel&gt; &amp; @everyone" in slack["text"]
    assert discord == {
        "content": f"<@&42> {whole}", "allowed_mentions": {"parse": [], "roles": ["42"]}
    }  # fmt: skip
    assert warning["allowed_mentions"] == {"parse": [], "roles": []} and "<@" not in warning["content"]
    assert all("urllib" not in headers["User-Agent"] for headers in receiver.headers)


@pytest.mark.parametrize(
    ("address", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://ptb.discord.com:443/api/webhooks/1/x", "discord"),
        ("https://discordapp.com/api/webhooks/1/x", "discord"),
        ("https://example.org/hooks.slack.com", "json"),
        ("https://notdiscord.com/x", "json"),
        ("https://slack.com.example.org/x", "json"),
    ],
)
def test_the_form_is_chosen_by_the_host(address, form):
    (made,) = alerted(address, [])._alerts.values()
    assert made._format == form


def test_a_long_text_fits_into_a_message_of_discord(receiver):
    for letter in ("x", "\U0001f600"):
        alerted(
            receiver,
            [raised(1, "critical", text=letter * 9000)],
            format="discord",
            role="9" * 20,
            run="r\n" * 99,
        )
    for message in receiver.received:
        assert len(message["content"].encode("utf-16-le")) // 2 <= 2000 and "\n" not in message["content"]


def test_alerts_rest_after_one_unless_an_alarm_is_critical(receiver):
    steps = [
        (1, "warning"),
        (50, "warning"),
        (60, "critical"),
        (150, "warning"),
        (160, "warning"),
        (161, "warning"),
    ]
    alerted(receiver, [raised(*one) for one in steps], cooldown=100)
    assert [one["step"] for one in receiver.received] == [1, 60, 161]
    assert ["held back" in one["message"] for one in receiver.received] == [False, True, True]
    assert "2 alarm(s) before this one were held back." in receiver.received[2]["message"]


def test_a_run_has_a_cap_of_alerts_that_is_said_when_it_is_reached(receiver):
    said = []
    alerted(receiver, [raised(step, "critical") for step in range(1, 70)], said)
    assert len(receiver.received) == 50 and "alert 50 of 50" in receiver.received[-1]["message"]
    assert not any("alert" in one["message"] for one in receiver.received[:-1])
    assert [line for line in said if "no more alerts" in line] == said and len(said) == 1


@pytest.mark.parametrize("answer", [302, 307, 403, 500])
def test_a_receiver_that_refuses_is_said_once_and_without_its_address(answer):
    said = []
    with Receiver(answer) as receiver:
        alerted(receiver, [raised(step, "critical") for step in (1, 2, 3)], said)
        assert len(receiver.received) == 3  # each is tried, and no redirect is followed
    assert len(said) == 1 and f"HTTP {answer}" in said[0] and "SECRET" not in said[0]


def test_what_cannot_be_reached_or_does_not_answer_is_said_once(monkeypatch):
    monkeypatch.setattr(alerts_module, "_REQUEST_SECONDS", 0.2)
    with Receiver(seconds=2.0) as receiver:
        for address in (
            receiver.url,
            "http://127.0.0.1:9/SECRET",
            "http://a b/SECRET",
            "https://é\x7f/SECRET",
        ):
            said = []
            alerted(address, [raised(step, "critical") for step in (1, 2)], said)
            assert len(said) == 1 and "failed" in said[0] and "SECRET" not in said[0]


def test_the_address_can_come_from_the_environment_and_is_never_shown(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_WEBHOOK", receiver.url)
    run = write_run(tmp_path / "run", with_explosion(healthy(2), factor=30))
    rules = tmp_path / "rules.yaml"
    rules.write_text("{tests: true, actions: [warn, {webhook: MY_WEBHOOK}]}")
    for chosen in (["--webhook", "MY_WEBHOOK", "--webhook-format", "slack"], ["--rules", str(rules)]):
        done = CliRunner().invoke(cli, ["monitor", str(run), "--once", *chosen])
        assert done.exit_code == 1 and "SECRET" not in done.output
    slack, plain = receiver.received[0], receiver.received[-1]
    assert slack["text"].startswith("CRITICAL in run from step 30") and plain["run"] == "run"
    assert not [path for path in run.rglob("*") if path.is_file() and "SECRET" in path.read_text()]
    monkeypatch.setenv("MY_WEBHOOK", "SECRET")
    for name in ("MY_WEBHOOK", "NO_SUCH_VARIABLE"):
        done = CliRunner().invoke(cli, ["monitor", str(run), "--once", "--webhook", name])
        assert isinstance(done.exception, DiagnosticsError) and name in str(done.exception)
        assert "SECRET" not in str(done.exception)
    for wrong in (
        ["--webhook", "ftp://x/SECRET"],
        ["--webhook", "https://x/SECRET", "--webhook-role", "@all"],
    ):
        done = CliRunner().invoke(cli, ["monitor", str(run), "--once", *wrong])
        assert done.exit_code == 2 and "expected" in done.output and "SECRET" not in done.output
    rules.write_text("{actions: [{webhook: 'ftp://x/SECRET'}]}")
    with pytest.raises(DiagnosticsError, match="webhook") as error:
        load_rules(str(rules))
    assert "SECRET" not in str(error.value)


def test_an_alarm_of_a_rule_names_the_rule_and_is_sent_once_by_two_ways(receiver):
    rule = Rule(id="kl", signal="kl", above=0.3, actions=[{"webhook": receiver.url}])
    monitor = Monitor(
        Rules(rules=(rule,), tests=False), say=lambda text: None, webhook=receiver.url, run="one"
    )
    monitor.log(4, {"kl": 0.5})
    (sent,) = receiver.received
    assert sent["message"] == (
        "WARNING in one at step 4: rule kl: kl is 0.5, above 0.3 over 1 step(s). First: greenward diagnose one."
    )


def test_actions_write_call_run_and_stop(tmp_path, receiver):
    out = tmp_path / "out"
    script = f"import os; open({str(out)!r}, 'w').write(os.environ['GREENWARD_ALARM'])"
    actions = [
        "warn",
        "stop",
        {"webhook": receiver.url},
        {"run": f'{sys.executable} -c "{script}"'},
    ]
    file = tmp_path / "rules.yaml"
    rule = {"id": "r", "signal": "kl", "above": 1.0, "actions": actions}
    file.write_text(json.dumps({"rules": [rule], "tests": False}))
    said, stops = [], []
    monitor = Monitor(file, say=said.append, alarms=tmp_path / "alarms.jsonl", stop=lambda: stops.append(1))
    monitor.log(1, {"kl": 2.0})
    assert "rule r: kl is 2" in said[0] and stops == [1] and monitor.stopped
    assert receiver.received[0]["name"] == "r"
    assert json.loads((tmp_path / "alarms.jsonl").read_text())["step"] == 1
    for _ in range(200):
        if out.exists() and out.read_text():
            break
        threading.Event().wait(0.05)
    assert json.loads(out.read_text())["name"] == "r"


def test_an_action_that_fails_does_not_end_the_training():
    rule = Rule(
        id="r",
        signal="kl",
        above=0,
        actions=[{"run": "/nowhere/nothing"}, {"webhook": "http://127.0.0.1:9/"}, {"webhook": "http://a b/"}],
    )
    said = []
    monitor = Monitor(Rules(rules=(rule,), tests=False), say=said.append, alarms="/proc/nowhere/alarms.jsonl")
    assert monitor.log(1, {"kl": 1.0})
    assert len(said) == 4 and all("failed" in line for line in said)


@pytest.mark.parametrize("kind", [np.float32, np.float64, torch.tensor, lambda x: np.array([x])])
def test_numbers_of_numpy_and_torch_are_looked_at(kind, tmp_path):
    monitor = Monitor(say=lambda text: None, alarms=tmp_path / "alarms.jsonl")
    assert not monitor.log(np.int64(1), {"loss": kind(0.5), "stopped": np.bool_(True), "text": "nan"})
    assert [alarm.name for alarm in monitor.log(np.int64(2), {"loss": kind(np.nan)})] == ["non-finite"]
    assert json.loads((tmp_path / "alarms.jsonl").read_text())["step"] == 2


def test_an_integer_too_large_for_a_float_is_infinite():
    (alarm,) = Monitor(say=lambda text: None).log(1, {"loss": -(10**400), 3: 1.0})
    assert alarm.value == -np.inf


def test_rules_that_cannot_be_right_are_refused(tmp_path):
    file = tmp_path / "rules.yaml"
    for text, expected in (
        ("rules: [{id: a, signal: kl}]", "above and below"),
        ("rules: [{id: a, signal: kl, above: 1, windw: 3}]", "windw"),
        ("rules: [{id: a, signl: kl, above: 1}]", r"signal: it is missing; .*signl: there is no such key"),
        ("rules: [", "not valid YAML"),
        ("- a", "the file: expected keys with values"),
        (
            "rules: [{id: a, signal: kl, above: 1}, {id: a, signal: loss, above: 1}]",
            "'a' occurs twice",
        ),
        ("rules: [{id: a, signal: kl, above: 1, window: 100000000000000000000}]", "window"),
        (
            "rules: [{id: a, signal: kl, above: 1, actions: [{run: ' '}]}]",
            r"actions\.0\.run\.run: String should match",
        ),
        ("rules: [{id: a, signal: kl, above: 1, actions: [{mial: x}]}]", "webhook, mail, shell or run"),
        ("rules: [{id: a, signal: kl, above: 1, actions: [explode]}]", "actions"),
    ):
        file.write_text(text)
        with pytest.raises(DiagnosticsError, match=expected):
            load_rules(str(file))
    with pytest.raises(DiagnosticsError, match="grpo_safe"):
        load_rules("nothing")
    assert all(isinstance(one, Rules) for one in PRESETS.values())


def test_the_command_reads_what_is_there_and_stops_a_process(tmp_path):
    run = write_run(tmp_path / "run", with_explosion(healthy(2), factor=30))
    done = CliRunner().invoke(cli, ["monitor", str(run), "--once", "--alarms", str(tmp_path / "a.jsonl")])
    assert done.exit_code == 1 and "gradient-explosion" in done.output
    assert (tmp_path / "a.jsonl").read_text().count("\n") >= 1
    clean = write_run(tmp_path / "clean", healthy(2))
    assert CliRunner().invoke(cli, ["monitor", str(clean), "--once"]).exit_code == 0
    rules = tmp_path / "rules.yaml"
    rules.write_text("{tests: false, rules: [{id: r, signal: kl, above: -1, actions: [stop]}]}")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "{rules: [{id: r, signal: kll, above: 1, actions: [stop]}, {id: s, signal: kl, above: 9}]}"
    )
    done = CliRunner().invoke(cli, ["monitor", str(clean), "--rules", str(wrong), "--once"])
    assert "Rule r: kll was never logged; did you mean kl" in done.output and "Rule s" not in done.output
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    arguments = ["monitor", str(clean), "--rules", str(rules), "--pid", str(process.pid), "--every", "0.1"]
    CliRunner().invoke(cli, [*arguments, "--once"])
    assert process.wait(timeout=20) == -signal.SIGTERM


def test_the_command_says_why_it_waits_and_never_signals_groups_of_processes(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"step": 1, "loss": 1}\n')
    (tmp_path / "two.jsonl").write_text('{"step": 1, "loss": 1}\n')
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"])
    threading.Thread(target=process.wait, daemon=True).start()
    watched = ["monitor", str(tmp_path), "--pid", str(process.pid), "--every", "0.1"]
    done = CliRunner().invoke(cli, watched)
    assert isinstance(done.exception, DiagnosticsError)
    assert done.stderr.count("has 2 runs") == 1
    rows = [json.dumps({"step": step, "loss": 1.0}) for step in range(1, 11)]
    (tmp_path / "attempts.jsonl").write_text("\n".join(rows * 2))
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    followed = ["monitor", str(tmp_path / "attempts.jsonl"), "--pid", str(ended.pid)]
    assert isinstance(CliRunner().invoke(cli, followed).exception, DiagnosticsError)
    assert CliRunner().invoke(cli, [*followed, "--once"]).exit_code == 0
    for pid in ("0", "-1"):
        assert CliRunner().invoke(cli, ["monitor", str(tmp_path), "--pid", pid]).exit_code == 2


def of_weight(run):
    return {one.name: one.severity for one in diagnose_run(run).findings if one.severity != "info"}


_KINDS = (
    *("gradient explosion", "not a number", "memory leak, linear", "gradient explosion, then recovery"),
    *("reward collapse", "cheating", "all groups pass", "entropy collapse", "answers cut off"),
)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (None, 11),
        *((kind, 13 + i) for i, kind in enumerate(_KINDS[:2])),
        *(pytest.param(kind, 15 + i, marks=pytest.mark.slow) for i, kind in enumerate(_KINDS[2:])),
        pytest.param(None, 12, marks=pytest.mark.slow),
    ],
)
def test_the_monitor_and_the_diagnosis_say_the_same(tmp_path, kind, seed, monkeypatch):
    """Of a log that ended: the same findings of the same weight. While it grows: what a prefix shows."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.faultbench.synthetic import HEALTHY_KIND, make

    make(kind or HEALTHY_KIND, seed, tmp_path / "run")
    rows = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    found = of_weight(tmp_path / "run")
    done = CliRunner().invoke(cli, ["monitor", str(tmp_path / "run"), "--once", "--fail-on", "warning"])
    lines = [line.split(": ")[1:3] for line in done.output.splitlines() if line.startswith("Step ")]
    assert {name: severity for severity, name in lines} == found
    assert done.exit_code == (1 if found else 0)
    monitor = Monitor(say=lambda text: None)
    for count in (len(rows) // 2, 3 * len(rows) // 4, len(rows) - 5):
        (tmp_path / "run" / "metrics.jsonl").write_text("".join(rows[:count]))
        told = len(monitor.found)
        monitor.follow(read_run_signals(tmp_path / "run"))
        confirmed = {one.name: one.severity for one in monitor.found[told:] if not one.provisional}
        assert confirmed.items() <= of_weight(tmp_path / "run").items()
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(rows))
    monitor.follow(read_run_signals(tmp_path / "run"), ended=True)
    last = {one.name: one.severity for one in monitor.found if not one.provisional}
    assert found.items() <= last.items()


def test_a_provisional_alarm_is_confirmed_by_the_diagnosis_once(tmp_path):
    said, path = [], tmp_path / "run"
    monitor = Monitor(say=said.append)
    for steps in (306, 315, 330, 360, 500):
        signals = {name: values[:steps] for name, values in with_explosion(healthy(2), factor=30).items()}
        monitor.follow(read_run_signals(write_run(path, signals)), ended=steps == 500)
    explosions = [one for one in monitor.found if one.name == "gradient-explosion"]
    assert [(one.provisional, one.source) for one in explosions] == [(True, "test"), (False, "diagnosis")]
    assert 300 <= explosions[0].step <= 315 < explosions[1].step <= 500
    assert sum("critical, provisional: gradient-explosion" in line for line in said) == 1


def test_an_early_alarm_that_was_noise_is_taken_back(tmp_path):
    """An entropy that is low for ten steps and then as before: an early alarm is no verdict."""
    said, signals = [], healthy(5, 400)
    low = (np.arange(400) >= 200) & (np.arange(400) < 210)
    signals["entropy"] = np.where(low, 0.1, 1.0) * signals["entropy"]
    monitor = Monitor(say=said.append)
    for count in (210, 400):
        run = write_run(tmp_path / "run", {name: values[:count] for name, values in signals.items()})
        monitor.follow(read_run_signals(run), ended=count == 400)
    assert [(one.name, one.provisional) for one in monitor.found] == [("entropy-collapse", True)]
    assert said[-1] == "The diagnosis of the whole log does not find: entropy-collapse."


def test_watch_shows_curves_and_the_verdict(tmp_path):
    run = write_run(tmp_path / "run", with_explosion(healthy(2)))
    done = CliRunner().invoke(cli, ["watch", str(run), "--once"])
    assert done.exit_code == 0 and "grad_norm" in done.output and "CRITICAL" in done.output


@pytest.mark.slow
def test_the_callback_of_transformers_stops_at_a_rule():
    pytest.importorskip("transformers")
    from transformers import TrainerControl, TrainerState

    monitor = Monitor(
        Rules(rules=(Rule(id="r", signal="kl", above=1, actions=("stop",)),)), say=lambda text: None
    )
    control, state = TrainerControl(), TrainerState(global_step=7)
    callback = monitor.hf_callback()
    callback.on_log(None, state, control, logs={"kl": 0.5})
    assert not control.should_training_stop
    callback.on_log(None, state, control, logs={"kl": 2.0})
    assert control.should_training_stop and monitor.found[0].step == 7
