"""Tells people of alarms: by a webhook, by mail, or by a command of theirs.

A webhook and a mail get the alarm and the name of the run: no answer, no setting and no address of another.
"""

from __future__ import annotations

import os
import shlex
import smtplib
import ssl
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from email.message import EmailMessage
from email.utils import formatdate
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic import Discriminator, Field, NonNegativeInt, PositiveInt, Tag

from greenward import __version__
from greenward.common.errors import DiagnosticsError
from greenward.common.text import visible
from greenward.config.section import ConfigSection
from greenward.diagnostics.findings import FINDINGS
from greenward.runs.files import dump_json

if TYPE_CHECKING:
    from greenward.diagnostics.monitor import Alarm


_COOLDOWN, _MOST = (
    "steps after an alert without another, unless it is critical",
    "alerts of a monitor; the last one says so",
)
_MAIL_ADDRESS = r"^[^\s@,;:<>]+@[^\s@,;:<>]+$"


class Webhook(ConfigSection):
    """Send alarms by POST requests, in the form that the receiver takes.

    `webhook` is the address, or the name of an environment variable that holds it. An address is a secret:
    who knows it can write there. No message of ours has more of it than the host. The format `slack`
    (`text`) is also for Mattermost and Rocket.Chat, `discord` sends `content`, and `json` the alarm as in
    `--alarms`, with `run`, `action` and the sentence as `message`. Nobody but `role` is ever mentioned. A
    training with `Monitor` waits for a request, 5 seconds at most for each answer of the server.
    """

    webhook: str = Field(pattern=r"^(https?://.+|[A-Za-z_]\w*)$")
    format: Literal["auto", "json", "slack", "discord"] = Field(
        "auto", description="auto: by the host of the address, json for all but Slack and Discord"
    )
    role: str | None = Field(
        None, pattern=r"^\d{1,20}$", description="id of the role in Discord that a critical alarm mentions"
    )
    cooldown: NonNegativeInt = Field(100, description=_COOLDOWN)
    most: PositiveInt = Field(50, description=_MOST)


class Mail(ConfigSection):
    """Send alarms by mail.

    `smtp` is the server as smtp://HOST:PORT or smtps://USER:PASSWORD@HOST:PORT, or the name of an
    environment variable that holds it, as it should where there is a password: that is secret, and so is the
    user's name. STARTTLS is used where the server offers it, and always before a password is sent, unless
    the server is this machine.
    """

    mail: str = Field(pattern=_MAIL_ADDRESS, description="to whom")
    smtp: str = Field("smtp://localhost", pattern=r"^(smtps?://.+|[A-Za-z_]\w*)$")
    sender: str | None = Field(None, pattern=_MAIL_ADDRESS, description="from whom; the receiver without it")
    cooldown: NonNegativeInt = Field(100, description=_COOLDOWN)
    most: PositiveInt = Field(50, description=_MOST)


class Shell(ConfigSection):
    """Run a line of a shell, /bin/sh, with the alarm as JSON in the variable GREENWARD_ALARM."""

    shell: str = Field(pattern=r"\S")


class Run(ConfigSection):
    """Run a command without a shell: it is split as a shell would, and `>`, `|` and `$` mean nothing.

    The alarm is JSON in the variable GREENWARD_ALARM.
    """

    run: str = Field(pattern=r"\S")


def _kind_of(action: Any) -> str | None:
    """The key of a file by which an action is known."""
    if isinstance(action, str):
        return "word"
    for kind in ("webhook", "mail", "shell", "run"):
        if kind in action if isinstance(action, dict) else hasattr(action, kind):
            return kind
    return None


Action: TypeAlias = Annotated[
    Annotated[Literal["warn", "stop"], Tag("word")]
    | Annotated[Webhook, Tag("webhook")]
    | Annotated[Mail, Tag("mail")]
    | Annotated[Shell, Tag("shell")]
    | Annotated[Run, Tag("run")],
    Discriminator(
        _kind_of,
        custom_error_type="action",
        custom_error_message="expected warn, stop, or a mapping with webhook, mail, shell or run",
    ),
]


def start_command(action: Run | Shell, alarm: str) -> None:
    """Start the command of an action; `alarm` is JSON. Raises `OSError` where there is no such program."""
    command = shlex.split(action.run) if isinstance(action, Run) else ["/bin/sh", "-c", action.shell]
    subprocess.Popen(command, env={**os.environ, "GREENWARD_ALARM": alarm}, stdin=subprocess.DEVNULL)


_REQUEST_SECONDS = 5.0
# Of an alert: Discord takes 2,000, and half of them where each needs two units of UTF-16.
_MOST_CHARACTERS, _MOST_SUBJECT = 900, 120
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HOSTS = {"slack": ("slack.com", "slack-gov.com"), "discord": ("discord.com", "discordapp.com")}


class Alerts:
    """Sends the alarms of a run to a webhook or by mail, fewer than are raised.

    Raises:
        DiagnosticsError: the environment variable holds no address.
    """

    def __init__(self, receiver: Webhook | Mail) -> None:
        self._receiver = receiver
        is_mail = isinstance(receiver, Mail)
        self._kind, schemes = ("mail", ("smtp", "smtps")) if is_mail else ("webhook", ("http", "https"))
        named = receiver.smtp if isinstance(receiver, Mail) else receiver.webhook
        self._address = named
        self._sent, self._held_back = 0, 0
        self._newest: int | None = None  # step of the newest alert
        self._has_failed = False
        if is_named := "://" not in self._address:
            self._address = os.environ.get(named, "")
        try:
            parts = urlsplit(self._address)
            host = parts.hostname or ""
            _ = parts.port
        except ValueError:  # which would show the address
            host = ""
        if not host or not self._address.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            what = f"the environment variable {named}" if is_named else "it"
            raise DiagnosticsError(
                f"{self._kind}: {what} holds no address",
                remedy=f"An address begins with {schemes[1]}:// and a host.",
            )
        self._place = f"${named}" if is_named else host
        of_host = (
            name for name, ends in _HOSTS.items() if f".{host}".endswith(tuple(f".{end}" for end in ends))
        )
        self._format: str = "mail" if isinstance(receiver, Mail) else receiver.format
        if self._format == "auto":
            self._format = next(of_host, "json")

    def send(self, alarm: Alarm, run: str, say: Callable[[str], object]) -> None:
        """Send an alarm of the run, unless there were too many, or one was sent a few steps before."""
        if self._sent >= self._receiver.most:
            return
        rests = self._newest is not None and alarm.step - self._newest <= self._receiver.cooldown
        if rests and alarm.severity != "critical":
            self._held_back += 1
            return
        self._sent += 1
        remarks = [f"{self._held_back} alarm(s) before this one were held back."] * (self._held_back > 0)
        if self._sent == self._receiver.most:
            remarks.append(
                f"This is alert {self._sent} of {self._receiver.most}: no more are sent for this run."
            )
            said = f"the {self._kind} {self._place} gets no more alerts: {self._sent} were sent."
            say(f"Step {alarm.step}: {said}")
        try:
            message = self._message(alarm, run, remarks)
            if isinstance(self._receiver, Mail):
                _mail(self._receiver, self._address, message["subject"], message["text"])
            else:
                _post(self._address, dump_json(message))
            self._newest, self._held_back = alarm.step, 0
        except Exception as error:
            if not self._has_failed:
                self._has_failed = True
                # The texts of most errors hold the address.
                status = getattr(error, "code", None) or getattr(error, "smtp_code", None)
                reason = getattr(error, "reason", None)
                why: object = type(error).__name__
                if status:
                    why = f"{'HTTP' if self._kind == 'webhook' else 'SMTP'} {status}"
                elif isinstance(reason, OSError):
                    why = reason
                failed = f"the {self._kind} {self._place} failed: {why}. Later failures are silent."
                say(f"Step {alarm.step}: {failed}")

    def _message(self, alarm: Alarm, run: str, remarks: list[str]) -> dict[str, Any]:
        finding = FINDINGS.get(alarm.name) if alarm.source != "rule" else None
        what, first = alarm.text, f"greenward diagnose {run or 'RUN'}"
        if finding is not None:
            what = f"{finding.title}: {alarm.text.removeprefix(f'{alarm.name}: ')}"
            first = alarm.action or finding.actions[0]
        where = f" in {run}" if run else ""
        when = f"from step {alarm.onset}" if alarm.source == "diagnosis" else f"at step {alarm.step}"
        text = f"{alarm.severity.upper()}{where} {when}: {what.rstrip('.')}. First: {first.rstrip('.')}."
        text = visible(" ".join([*text.split(), *remarks]), _MOST_CHARACTERS)
        if self._format == "mail":
            subject = visible(" ".join(f"greenward: {alarm.severity}{where} {when}".split()), _MOST_SUBJECT)
            return {"subject": subject, "text": f"{text}\n"}
        if self._format == "slack":  # an id in angle brackets would mention somebody
            return {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
        if self._format == "discord":
            role = self._receiver.role if isinstance(self._receiver, Webhook) else None
            roles = [role] if role and alarm.severity == "critical" else []
            content = "".join(f"<@&{role}> " for role in roles) + text
            return {"content": content, "allowed_mentions": {"parse": [], "roles": roles}}
        return {**asdict(alarm), "run": run, "action": first, "message": text}


def _mail(receiver: Mail, url: str, subject: str, text: str) -> None:
    """Raises `OSError` (of which those of smtplib are some) for a server that does not take the mail."""
    message = EmailMessage()
    message["Subject"], message["To"] = subject, receiver.mail
    message["From"] = receiver.sender or receiver.mail
    message["Date"] = formatdate()
    message.set_content(text)
    parts = urlsplit(url)
    host = parts.hostname or ""
    made = smtplib.SMTP_SSL if parts.scheme == "smtps" else smtplib.SMTP
    with made(host, parts.port or 0, timeout=_REQUEST_SECONDS) as server:
        if parts.scheme == "smtp" and host not in _LOCAL:
            server.ehlo()
            if parts.username or server.has_extn("starttls"):  # no password goes unencrypted
                server.starttls(context=ssl.create_default_context())
        if parts.username:
            server.login(unquote(parts.username), unquote(parts.password or ""))
        server.send_message(message)


def _post(url: str, record: str) -> None:
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirect(HTTPRedirectHandler):
        """Lets a redirect fail, which would make a GET of the request."""

        def redirect_request(self, *_: Any) -> None: ...

    # Discord refuses the name that urllib has by default.
    headers = {"Content-Type": "application/json", "User-Agent": f"greenward/{__version__}"}
    request = Request(url, record.encode(), headers)
    with build_opener(NoRedirect).open(request, timeout=_REQUEST_SECONDS):
        pass
