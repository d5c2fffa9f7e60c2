"""What the server gives, and what it refuses: forged hosts and origins, paths, methods, links, broken files."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import socket
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from made_runs import HOSTILE, Served, answers_of, get, get_whole, make_app, request, serving, write_run

from greenward.runs.directory import RunDirectory
from greenward.runs.reading import read_metrics
from greenward.runs.selection import parse_query
from greenward.ui import columns, data
from greenward.ui.catalog import Catalog
from greenward.ui.security import COOKIE, Guard, host_name


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", "127.0.0.1@evil.example", "",
     "127.0.0.1:80x", "169.254.1.1", "0.0.0.0"],
)  # fmt: skip
def test_another_host_is_refused_on_every_path(served, host):
    for path in ("/", "/api/v1/runs", "/static/app.js"):
        status, headers, body = request(served, path, headers={"Host": host})
        assert status in (400, 421) and b"good" not in body
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("host", ["localhost", "localhost:9", "[::1]:7117", "127.0.0.1", "LOCALHOST:1"])
def test_names_of_this_machine_are_answered_through_any_tunnel(served, host):
    assert request(served, "/api/v1/runs", headers={"Host": host})[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_data_is_not_given_to_other_sites_while_pages_may_be_linked_to(served, headers):
    status, found, body = request(served, "/api/v1/runs", headers=headers)
    assert status == 403 and b"good" not in body and "access-control-allow-origin" not in found
    assert request(served, "/r/good", headers=headers)[0] == 200


def test_two_hosts_are_refused(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as opened:
        host = f"127.0.0.1:{served.port}"
        opened.sendall(f"GET /api/v1/runs HTTP/1.1\r\nHost: {host}\r\nHost: evil\r\n\r\n".encode())
        assert opened.recv(4096).split()[1] in (b"400", b"421")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_but_reading_is_allowed(served, method):
    assert request(served, "/api/v1/runs", method)[0] in (400, 405)
    assert request(served, "/api/v1/runs", "HEAD")[2] == b""


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/..%2fserver.py", "/static/%2e%2e/%2e%2e/server.py", "/static//etc/passwd",
     "/static/..%252fserver.py", "/static/vendor/VENDOR.json", "/../../etc/passwd", "/api/v1/runs/..%2f..",
     "/api/v1/runs/%2fetc", "/api/v1/runs/linked", "/api/v1/runs/outside",
     "/api/v1/runs/..", "/api/v1/runs/good/rollouts/../../../x", "/static/app.js%00.html", "/api/v1/runs/good%00"],
)  # fmt: skip
def test_no_path_leads_out_of_the_folders(served, path):
    status, _, body = request(served, path)
    assert status in (400, 404) and b"root:" not in body and b"secret" not in body and b"import" not in body


def test_headers_let_a_page_run_its_own_scripts_only(served):
    for path in ("/", "/static/app.js", "/api/v1/runs", "/missing"):
        _, headers, _ = request(served, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and "require-trusted-types-for 'script'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers


def test_hosts_are_told_apart():
    assert [host_name(text) for text in ("[::1]:80", "A.b:1", "x", "[::1", "a:b", "[::1]x")] == [
        "::1", "a.b", "x", "", "", "",
    ]  # fmt: skip


def test_with_a_token_nothing_is_shown_without_it(served):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data"})

    def ask(
        query: bytes = b"", cookie: str = "", path: str = "/", host: bytes = b"box:1"
    ) -> tuple[int, dict[bytes, bytes]]:
        sent = []

        async def send(message):
            sent.append(message)

        headers = [(b"host", host)] + ([(b"cookie", cookie.encode())] if cookie else [])
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": headers}
        scope["server"] = ("192.168.1.5", 7117)
        answering = Guard(app, ["box"], "s3cret")(scope, None, send)
        with pytest.raises(StopIteration):  # nothing in it waits
            answering.send(None)
        return sent[0]["status"], dict(sent[0]["headers"])

    assert (
        ask()[0]
        == ask(b"token=other")[0]
        == ask(cookie=f"{COOKIE}_7117=other", path="/api/v1/runs")[0]
        == 403
    )
    assert ask(path="/static/app.js")[0] == 403 and not seen
    status, headers = ask(b"token=s3cret")
    assert status == 200 and b"HttpOnly; SameSite=Strict" in headers[b"set-cookie"]
    name = headers[b"set-cookie"].decode().partition("=")[0]
    assert name == f"{COOKIE}_7117"  # two servers on one host must not take each other's
    assert ask(cookie=f"{name}=s3cret")[0] == 200 and ask(cookie=f"{COOKIE}_7118=s3cret")[0] == 403
    assert ask(b"token=s3cret", host=b"192.168.1.5:7117")[0] == 200  # as a server of all addresses is asked
    assert ask(host=b"192.168.1.5:7117")[0] == 403
    for host in (b"192.168.1.6", b"evil.example", b"192.168.1.5.evil.example", b""):
        assert ask(b"token=s3cret", host=host)[0] == 421


def test_runs_are_found_with_their_state_and_links_are_not_followed(served):
    found = {run["id"]: run for run in get(served, "/api/v1/runs")["runs"]}
    assert len(found) == 3 and "linked" not in str(found)
    assert found["good"]["state"] == found["study~sick"]["state"] == "finished"
    assert found["good"]["step"] == 120 and math.isclose(found["good"]["after"]["value"], 0.7)
    odd = next(run for run in found.values() if run["name"] == "hostile & <odd>")
    assert odd["state"] == "failed" and odd["id"].isascii() and "/" not in odd["id"]


def series(served, run: str, query: str) -> dict[str, dict[str, np.ndarray]]:
    status, _, body = request(served, f"/api/v1/runs/{run}/series?{query}")
    assert status == 200
    size = int.from_bytes(body[:4], "little")
    head, at, found = json.loads(body[4 : 4 + size]), 4 + size, {}

    def take(kind: str, count: int) -> np.ndarray:
        nonlocal at
        array = np.frombuffer(body, kind, count, at)
        at += array.nbytes
        return array

    for one in head["curves"]:
        arrays = {"x": take("<f8", one["count"]), "mean": take("<f4", one["count"])}
        if not one["raw"]:
            arrays |= {"low": take("<f4", one["count"]), "high": take("<f4", one["count"])}
        if one.get("smooth"):
            arrays |= {"smooth_x": take("<f8", one["smooth"]), "smooth": take("<f4", one["smooth"])}
        found[one["key"]] = arrays
    assert at == len(body)
    return found


def test_curves_hold_all_points_or_the_least_and_largest_of_each_bucket(served):
    rows = read_metrics(served.folder / "good" / "metrics.jsonl").rows
    steps, values = np.array([(row["step"], row["entropy"]) for row in rows]).T
    raw = series(served, "good", "key=entropy&px=500&from=20&to=80")["entropy"]
    chosen = (steps >= 20) & (steps <= 80)
    np.testing.assert_array_equal(raw["x"], steps[chosen])
    np.testing.assert_allclose(raw["mean"], values[chosen], rtol=1e-6)
    few = series(served, "good", "key=entropy&px=12&smooth=5")["entropy"]
    parts = values.reshape(12, 10)
    np.testing.assert_allclose(few["low"], parts.min(1), rtol=1e-6)
    np.testing.assert_allclose(few["high"], parts.max(1), rtol=1e-6)
    np.testing.assert_allclose(few["mean"], parts.mean(1), rtol=1e-6)
    whole = series(served, "good", "key=entropy&px=500&smooth=5")["entropy"]
    expected = [values[max(0, i - 2) : i + 3].mean() for i in range(len(values))]
    np.testing.assert_allclose(whole["smooth"], expected, rtol=1e-5)


def test_curves_as_files_are_the_data(served):
    rows = read_metrics(served.folder / "good" / "metrics.jsonl").rows
    status, headers, body = request(
        served, "/api/v1/runs/good/series.csv?key=entropy&key=pass_rate&from=5&to=9"
    )
    found = list(csv.reader(io.StringIO(body.decode())))
    assert status == 200 and "attachment" in headers["content-disposition"]
    assert found[0] == ["step", "entropy", "pass_rate"]
    expected = [(row["step"], row["entropy"], row["pass_rate"]) for row in rows if 5 <= row["step"] <= 9]
    np.testing.assert_allclose([[float(cell) for cell in row] for row in found[1:]], expected, rtol=1e-6)
    drawn = request(served, "/api/v1/runs/good/series.svg?key=entropy")[2]
    assert ElementTree.fromstring(drawn).tag.endswith("svg")


@pytest.mark.parametrize(
    "query",
    ["", "status=failed", "step=50-&stop=length&sort=-tokens", "reward>=p50&passed=0", "text=NaMe", "foo=1"],
)
def test_answers_are_those_that_the_query_means(served, query):
    kept = served.answers["good"]
    found = answers_of(served, "good", f"{query}&count=512")
    expected = [
        (step, row)
        for step, row in kept
        if (
            {
                "status=failed": row["status"] == "failed",
                "step=50-&stop=length&sort=-tokens": step >= 50 and row["stop"] == "length",
                "reward>=p50&passed=0": row["status"] != "passed"
                and row["rewards"]["policy"] >= np.median([other["rewards"]["policy"] for _, other in kept]),
                "text=NaMe": False,  # an error class is no text
            }
        ).get(query, True)
    ]
    assert found["total"] == len(kept) and found["matching"] == len(expected)
    if "sort" in query:
        tokens = [row["tokens"] for row in found["rows"]]
        assert tokens == sorted((row["tokens"] for _, row in expected), reverse=True)
    else:
        assert [(row["step"], row["task"]) for row in found["rows"]] == [
            (step, row["problem"]) for step, row in expected
        ]
    assert found["unknown"] == (["foo=1"] if query == "foo=1" else [])
    statuses = (
        [row["status"] for _, row in kept] if query == "status=failed" else [r["status"] for _, r in expected]
    )
    assert dict(map(tuple, found["facets"]["status"])) == {
        name: statuses.count(name) for name in set(statuses)
    }


def test_answers_as_files_are_the_rows_of_the_selection(served):
    kept = [(step, row) for step, row in served.answers["good"] if row["status"] == "failed"]
    body = request(served, "/api/v1/runs/good/rollouts.jsonl?status=failed")[2]
    found = [json.loads(line) for line in body.decode().splitlines()]
    assert [one.pop("step") for one in found] == [step for step, _ in kept]
    assert found == [json.loads(json.dumps(row)) for _, row in kept]
    table = list(
        csv.DictReader(
            io.StringIO(request(served, "/api/v1/runs/good/rollouts.csv?status=failed")[2].decode())
        )
    )
    assert [row["answer"] for row in table] == [row["answer"] for _, row in kept]
    np.testing.assert_allclose(
        [float(one["advantage"]) for one in table], [row["advantage"] for _, row in kept], rtol=1e-6
    )


def test_files_of_a_run_that_is_being_read_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 0.0)  # each look reads one file of answers, or 4,000 rows
    kept = write_run(tmp_path / "runs" / "one", 60, seed=0)
    metrics = tmp_path / "runs" / "one" / "metrics.jsonl"
    rows = [{"step": step, "reward/mean": step / 9000} for step in range(9000)]
    metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows) + '{"step": 9000, "rew')
    with serving([tmp_path / "runs"], None) as port:
        served = Served(tmp_path / "runs", port, {})
        assert get(served, "/api/v1/runs/one/rollouts")["share"] < 1
        assert get(served, "/api/v1/compare?runs=one")["share"] < 1
        assert get(served, "/api/v1/runs/one/rollouts/20/0")["share"] < 1
        lines = request(served, "/api/v1/runs/one/rollouts.jsonl")[2].decode().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [step for step, _ in kept]
    with serving([tmp_path / "runs"], None) as port:
        served = Served(tmp_path / "runs", port, {})
        table = request(served, "/api/v1/runs/one/series.csv?key=reward/mean")[2].decode().splitlines()
        assert len(table) == 9001 and table[-1].startswith("8999,")
        assert get(served, "/api/v1/runs/one")["share"] == 1.0  # though its last line was cut


def test_files_of_a_run_that_cannot_be_read_in_time_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 0.0)
    monkeypatch.setattr(data, "SECONDS_OF_DOWNLOAD", 0.0)
    write_run(tmp_path / "runs" / "one", 60, seed=0)
    with serving([tmp_path / "runs"], None) as port:
        status, _, body = request(
            Served(tmp_path / "runs", port, {}), "/api/v1/runs/one/rollouts.csv?status=passed"
        )
        assert status == 422 and b"The answers of this run are being read: 17% so far. Ask again." in body


def test_identical_answers_are_folded(served):
    kept = served.answers["good"]
    found = answers_of(served, "good", "fold=1&count=512")
    different = {(row["answer"], row["problem"]) for _, row in kept}
    assert found["rows_in_all"] == len(different) and sum(row["times"] for row in found["rows"]) == len(kept)


def test_an_answer_is_shown_with_its_group_failure_and_history(served):
    kept = [(step, row) for step, row in served.answers["good"] if step == 60]
    place = next(i for i, (_, row) in enumerate(kept) if row["status"] != "passed")
    found = get_whole(served, f"/api/v1/runs/good/rollouts/60/{place}")
    row = kept[place][1]
    assert "\n".join("".join(text for _, text in line) for line in found["code"]) == row["answer"]
    assert found["difference"]["call"] == f"solve({place})"
    assert "".join(text for _, text in found["difference"]["got"]) == str(place)
    assert [one["row"] for one in found["siblings"]] == [
        i for i, (_, other) in enumerate(kept) if other["group"] == row["group"]
    ]
    assert {one["name"]: one["weight"] for one in found["terms"]} == {"tests": 1.0, "style: long & odd": None}
    history = {step: [0, 0] for step, other in served.answers["good"] if other["problem"] == row["problem"]}
    for step, other in served.answers["good"]:
        if other["problem"] == row["problem"]:
            history[step][0] += 1
            history[step][1] += other["status"] == "passed"
    assert {step: [many, passed] for step, many, passed, _ in found["history"]} == history


def test_hostile_and_broken_files_are_named_and_shown_as_far_as_they_go(served):
    runs = get(served, "/api/v1/runs")["runs"]
    odd = next(run["id"] for run in runs if run["name"] == "hostile & <odd>")
    run = get(served, f"/api/v1/runs/{odd}")
    assert run["rows"] == 3 and any("NaN" in note for note in run["notes"])
    found = answers_of(served, odd, "")
    assert found["total"] == 2 and found["broken"] == 1
    one = get(served, f"/api/v1/runs/{odd}/rollouts/1/0")
    assert one["rest"] > 100_000 and len(one["answer"]) <= 65_536
    shown = json.dumps(one, ensure_ascii=False)
    for hidden in ("\u202e", "\x00", "\x1b", "\u200b", "\ud800"):
        assert hidden not in shown
    assert "<script>window.owned=1</script>" in one["answer"]
    table = request(served, f"/api/v1/runs/{odd}/rollouts.csv")[2].decode()
    csv.field_size_limit(1 << 20)
    cells = [cell for row in csv.reader(io.StringIO(table)) for cell in row]
    assert len(cells) > 20 and not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
    assert request(served, f"/api/v1/runs/{odd}/series.svg?key=%3Cscript%3E")[0] == 422
    drawn = request(served, f"/api/v1/runs/{odd}/series.svg?key={quote(HOSTILE[:80])}")[2]
    assert not any(one.tag.endswith(("script", "img")) for one in ElementTree.fromstring(drawn).iter())


def test_a_link_out_of_the_folder_is_refused_wherever_it_stands(tmp_path):
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "secret": 1.0, "answer": "secret", "status": "passed"}\n')
    folder = tmp_path / "runs"
    for name in ("metrics.jsonl", "summary.json", "failure.txt", "rollouts/step_000001.jsonl", "config.yaml"):
        run = folder / name.replace("/", "_")
        write_run(run, 20, seed=0)
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(secret)
    whole = folder / "whole"
    write_run(whole, 20, seed=0)
    for file in (whole / "rollouts").iterdir():
        file.unlink()
    (whole / "rollouts").rmdir()
    (tmp_path / "rollouts").mkdir()
    os.replace(secret, tmp_path / "rollouts" / "step_000001.jsonl")
    secret.write_text('{"step": 1, "secret": 1.0}\n')
    (whole / "rollouts").symlink_to(tmp_path / "rollouts")
    _, pages = make_app([folder], cache=None)
    try:
        for place in pages.catalog.places().values():
            assert "secret" not in json.dumps([pages.run(place), pages.runs()])
            try:
                found = pages.answers(place, parse_query(""), first=0, count=10, fold=False)
            except Exception as error:
                assert "link" in str(error)
            else:
                assert "secret" not in json.dumps(found)
    finally:
        pages.verdicts.close()


def test_a_run_whose_folder_becomes_a_link_is_gone(tmp_path):
    folder, outside = tmp_path / "runs", tmp_path / "outside"
    write_run(folder / "one", 20, seed=0)
    write_run(outside, 20, seed=1)
    (outside / "config.yaml").write_text("name: secret\nseed: 77\n")
    _, pages = make_app([folder], cache=None)
    try:
        place = pages.catalog.get("one")
        assert place is not None
        os.replace(folder / "one", tmp_path / "moved")
        (folder / "one").symlink_to(outside)
        assert pages.catalog.get("one") is None  # at once, before the folder is looked through again
        assert pages.catalog.config(place) == {}
        assert "secret" not in json.dumps(pages.run(place)) and pages.run(place)["rows"] == 0
        with pytest.raises(OSError, match="link"):
            pages.answers(place, parse_query(""), first=0, count=10, fold=False)
    finally:
        pages.verdicts.close()


def test_nothing_is_written_below_the_folders(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "one", 30, seed=0)

    def state() -> list[tuple[str, int, int]]:
        found = [folder, *folder.rglob("*")]
        return sorted((str(one), one.stat().st_mtime_ns, one.stat().st_size) for one in found)

    before = state()
    _, pages = make_app([folder], cache=tmp_path / "cache")
    try:
        (place,) = pages.catalog.places().values()
        pages.runs(), pages.run(place), pages.changes(None)
        pages.answers(place, parse_query("text=x"), first=0, count=10, fold=True)
        pages.series(place, ["entropy"], low=-math.inf, high=math.inf, points=100, window=3)
    finally:
        pages.verdicts.close()
    assert state() == before


def test_files_of_any_other_form_hide_no_other_run(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "sound", 20, seed=0)
    odd = {
        "config.yaml": "seed: 2026-01-01\nalgorithm: [1]\nmodel: {name: {a: 1}}\ntraining: 3\nrewards: {a: 1}\n",
        "summary.json": '{"status": [1], "after": {"pass@1": [1]}, "before": 7, "wall_seconds": {"a": 1}}',
        "progress.json": '{"phase": ["x"], "done": {}, "at": "now"}',
        "metrics.jsonl": '{"step": true}\n{"step": 1, "a": [1], "b": {"c": 1}, "d": 1e999, "e": true}\n[]\n7\n',
        "evaluations/step_000000.json": '{"step": 0, "metrics": [1], "rows": [{"success": true}]}',
        "evaluations/step_000001.json": '{"step": 1, "metrics": {"pass@1": "x"}, "rows": 7, "rates": 3}',
        "rollouts/step_000001.jsonl": '{"answer": {"a": [1]}, "rewards": [1], "terms": 7, "transcript": {"a": 1},'
        ' "status": ["x"], "tokens": "many", "group": {"a": 1}, "stop": 1e400}\n',
    }  # fmt: skip
    for name, text in odd.items():
        file = folder / "odd" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "nested").mkdir()
    (folder / "nested" / "metrics.jsonl").write_text(
        "[" * 200_000 + "\n" + '{"step": 1, "a": ' + "[" * 5000 + "\n"
    )
    opened = make_app([folder], cache=None)
    pages = opened[1]
    try:
        runs = {run["id"]: run for run in pages.runs()["runs"]}
        assert runs.keys() == {"sound", "odd", "nested"} and runs["sound"]["step"] == 20
        for place in pages.catalog.places().values():
            json.dumps(pages.run(place))
            found = pages.answers(place, parse_query("groups=constant"), first=0, count=10, fold=True)
            json.dumps(found)
        assert json.dumps(pages.answer(pages.catalog.get("odd"), 1, 0))
    finally:
        pages.verdicts.close()


def test_a_run_that_is_deleted_or_grows_is_noticed(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "one", 30, seed=0)
    _, pages = make_app([folder], cache=None)
    try:
        (place,) = pages.catalog.places().values()
        first = pages.changes(place)
        assert first["exists"] and pages.changes(place) == first
        with RunDirectory.create(folder / "one", {"name": "x"}, overwrite=True) as run:
            run.metrics.append(1, {"loss": 1.0})
            second = pages.changes(place)
            assert second["running"] and second["cursor"] != first["cursor"]
            assert pages.catalog.card(place)["state"] == "running"
        for file in sorted((folder / "one").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        (folder / "one").rmdir()
        assert not pages.changes(place)["exists"]
        assert pages.run(place)["rows"] == 0
    finally:
        pages.verdicts.close()


def test_hostile_words_reach_the_page_as_words(served):
    assert HOSTILE[:8] == "<script>"
    body = request(served, "/r/good?q=%3Cscript%3E")[2]
    assert b"<script>window" not in body and body == request(served, "/")[2]


def test_files_that_no_run_writes_leave_every_answer_valid_json(tmp_path):
    folder = tmp_path / "runs"
    write_run(folder / "sound", 20, seed=0)
    odd = folder / "odd"
    odd.mkdir()
    (odd / "config.yaml").write_text("name: odd\n")
    (odd / "progress.json").write_text(
        '{"phase": "x", "done": NaN, "total": 1e999, "numbers": {"a": -Infinity}}'
    )
    os.mkfifo(odd / "metrics.jsonl")
    testclient = pytest.importorskip("starlette.testclient")
    app, pages = make_app([folder], cache=None)
    client = testclient.TestClient(app, base_url="http://127.0.0.1")
    try:
        response = client.get("/api/v1/runs")
        json.loads(response.text, parse_constant=pytest.fail)
        assert {run["id"] for run in response.json()["runs"]} == {"sound", "odd"}
        for end in ("series.csv?key=a", "series?key=a", "series.svg?key=a"):
            refused = client.get(f"/api/v1/runs/odd/{end}")
            assert refused.status_code == 422 and "no regular file" in refused.text
        os.replace(folder / "sound", tmp_path / "moved")
        (folder / "sound").symlink_to("sound")  # which leads to itself
        assert client.get("/api/v1/changes").status_code == 200
        assert client.get("/api/v1/runs").status_code == 200
    finally:
        pages.verdicts.close()


def test_a_file_that_is_deleted_while_it_is_read_takes_its_own_answers_only(tmp_path, monkeypatch):
    kept = write_run(tmp_path / "runs" / "one", 20, seed=0)
    file = tmp_path / "runs" / "one" / "rollouts" / "step_000010.jsonl"
    content, rows = file.read_bytes(), [row for step, row in kept if step == 10]
    monkeypatch.setattr(columns, "SECONDS_AT_ONCE", 60.0)
    testclient = pytest.importorskip("starlette.testclient")
    app, pages = make_app([tmp_path / "runs"], cache=None)
    client = testclient.TestClient(app, base_url="http://127.0.0.1")
    answers = pages.store.answers

    def deleted_after(place):
        file.write_bytes(content)
        found = answers(place)
        file.unlink()
        return found

    monkeypatch.setattr(pages.store, "answers", deleted_after)
    base = "/api/v1/runs/one"
    try:
        one = client.get(f"{base}/rollouts/10/0")
        assert one.status_code == 404 and "cut or deleted" in one.text
        group = client.get(f"{base}/group?step=10&group={rows[0]['group']}")
        assert group.status_code == 422 and "There is no such group" in group.text
        for path in ("rollouts", "rollouts?text=solve", "problem?task=families/task_0"):
            assert client.get(f"{base}/{path}").status_code == 200
        lines = client.get(f"{base}/rollouts.jsonl").text.splitlines()
        assert [json.loads(line)["step"] for line in lines] == [step for step, _ in kept if step != 10]
    finally:
        pages.close()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "large"])
def test_an_answer_is_shown_without_a_prompt_that_cannot_be_read(tmp_path, kind):
    run, secret = tmp_path / "runs" / "run", tmp_path / "secret.jsonl"
    write_run(run, 10, seed=0)
    rows = run / "rollouts" / "step_000010.jsonl"
    row = {**json.loads(rows.read_text().splitlines()[0]), "prompt_id": "p"}
    rows.write_text(json.dumps(row) + "\n")
    secret.write_text('{"step": 1, "prompt_id": "p", "prompt": "a secret"}\n')
    prompts = run / "prompts.jsonl"
    if kind == "link":
        prompts.symlink_to(secret)
    elif kind == "fifo":
        os.mkfifo(prompts)
    elif kind == "folder":
        prompts.mkdir()
    else:
        with prompts.open("wb") as file:
            file.truncate(1 << 40)
    with serving([tmp_path / "runs"], None) as port:
        served = Served(run.parent, port, {})
        found = get(served, "/api/v1/runs/run/rollouts/10/0")
        assert found["answer"] == row["answer"] and found["prompt"] == ""
        assert "prompts.jsonl cannot be read" in found["prompt_unread"]
        prompts.rmdir() if kind == "folder" else prompts.unlink()
        prompts.write_text(secret.read_text())
        found = get(served, "/api/v1/runs/run/rollouts/10/0")
        assert (found["prompt"], found["prompt_unread"]) == ("a secret", "")


def test_what_the_list_shows_changes_its_cursor(tmp_path):
    write_run(tmp_path / "runs" / "one", 20, seed=0)
    run = tmp_path / "runs" / "one"
    (run / "evaluations").mkdir(exist_ok=True)
    write_foreign_log(tmp_path / "runs" / "log")
    with serving([tmp_path / "runs"], None) as port:
        served = Served(tmp_path / "runs", port, {})
        end = time.monotonic() + 60
        while (found := get(served, "/api/v1/runs"))["waiting"] or not found["complete"]:
            assert time.monotonic() < end
            time.sleep(0.2)

        def cursor() -> str:
            return str(get(served, "/api/v1/changes")["cursor"])

        def replace(name: str) -> None:
            (run / "temporary").write_text("{}")
            os.replace(run / "temporary", run / name)

        def append(path: Path, text: str) -> None:
            with path.open("a") as file:
                file.write(text)

        changes = [
            lambda: append(run / "metrics.jsonl", '{"step": 21, "reward/mean": 1.0}\n'),
            lambda: replace("summary.json"),
            lambda: replace("progress.json"),
            lambda: (run / "failure.txt").write_text("x"),
            lambda: (run / "evaluations" / "step_000099.json").write_text("{}"),
            lambda: append(tmp_path / "runs" / "log" / "progress.csv", "61,1.0\n"),
        ]
        before = cursor()
        assert cursor() == before
        for change in changes:
            time.sleep(0.02)  # a file system counts time in steps of some milliseconds
            change()
            now = cursor()
            assert now != before
            before = now


def write_foreign_log(folder: Path) -> None:
    """A table of Stable-Baselines3."""
    folder.mkdir(parents=True)
    rows = "".join(f"{i},{i / 60}\n" for i in range(1, 61))
    (folder / "progress.csv").write_text(f"time/total_timesteps,rollout/ep_rew_mean\n{rows}")


def test_a_folder_that_changes_is_listed_anew_and_one_that_is_gone_is_forgotten(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / "study" / name, 3, seed=0)
    for folder in (tmp_path, *tmp_path.rglob("*")):
        if folder.is_dir():
            os.utime(folder, ns=(10**18, 10**18))  # long ago
    catalog = Catalog([tmp_path])
    names = []
    for change in (
        lambda: None,
        lambda: write_run(tmp_path / "study" / "c", 3, seed=0),
        lambda: shutil.rmtree(tmp_path / "study" / "a"),
        lambda: (tmp_path / "study" / "b").rename(tmp_path / "moved"),
    ):
        change()
        catalog._scanned = float("-inf")  # as after some seconds
        names.append({place.name for place in catalog.places().values()})
    assert names == [
        {"study/a", "study/b"},
        {"study/a", "study/b", "study/c"},
        {"study/b", "study/c"},
        {"study/c", "moved"},
    ]
