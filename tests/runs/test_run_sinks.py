"""Mirrors: what they are given arrives; what they do wrong never stops a run."""

from __future__ import annotations

import os
import socket
import sys
import threading
import types
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from greenward.cli.main import main
from greenward.common.errors import ConfigError
from greenward.common.text import load_keys
from greenward.runs import trackers
from greenward.runs.directory import RunDirectory
from greenward.runs.trackers import (
    FailSafeSink,
    MetricSink,
    check_trackers,
    evaluation_values,
    make_sinks,
    sample_rows,
    tracker_name,
)

ONLINE = {"wandb": {"project": "p", "entity": None, "mode": "online"}}


@pytest.fixture
def fake_wandb(monkeypatch):
    calls = []

    class Run:
        def log(self, values, step):
            calls.append((step, values))

        def alert(self, title, text):
            calls.append((title, text))

        def finish(self):
            calls.append("finish")

    def table(columns, data):
        return columns, data

    def init(**options):
        calls.append(options)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Table=table))
    monkeypatch.setattr(trackers, "load_keys", lambda: None)
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
    [
        ("tensorboard", {"tensorboard": True}),
        ("wandb", {"wandb": {"project": "p"}}),
        ("trackio", {"trackio": {"project": "p"}}),
        ("mlflow", {"mlflow": {"experiment": "e"}}),
    ],
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


@pytest.fixture
def server():
    """`server(status)`: the address of a web server that answers every request with this status."""
    opened = []

    def start(status):
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        opened.append(ThreadingHTTPServer(("127.0.0.1", 0), Answer))
        threading.Thread(target=opened[-1].serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{opened[-1].server_port}"

    yield start
    for one in opened:
        one.shutdown()
        one.server_close()


def test_wandb_online_without_a_key_goes_offline_instead_of_asking(tmp_path, fake_wandb, monkeypatch, server):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", server(404))  # an answer, though not the page
    with pytest.warns(UserWarning, match="WANDB_API_KEY.*kept offline"):
        check_trackers(ONLINE)
    make_sinks(ONLINE, tmp_path, {})
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login user password key\n")
    (tmp_path / ".netrc").chmod(0o600)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_trackers(ONLINE)
    make_sinks(ONLINE, tmp_path, {})
    assert [options["mode"] for options in fake_wandb] == ["offline", "online"]


def test_a_resumed_run_goes_on_in_the_tracker(tmp_path, fake_wandb, monkeypatch, server):
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setenv("WANDB_BASE_URL", server(200))
    for name in ("one", "two"):
        for sessions in (1, 2):
            RunDirectory.create(tmp_path / name, {}, resume=sessions == 2).close()
            make_sinks(ONLINE, tmp_path / name, {})
    ids = [options["id"] for options in fake_wandb]
    assert ids[0] == ids[1] != ids[2] == ids[3]
    assert {options["resume"] for options in fake_wandb} == {"allow"}


@pytest.mark.parametrize("fault", ["refuses", "fails", "hangs", "has no address"])
def test_a_tracker_without_network_is_local_within_seconds(tmp_path, fake_wandb, monkeypatch, server, fault):
    """Neither an error nor a question; the bound on the time is that of the check, not of this machine."""
    monkeypatch.setenv("WANDB_API_KEY", "key")
    monkeypatch.setattr(trackers, "_ANSWER_SECONDS", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if fault == "hangs":
            silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = {"fails": server(503), "has no address": "http://no.such.host.invalid"}.get(fault, url)
        monkeypatch.setenv("WANDB_BASE_URL", url)
        monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
        tracking = ONLINE | {"mlflow": {"experiment": "e", "uri": url}}
        with pytest.warns(UserWarning, match="does not answer") as shown:
            check_trackers(tracking)
        assert len(shown) == 2 and len(make_sinks(tracking, tmp_path, {})) == 1
    assert [options["mode"] for options in fake_wandb] == ["offline"]


def test_a_trackio_space_without_a_token_becomes_a_local_project(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setitem(sys.modules, "trackio", types.ModuleType("trackio"))
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.warns(UserWarning, match=r"HF_TOKEN.*on this machine"):
        check_trackers({"trackio": {"project": "p", "space_id": "me/space"}})


def test_tables_and_alerts_reach_wandb_with_numbers_only_in_metrics(tmp_path, fake_wandb):
    (sink,) = make_sinks({"wandb": {"project": "p"}}, tmp_path, {})
    sink.log_table(
        2,
        "mbpp_eval/samples",
        sample_rows([{"task_id": "a", "success": True}, {"code": "\ud800" + "x" * 9999}], 2),
    )
    sink.log_table(3, "rollouts", [])
    sink.alert(4, "title", "no signal")
    (step, table), alert = fake_wandb[1:]
    assert step == 2 and list(table) == ["mbpp_eval/samples"]
    columns, rows = table["mbpp_eval/samples"]
    assert columns == ["task_id", "success", "code"]
    assert rows[0] == ["a", True, ""] and rows[1][:2] == ["", ""] and rows[1][2] == "\\ud800" + "x" * 3999
    assert alert == ("title", "no signal")


def test_a_tracker_that_hangs_at_the_end_does_not_hold_the_run(monkeypatch):
    ended = threading.Event()

    class Slow(MetricSink):
        def log(self, step, values):
            pass

        def close(self):
            ended.wait()

    monkeypatch.setattr(trackers, "_CLOSE_SECONDS", 0.05)
    with pytest.warns(UserWarning, match="Slow has not taken everything"):
        FailSafeSink("Slow", Slow).close()
    ended.set()


def test_a_file_of_keys_that_is_no_file_or_has_no_end_is_left_alone(tmp_path):
    os.mkfifo(tmp_path / ".env")
    load_keys(tmp_path)
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").symlink_to("/dev/zero")
    load_keys(tmp_path)


def test_keys_come_from_a_file_that_sets_nothing_else(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "HF_TOKEN", "OPENAI_API_KEY", "LD_PRELOAD", "WANDB_BASE_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_TOKEN", "from the environment")
    (tmp_path / ".env").write_text(
        "# keys\nexport WANDB_API_KEY='quoted key'\nHF_TOKEN=from_file\nOPENAI_API_KEY = plain-key # mine\n"
        "LD_PRELOAD=/tmp/x.so\nWANDB_BASE_URL=http://elsewhere\nno line\n=\n"
    )
    load_keys(tmp_path)
    assert os.environ["WANDB_API_KEY"] == "quoted key" and os.environ["OPENAI_API_KEY"] == "plain-key"
    assert os.environ["HF_TOKEN"] == "from the environment"
    assert "LD_PRELOAD" not in os.environ and "WANDB_BASE_URL" not in os.environ
    load_keys(tmp_path / "nowhere")
    (tmp_path / "folder" / ".env").mkdir(parents=True)  # a virtual environment
    load_keys(tmp_path / "folder")


def test_a_key_in_an_error_of_a_tracker_is_not_shown(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "planted-secret-1")

    def fail():
        raise PermissionError("the key planted-secret-1 is not valid")

    with pytest.warns(UserWarning, match=r"the key \*\*\* is not valid") as shown:
        FailSafeSink("Strict", fail)
    assert "planted" not in str(shown[0].message)


def test_a_password_in_a_recipe_is_refused_and_not_repeated(capsys):
    with pytest.raises(SystemExit):
        main(["config", "check", "quickstart", "tracking.mlflow.uri=https://user:planted@host"])
    shown = capsys.readouterr()
    assert "MLFLOW_TRACKING_PASSWORD" in shown.err and "planted" not in shown.err + shown.out


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
