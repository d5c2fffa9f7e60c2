"""The sandbox behind HTTP: our own server, SandboxFusion's form both ways, tokens, limits and lost servers."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from executor_contract import EXPECTED, are_right, statuses, successors
from fusion_server import FusionServer

from greenward.common.errors import ConfigError, SandboxError
from greenward.sandbox import http as http_server
from greenward.sandbox import remote
from greenward.sandbox.http import HttpHost, SandboxServer
from greenward.sandbox.protocol import Job, Outcome, RunResult
from greenward.sandbox.remote import JobServer, RemoteExecutor

TOKEN = "planted-token-5137"


def started(jobs, **options):
    server = SandboxServer(jobs, port=0, **options)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


def http_executor(urls, token=None, **options):
    return RemoteExecutor([HttpHost(url, token) for url in urls], **options)


@pytest.fixture(scope="module")
def jobs():
    with JobServer(2) as jobs:
        yield jobs


@pytest.fixture(scope="module")
def open_url(jobs):
    server, url = started(jobs)
    yield url
    server.shutdown()


@pytest.fixture(scope="module")
def token_url(jobs):
    server, url = started(jobs, token=TOKEN, max_body_bytes=1 << 20)
    yield url
    server.shutdown()


def post(url, body, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def run_code(url, code, **fields):
    status, reply = post(f"{url}/run_code", {"code": code, "language": "python", "run_timeout": 2, **fields})
    assert status == 200
    return reply


def test_answers_get_the_verdicts_of_local_execution_from_our_server(open_url):
    with http_executor([open_url], jobs_per_call=5) as executor:
        assert executor.isolation.layers
        assert statuses(executor) == EXPECTED


def test_answers_get_the_verdicts_of_local_execution_from_sandbox_fusion():
    with FusionServer() as server, http_executor([server.url], jobs_per_call=5) as executor:
        assert statuses(executor) == EXPECTED
        assert server.calls > 2


def test_a_forged_or_missing_reply_of_a_foreign_server_is_no_verdict():
    for forge in (lambda reply: b'["00", ' + reply.split(b", ", 1)[1], lambda reply: b"junk"):
        with FusionServer(forge) as server, pytest.raises(SandboxError, match="no host"):
            http_executor([server.url])


def test_a_program_that_replies_in_place_of_the_sandbox_needs_the_nonce(monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.5)
    with FusionServer() as server, http_executor([server.url]) as executor:
        server.forge = lambda reply: json.dumps(["0" * 32, json.loads(reply)[1]]).encode()
        ((_, result),) = executor.run(successors(1))
    assert result.outcome is Outcome.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print(input() * 2)", ("Success", "Finished", 0)),
        ("import sys; sys.exit(3)", ("Failed", "Finished", 3)),
        ("import sys; sys.exit('5 problems')", ("Failed", "Finished", 1)),
        ("import os; os._exit(4)", ("Failed", "Finished", 4)),
        ("1 / 0", ("Failed", "Finished", 1)),
        ("x = [", ("Failed", "Finished", 1)),
        ("while True: pass", ("Failed", "TimeLimitExceeded", None)),
        ("import os; os.abort()", ("Failed", "Finished", -signal.SIGABRT)),
        ("x = bytearray(1 << 34)", ("Failed", "Finished", 1)),
    ],
)
def test_programs_get_what_sandbox_fusion_would_say(open_url, code, expected):
    seconds = 0.5 if "TimeLimitExceeded" in expected else 2
    reply = run_code(open_url, code, stdin="é4\n", run_timeout=seconds)
    run = reply["run_result"]
    assert (reply["status"], run["status"], run["return_code"]) == expected
    assert set(reply) == {"status", "message", "compile_result", "run_result", "executor_pod_name", "files"}
    assert set(run) == {"status", "execution_time", "return_code", "stdout", "stderr"}
    if expected[2] == 0:
        assert run["stdout"] == "é4é4\n"
    elif code == "1 / 0":
        assert "ZeroDivisionError" in run["stderr"]


def test_a_failure_of_the_sandbox_is_said_to_be_one(open_url, jobs, monkeypatch):
    failed = RunResult(Outcome.INFRASTRUCTURE, error_message="no space left")
    monkeypatch.setattr(jobs, "run", lambda _: [failed])
    reply = run_code(open_url, "print(1)")
    assert (reply["status"], reply["message"], reply["run_result"]["status"]) == (
        "SandboxError",
        "no space left",
        "Error",
    )


@pytest.mark.parametrize(
    ("request_", "status", "word"),
    [
        ({"code": "x", "language": "cpp"}, 422, "only python"),
        ({"code": "x"}, 422, "language"),
        ({"language": "python"}, 422, "code"),
        ({"code": "x", "language": "python", "files": {"a": "YQ=="}}, 422, "files"),
        ({"code": "x", "language": "python", "run_timeout": "soon"}, 422, "run_timeout"),
        ({"code": "x", "language": "python", "run_timeout": -1}, 422, "run_timeout"),
        ({"code": "x", "language": "python", "stdin": 5}, 422, "stdin"),
        ({"code": "x", "language": "python", "memory_limit_MB": float("inf")}, 422, "memory_limit_MB"),
        ([1], 422, "code"),
        (b"{not json", 400, "JSON"),
    ],
)
def test_requests_that_make_no_sense_are_refused_with_the_reason(open_url, request_, status, word):
    found, reply = post(f"{open_url}/run_code", request_)
    assert found == status
    assert word in reply["detail"]


def test_the_token_is_asked_for_and_a_client_without_or_with_another_is_told(token_url):
    program = {"code": "print(1)", "language": "python"}
    basic = base64.b64encode(f"any:{TOKEN}".encode()).decode()
    assert post(f"{token_url}/run_code", program, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert post(f"{token_url}/run_code", program, Authorization=f"Basic {basic}")[0] == 200
    for wrong in (
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        "Basic !!",
        "Basic " + base64.b64encode(b"any:").decode(),
    ):
        assert post(f"{token_url}/run_code", program, Authorization=wrong)[0] == 401
    with http_executor([token_url], TOKEN) as executor:
        assert are_right(executor.run(successors(3)), 3)
    for token in (None, "another"):
        with pytest.raises(SandboxError, match=r"401.*\n.*token_env") as caught:
            http_executor([token_url], token)
        assert TOKEN not in str(caught.value)


def test_a_server_that_others_can_reach_needs_a_token(jobs):
    with pytest.raises(ConfigError, match="--token-env"):
        SandboxServer(jobs, "0.0.0.0", 0)


def test_a_page_in_a_browser_cannot_send_programs(open_url):
    status, reply = post(f"{open_url}/run_code", b"{}", **{"Content-Type": "text/plain"})
    assert (status, reply["detail"]) == (415, "the body must be application/json")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "10.0.0.1", "", "[", "127.0.0.1.evil.example"]
)
def test_a_server_without_a_token_is_not_called_by_another_name(open_url, host):
    """A page may give its own name the address of this machine, and then speak to this server."""
    program = {"code": "print(1)", "language": "python"}
    status, reply = post(f"{open_url}/run_code", program, Host=host)
    assert status == 403 and "localhost" in reply["detail"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80"])
def test_a_server_without_a_token_is_called_by_the_names_of_the_loopback(open_url, host):
    program = {"code": "print(1)", "language": "python"}
    status, reply = post(f"{open_url}/run_code", program, Host=host)
    assert (status, reply["run_result"]["stdout"]) == (200, "1\n")


def test_a_huge_body_is_refused_and_no_host_is_lost_by_it(token_url):
    program = {"code": "#" * (2 << 20), "language": "python"}
    status, reply = post(f"{token_url}/run_code", program, Authorization=f"Bearer {TOKEN}")
    assert status == 413
    assert "at most 1048576" in reply["detail"]
    with http_executor([token_url], TOKEN) as executor:
        with pytest.raises(SandboxError, match="413"):
            list(executor.run([Job("#" * (2 << 20), "f")]))
        assert are_right(executor.run(successors(3)), 3)


def test_an_announced_length_is_not_waited_for_without_the_token(token_url):
    connection = http.client.HTTPConnection(token_url.removeprefix("http://"), timeout=10)
    connection.putrequest("POST", "/run_code")
    connection.putheader("Content-Length", str(1 << 40))
    connection.endheaders()
    assert connection.getresponse().status == 401
    connection.close()


@pytest.fixture
def flooded(jobs):
    """A server with few places, and what opens connections to it that are closed in the end."""
    server, url = started(jobs, token=TOKEN, max_connections=32, head_seconds=1.0, max_body_bytes=1 << 16)
    opened = []

    def connect(text=b""):
        connection = socket.create_connection(("127.0.0.1", server.server_port), timeout=20)
        opened.append(connection)
        connection.sendall(text)
        return connection

    yield url, connect
    for connection in opened:
        connection.close()
    server.shutdown()
    server.server_close()


def is_closed(connection):
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True  # else `recv` has timed out


def test_slow_connections_without_a_token_keep_nobody_out(flooded):
    url, connect = flooded
    program = {"code": "print(1)", "language": "python"}
    with http_executor([url], TOKEN) as executor:  # has a connection before the flood and keeps it
        flood = [connect(b"POST /run_code HTTP/1.1\r\nX: ") for _ in range(150)]
        begun = time.monotonic()
        assert are_right(executor.run(successors(3)), 3)
        assert post(f"{url}/run_code", program, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert time.monotonic() - begun < 30  # 37 s, when each slow connection was waited for
    assert all(map(is_closed, flood))


def test_a_head_that_comes_in_drops_has_a_deadline(flooded):
    _, connect = flooded
    connection = connect(b"POST /run_code HTTP/1.1\r\n")
    begun = time.monotonic()
    try:
        while time.monotonic() - begun < 20:
            connection.sendall(b"X: y\r\n")
            time.sleep(0.05)
    except ConnectionError:
        pass
    assert time.monotonic() - begun < 15


def test_a_body_that_does_not_come_has_a_deadline(flooded, monkeypatch):
    monkeypatch.setattr(http_server, "_BODY_SECONDS", 0.3)
    head = f"POST /run_code HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    assert is_closed(flooded[1](f"{head}Content-Length: 50\r\n\r\n{{".encode()))
    # A length beyond the limit is drained for that long only.
    assert is_closed(flooded[1](f"{head}Content-Length: 9{'0' * 16}\r\n\r\n{{".encode()))


def test_bodies_that_are_read_at_once_have_a_limit_together(flooded):
    url, connect = flooded
    head = f"POST /run_code HTTP/1.1\r\nContent-Type: application/json\r\nAuthorization: Bearer {TOKEN}\r\n"
    program = {"code": "print(1)", "language": "python"}
    large = {**program, "code": program["code"] + "#" * 60_000}
    held = []

    def status_of(body):
        return post(f"{url}/run_code", body, Authorization=f"Bearer {TOKEN}")[0]

    def becomes(status, meanwhile=lambda: None):
        deadline = time.monotonic() + 20
        while (found := status_of(large)) != status and time.monotonic() < deadline:
            meanwhile()
            time.sleep(0.05)
        return found == status

    # One that comes while a large body is read may be refused, too: another takes its place.
    assert becomes(429, lambda: held.append(connect(f"{head}Content-Length: 65000\r\n\r\n{{".encode())))
    assert len(held) >= 4
    assert status_of(program) == 200
    for connection in held:
        connection.close()
    assert becomes(200)


MALFORMED = [None, "x", -1, 2**61, 1e308, float("nan"), [], {}, [[]], ["x"], {"x": 1}, "x" * 100_000]


def test_malformed_jobs_get_one_clear_error(jobs):
    request = remote.write_request([remote.write_job(job)[0] for job in successors(1)])
    assert jobs.answer(request)["results"]
    (job,) = request["jobs"]
    limits = job["limits"]
    wrong = [
        {"version": remote.version(), "jobs": value} for value in [*MALFORMED, [None], [1]] if value != []
    ]
    wrong += [{**request, "version": value} for value in MALFORMED]
    for name in job:
        wrong += [{**request, "jobs": [{**job, name: value}]} for value in MALFORMED]
        wrong.append({**request, "jobs": [{key: value for key, value in job.items() if key != name}]})
    wrong += [
        {**request, "jobs": [{**job, "limits": {**limits, name: value}}]}
        for name in limits
        for value in (None, "x", -1, float("nan"), [], {})
    ]
    refused = 0
    for one in [*MALFORMED, *wrong]:
        try:
            remote.read_request(one)
        except SandboxError as error:
            assert len(str(error)) < 1000
            refused += 1
    assert refused > len(wrong) / 2


def test_malformed_replies_are_those_of_a_lost_host(jobs):
    request = remote.write_request([remote.write_job(job)[0] for job in successors(1)])
    reply = json.loads(json.dumps(jobs.answer(request)))
    assert remote.read_reply(reply, 1).results[0].outcome is Outcome.COMPLETED
    (result,) = reply["results"]
    (call,) = result["results"]
    wrong = [{**reply, name: value} for name in reply for value in MALFORMED]
    wrong += [{**reply, "results": [{**result, name: value}]} for name in result for value in MALFORMED]
    wrong += [
        {**reply, "results": [{**result, "results": [{**call, name: value}]}]}
        for name in call
        for value in MALFORMED
    ]
    for one in [*MALFORMED, *wrong, {"error": None}, {"error": [1, [2]]}]:
        try:
            (found,) = remote.read_reply(one, 1).results
        except (SandboxError, ValueError):
            continue
        assert isinstance(found.error_message + found.stdout + found.stderr, str)
        assert found.cpu_seconds >= 0 <= found.wall_seconds
        assert all(isinstance(one.returned, bool) for one in found.results)


def test_more_jobs_than_may_be_in_flight_wait_and_come_back_right(jobs):
    server, url = started(jobs, max_jobs=4)
    refused = []
    use = server.running.use

    @contextmanager
    def noting(count):
        try:
            with use(count):
                yield
        except Exception as error:
            refused.append(error)
            raise

    server.running.use = noting
    with http_executor([url], jobs_per_call=3, calls_per_host=4) as executor:
        assert are_right(executor.run(successors(20)), 20)
    assert refused
    server.shutdown()


@pytest.mark.slow
def test_programs_of_several_clients_do_not_wait_for_each_other(open_url):
    slow = threading.Thread(target=run_code, args=(open_url, "while True: pass"), kwargs={"run_timeout": 5})
    slow.start()
    begun = time.monotonic()
    assert run_code(open_url, "print(1)")["status"] == "Success"
    assert slow.is_alive() or time.monotonic() - begun > 4  # a machine may be that slow
    slow.join()


def test_a_server_that_speaks_something_else_is_named():
    class Stranger(FusionServer):
        def run(self, request):
            return {"hello": "world"}

    with Stranger() as server, pytest.raises(SandboxError, match=rf"{server.url}.*hello"):
        http_executor([server.url])


def test_an_address_without_a_server_is_named_soon():
    begun = time.monotonic()
    with pytest.raises(SandboxError, match=r"127\.0\.0\.1:9.*refused"):
        http_executor(["http://127.0.0.1:9"])
    assert time.monotonic() - begun < 30
    with pytest.raises(ConfigError, match="environment only"):
        http_executor([f"http://user:{TOKEN}@127.0.0.1"])


@pytest.fixture
def served():
    """Servers as the command starts them."""
    processes = []

    def serve(*arguments, **environment):
        process = subprocess.Popen(
            [sys.executable, "-m", "greenward", "sandbox", "serve", "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        processes.append(process)
        words = (process.stdout.readline() or process.stderr.readline()).split()
        return process, next((word for word in words if word.startswith("http")), " ".join(words))

    yield serve
    for process in processes:
        process.kill()
        process.communicate()


def test_nothing_is_lost_or_misjudged_when_one_of_two_servers_is_killed(served):
    (_, first), (second_process, second) = served("--workers", "1"), served("--workers", "1")
    with http_executor([first, second], jobs_per_call=16) as executor:
        results = []
        for number, one in enumerate(executor.run(successors(300))):
            results.append(one)
            if number == 40:
                second_process.kill()
    assert are_right(results, 300)


def test_the_command_hides_its_token_from_answers_and_stops_cleanly(served):
    process, url = served("--workers", "1", "--token-env", "PLANTED", PLANTED=TOKEN)
    code = "import os; print(sorted(os.environ), open('/proc/self/environ').read() if 0 else '')"
    reply = post(f"{url}/run_code", {"code": code, "language": "python"}, Authorization=f"Bearer {TOKEN}")[1]
    assert reply["status"] == "Success"
    assert "PLANTED" not in reply["run_result"]["stdout"]
    process.terminate()
    assert process.wait(20) == 0


def test_the_command_refuses_what_cannot_be(served):
    assert "PLANTED" in served("--token-env", "PLANTED")[1]
    assert "no token" in served("--host", "0.0.0.0")[1]
