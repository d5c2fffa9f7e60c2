"""Pages in a frame of a notebook: shown where its origin was named, and nowhere else."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest
from made_runs import Served, request, serving, write_run

from greenward.common.errors import ConfigError
from greenward.ui.security import HEADERS, Guard


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "localhost:8888",
        "http://a b",
        "http://x; script-src *",
        "http://x/path",
        "javascript:x",
        "",
        "http://",
        "http://x\r\nA: b",
    ],
)
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ConfigError, match="no origin"):
        Guard(lambda *_: None, frame=origin)


def test_only_the_named_origin_may_frame_the_pages(tmp_path, browser):
    write_run(tmp_path / "runs" / "one", 20, seed=0)
    (tmp_path / "notebook").mkdir()
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "notebook")
    hosts = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
    named, other = (f"http://127.0.0.1:{host.server_address[1]}" for host in hosts)
    for host in hosts:
        threading.Thread(target=host.serve_forever, args=(0.01,), daemon=True).start()
    with serving([tmp_path / "runs"], None, frame=named) as port:
        served = Served(tmp_path, port, {})
        (tmp_path / "notebook" / "page.html").write_text(
            f'<iframe src="{served.url}/r/one" width="900" height="700"></iframe>'
        )
        _, headers, _ = request(served, "/")
        policy = headers["content-security-policy"]
        assert policy == HEADERS["Content-Security-Policy"].replace("ancestors 'none'", f"ancestors {named}")
        assert (
            request(served, "/api/v1/runs", headers={"Origin": named})[0] == 403
        )  # data is not for its scripts
        context = browser.new_context()
        for origin, is_shown in ((named, True), (other, False)):
            page = context.new_page()
            frame = page.frame_locator("iframe")
            if is_shown:
                page.goto(f"{origin}/page.html")
                frame.locator(".plot canvas").first.wait_for()
            else:
                with page.expect_console_message(lambda message: "frame-ancestors" in message.text):
                    page.goto(f"{origin}/page.html")
                assert frame.locator(".plot, .brand").count() == 0
        context.close()
    for host in hosts:
        host.shutdown()
        host.server_close()
