"""Alerts by mail and by a shell, from one file of rules: what is sent, what stays secret, and what never ends a run."""

from __future__ import annotations

import json
import re
import socketserver
import subprocess
import sys
import threading
import time
from email import message_from_string
from email.policy import default
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.alerts import Mail
from greenward.diagnostics.monitor import Monitor, Rule, Rules, load_rules

ROOT = Path(__file__).parents[2]


class MailServer(socketserver.ThreadingTCPServer):
    """Takes mails by plain SMTP and keeps them; refuses receivers at refused.example."""

    daemon_threads = allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.mails: list[tuple[str, str]] = []  # receiver, text
        self.url = f"smtp://127.0.0.1:{self.server_address[1]}"


class _Conversation(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        to, reply = "", b"250 fine\r\n"
        while line := self.rfile.readline().decode().strip():
            command = line.upper()
            if command.startswith("RCPT"):
                to = re.search(r"<(.*)>", line)[1]
                self.wfile.write(b"550 SECRET no\r\n" if to.endswith("refused.example") else reply)
            elif command == "DATA":
                self.wfile.write(b"354 go on\r\n")
                text = ""
                while (part := self.rfile.readline().decode()) != ".\r\n":
                    text += part
                self.server.mails.append((to, text))
                self.wfile.write(reply)
            else:
                self.wfile.write(b"221 bye\r\n" if command == "QUIT" else reply)
                if command == "QUIT":
                    return


@pytest.fixture
def server():
    with MailServer() as one:
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        yield one
        one.shutdown()


def alarmed(action, run="mine", steps=1, said=None):
    """A monitor whose rule was broken at each of so many steps."""
    rule = Rule(id="kl", signal="kl", above=0, cooldown=0, actions=[action])
    monitor = Monitor(
        Rules(rules=(rule,), tests=False), say=(said if said is not None else []).append, run=run
    )
    for step in range(1, steps + 1):
        monitor.log(step, {"kl": 1.0})
    return monitor


def test_a_mail_has_the_sentence_of_a_chat_and_hostile_names_break_no_header(server):
    alarmed({"mail": "me@example.org", "smtp": server.url}, run="one\r\nBcc: all@example.org\x1b[2J")
    ((to, text),) = server.mails
    mail = message_from_string(text, policy=default)
    assert to == mail["To"] == mail["From"] == "me@example.org" and mail["Bcc"] is None
    assert mail["Subject"].startswith("greenward: warning in one Bcc: all@example.org")
    assert mail.get_content().startswith("WARNING in one Bcc: all@example.org") and "\x1b" not in text
    assert "rule kl: kl is 1, above 0" in mail.get_content()


def test_mails_rest_after_one_and_are_capped(server):
    said = []
    alarmed({"mail": "me@example.org", "smtp": server.url, "cooldown": 2, "most": 2}, steps=9, said=said)
    assert len(server.mails) == 2 and "2 alarm(s) before this one were held back" in server.mails[1][1]
    assert [line for line in said if "the mail 127.0.0.1 gets no more alerts: 2 were sent" in line]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mail": "me@refused.example"}, "failed: SMTP"),
        ({"smtp": "smtp://127.0.0.1:9"}, "failed: ConnectionRefusedError"),
        ({"smtp": "smtps://name:SECRET@127.0.0.1:9"}, "failed: ConnectionRefusedError"),
    ],
)
def test_a_server_that_refuses_is_said_once_without_its_secrets(server, changes, reason):
    said = []
    alarmed({"mail": "me@example.org", "smtp": server.url, "cooldown": 0, **changes}, steps=3, said=said)
    assert len(said) == 1 and "SECRET" not in said[0] and "name" not in said[0]
    if "127.0.0.1:9" not in str(changes):
        assert reason in said[0] or "SMTPRecipientsRefused" in said[0]
    else:
        assert reason in said[0]


def test_the_address_of_the_server_may_stand_in_a_variable(server, monkeypatch):
    monkeypatch.setenv("MAIL_SERVER", server.url)
    alarmed({"mail": "me@example.org", "smtp": "MAIL_SERVER"})
    assert len(server.mails) == 1
    for wrong in ("", "http://SECRET", "smtp://", "smtp://a:99999999"):
        monkeypatch.setenv("MAIL_SERVER", wrong)
        with pytest.raises(DiagnosticsError, match="variable MAIL_SERVER holds no address") as error:
            alarmed({"mail": "me@example.org", "smtp": "MAIL_SERVER"})
        assert "SECRET" not in str(error.value)


@pytest.mark.parametrize("wrong", ["no address", "a@b\nBcc: c@d", "<a@b>", "a@b,c@d"])
def test_what_is_no_address_is_refused(wrong):
    with pytest.raises(ValueError):
        Mail(mail=wrong)


def test_a_password_is_not_sent_without_encryption(monkeypatch):
    sent = []

    class Plain:
        """A server elsewhere that offers no STARTTLS."""

        def __init__(self, *_, **__): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def ehlo(self): ...
        def has_extn(self, name):
            return False

        def starttls(self, **_):
            raise OSError("not offered")

        def login(self, *given):
            sent.append(given)

        def send_message(self, message): sent.append(message)  # fmt: skip

    monkeypatch.setattr("smtplib.SMTP", Plain)
    said = []
    alarmed({"mail": "me@example.org", "smtp": "smtp://me:SECRET@mail.example.org"}, said=said)
    assert sent == [] and len(said) == 1 and "SECRET" not in said[0]


def wait_for(file: Path) -> str:
    for _ in range(200):
        if file.exists() and (text := file.read_text()).endswith("\n"):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{file} was not written")


def test_a_shell_is_used_only_where_the_file_says_shell(tmp_path):
    alarmed({"shell": f'printf "%s\\n" "$GREENWARD_ALARM" | cat >> {tmp_path}/shell.txt'}, run="$(touch x)")
    assert json.loads(wait_for(tmp_path / "shell.txt"))["name"] == "kl"
    program = "import sys; print(sys.argv[2:], file=open(sys.argv[1], 'w'))"
    alarmed({"run": f'{sys.executable} -c "{program}" {tmp_path}/run.txt "$HOME" > x | y'})
    assert wait_for(tmp_path / "run.txt") == "['$HOME', '>', 'x', '|', 'y']\n"


def test_the_file_of_the_page_is_the_file_of_the_help_and_can_be_read(tmp_path):
    page = (ROOT / "docs/monitor.md").read_text("utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (whole,) = [one for one in blocks if "mail:" in one and "shell:" in one and "rules:" in one]
    (tmp_path / "rules.yaml").write_text(whole.replace("CHAT_WEBHOOK", "https://example.org/x"))
    rules = load_rules(str(tmp_path / "rules.yaml"))
    used = [*rules.actions, *(action for rule in rules.rules for action in rule.actions)]
    assert {str(one) if isinstance(one, str) else type(one).__name__ for one in used} == {
        "warn", "stop", "Webhook", "Mail", "Shell", "Run",
    }  # fmt: skip
    text = CliRunner().invoke(cli, ["monitor", "--help"]).output
    shown = text.partition("alerts.yaml:\n")[2].partition("\n\n")[0]
    lines = "\n".join(line[4:] for line in shown.splitlines())
    (tmp_path / "help.yaml").write_text(lines)
    assert [type(one).__name__ for one in load_rules(str(tmp_path / "help.yaml")).actions] == [
        "str", "Webhook", "Mail", "Shell",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "greenward", "monitor", str(tmp_path), "--rules", str(tmp_path / "nothing.yaml")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and "there are no rules" in done.stderr
