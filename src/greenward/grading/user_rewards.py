"""Calls reward functions of the user in a process that can be stopped, and gives them their data.

The process is started once, imports `module:function` and then answers requests, so that a hang, a crash or
a print of the function does not reach the caller. Requests are pickled: the process trusts its caller.
Replies are JSON: the caller does not trust the process.
By TRL's convention a function is called with keyword arguments only, lists with one entry for each
completion, as by `GRPOTrainer` of TRL 1.16. One without `**kwargs` gets those that it names:

- `prompts`, `completions`: texts, or lists of messages (`{"role", "content"}`).
- `completion_ids`, `prompt_ids`: token ids, the end-of-sequence token included.
- `trainer_state`: `global_step` (steps done), `max_steps` and `epoch` (passes over the problems); other
  attributes do not exist.
- `log_metric(name, value)`: the mean over a step is the metric `my_rewards:brevity/name` in `metrics.jsonl`.
- `log_extra(column, values)`: one value for each completion, under `extra` in the rows of `rollouts/`.
- `codes`, `verdicts`: the extracted program (None without one) and greenward's verdict on it.
- `task_id`, `entry_point` (also `function_name`), `docstring`, `starter_code`, `setup_code`, `tags`: of the
  problem.
- `reference` (also `solution`): the reference solution.
- `tests` (also `test_list`), `test`: assert statements as a list, and as one text.
- `test_cases`: a list of `{"input", "output"}`.
- `ground_truth` (also `answer`): JSON `{"fn_name", "inputs", "outputs"}`.
- `verification_info`, `language`: the layout of open-r1's data sets of code.

Columns of a problem's own replace those of the same name; a problem without the column gives None.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import itertools
import json
import math
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from greenward.common.errors import ConfigError, RewardError
from greenward.common.interruption import POLL_SECONDS, Stopped, check
from greenward.common.text import visible
from greenward.grading.rewards import GradedAnswer, RewardTerm, Scores
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Assertion, Check, Expected, Problem, StdioCase
from greenward.sandbox.inside.codec import receive_frame, send_frame
from greenward.sandbox.inside.files import remove_folder

if TYPE_CHECKING:
    from greenward.config.sections import RewardTermConfig


GroundTruth = Literal["json", "assertions", "assertions-json", "json-lines"]
GROUND_TRUTHS: tuple[GroundTruth, ...] = get_args(GroundTruth)


def problem_columns(problem: Problem, form: GroundTruth = "json") -> dict[str, Any]:
    """What a data set for TRL would hold of the problem: one value for each column, by name.

    `form` is that of the columns `ground_truth` and `answer`. The problem's own `columns` win.
    """
    tests = assertions(problem)
    truth = ground_truth(problem, form)
    cases = _test_cases(problem)
    kind = "function_call" if problem.entry_point else "stdin_stdout"
    return {
        "task_id": problem.task_id,
        "entry_point": problem.entry_point,
        "function_name": problem.entry_point,
        "docstring": problem.prompt,
        "starter_code": problem.starter_code,
        "setup_code": problem.setup_code,
        "tags": list(problem.tags),
        "tests": tests,
        "test_list": tests,
        "test": "\n".join(tests or problem.sources(Check)),
        "test_cases": cases,
        "ground_truth": truth,
        "answer": truth,
        "reference": problem.reference,
        "solution": problem.reference,
        "language": "python",
        # The layout of open-r1's data sets of code.
        "verification_info": {
            "language": "python",
            "test_cases": [{"fn_name": problem.entry_point, **case, "type": kind} for case in cases],
        },
        **(problem.columns or {}),
    }


def assertions(problem: Problem) -> list[str]:
    """The cases that expect a value as assert statements, and the assert statements of the problem."""
    calls = []
    for case in problem.cases:
        if case.raises is None:
            named = (f"{name}={value!r}" for name, value in case.kwargs.items())
            arguments = ", ".join((*map(repr, case.args), *named))
            calls.append(f"assert {problem.entry_point}({arguments}) == {case.expected!r}")
    return [*calls, *problem.sources(Assertion)]


def ground_truth(problem: Problem, form: GroundTruth) -> str:
    """The tests as text.

    `json`: one object {fn_name, inputs, outputs}, as in APPS; without fn_name for programs that read and
    print. `json-lines`: one object {input, output} a line. `assertions`: assert statements, one a line.
    `assertions-json`: a JSON list of them.
    """
    if form == "assertions":
        return "\n".join(assertions(problem))
    if form == "assertions-json":
        return json.dumps(assertions(problem))
    cases = _test_cases(problem)
    if form == "json-lines":
        return "\n".join(map(_json, cases))
    name = {"fn_name": problem.entry_point} if problem.entry_point else {}
    inputs, outputs = ([case[key] for case in cases] for key in ("input", "output"))
    return _json({**name, "inputs": inputs, "outputs": outputs})


def _test_cases(problem: Problem) -> list[dict[str, Any]]:
    """{input, output} of each case: a list of arguments and a value, or what is read and printed."""
    if runs := problem.tests_of(StdioCase):
        return [{"input": run.stdin, "output": run.stdout} for run in runs]
    cases = (case for case in problem.cases if case.raises is None)
    return [{"input": list(case.args), "output": case.expected} for case in cases]


def _json(value: Any) -> str:
    """JSON, with the representation of what JSON cannot hold (sets, keys that are no text)."""
    try:
        return json.dumps(value, default=repr)
    except TypeError:
        return json.dumps(repr(value))


COLUMNS = tuple(problem_columns(Problem("", "", "")))


IMPORT_SECONDS = 120.0
# A shell that waits, so that the parent which an answer may signal is not the caller.
_SHIELD = ("/bin/sh", "-c", '"$@"; exit $?', "sh")

Reply = dict[str, Any]
Handler = Callable[[Any], Reply]
Present = Callable[[Callable[..., Any], dict[str, Any]], tuple[Reply, Handler]]


class FunctionHung(RewardError):
    """The function did not answer in time."""


class FunctionEnded(RewardError):
    """The function's process has ended."""


class Refused(Exception):
    """A function that cannot serve: the message says why, the second argument what to do."""


class FunctionProcess:
    """Runs `module:function` in a process of its own, served by `present` (`serve`).

    `header` goes to `present` with the function's name; `described` is what it says of the function.
    With `hostile_input` the function may run hostile code: what it prints is discarded, it works in an
    empty temporary folder (`folder`), and a shell stands between it and this process.

    Raises `RewardError` when the function cannot be imported or is refused, takes too long
    (`FunctionHung`), or ends its process (`FunctionEnded`).
    """

    def __init__(
        self, function: str, present: Present, header: Mapping[str, Any], *, hostile_input: bool = False
    ) -> None:
        self.function = function
        cleanup = contextlib.ExitStack()
        places = dict.fromkeys(map(os.path.abspath, (os.getcwd(), *sys.path)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        self.folder: str | None = None
        if hostile_input:
            temporary = tempfile.TemporaryDirectory(prefix="greenward-", ignore_cleanup_errors=True)
            self.folder = environment["TMPDIR"] = cleanup.enter_context(temporary)
        self._channel, theirs = socket.socketpair()
        main = (
            f"from {__name__} import serve; from {present.__module__} import {present.__name__} as present; "
            "serve(present)"
        )
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(_SHIELD if hostile_input else ()),
                    *(sys.executable, "-c", main, str(theirs.fileno()), self.folder or ""),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if hostile_input else None,
                stderr=subprocess.DEVNULL if hostile_input else None,
                pass_fds=[theirs.fileno()],
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _end, self._process, self._channel, cleanup)
        try:
            self.described = self.ask({**header, "function": function}, IMPORT_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process (or the shell before it) still runs."""
        return self._end.alive and self._process.poll() is None

    def ask(self, request: Any, timeout_seconds: float) -> Reply:
        """The server's reply to one request. After an error the process is closed or goes on serving."""
        self._channel.settimeout(timeout_seconds)
        try:
            send_frame(self._channel, {}, pickle.dumps(request))
            deadline = time.monotonic() + timeout_seconds
            while not select.select([self._channel], [], [], POLL_SECONDS)[0]:
                check()
                if time.monotonic() > deadline:
                    raise TimeoutError
            frame = receive_frame(self._channel)
        except TimeoutError:
            self.close()
            raise FunctionHung(
                f"{self.function} did not answer within {timeout_seconds:g} s.",
                remedy="Make it faster, or raise timeout_seconds of this reward term.",
            ) from None
        except OSError:
            frame = None
        except Stopped:  # its reply would be taken for that to the next request
            self.close()
            raise
        if frame is None:
            self.close()
            raise FunctionEnded(
                f"{self.function}: its process ended (status {self._process.returncode}).",
                remedy="It leaves Python or crashes the interpreter: run it by hand on one answer.",
            )
        reply = frame[0]
        if "error" in reply:
            # An exception's message may quote an answer: hostile text.
            message, remedy = visible(reply["error"], 500), visible(reply["remedy"], 2000)
            raise RewardError(f"{self.function}: {message}", remedy=remedy)
        return reply

    def close(self) -> None:
        """Ends the process and those it has started. Safe to call twice."""
        self._end()


def _end(process: subprocess.Popen[bytes], channel: socket.socket, cleanup: contextlib.ExitStack) -> None:
    channel.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cleanup.close()


def serve(present: Present) -> None:
    """The other side: serves until the caller closes its end. The process's arguments are the descriptor and
    the temporary folder, if it has one.

    `present` gets the imported function and the header; it gives what is told about the function and
    what answers each later request. Either may raise `Refused`.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError):  # there is no standard error
        os.dup2(2, 1)  # what the function prints must not mix with the caller's output
    threading.Thread(target=_end_with_caller, args=(channel.fileno(), sys.argv[2]), daemon=True).start()
    handle: Handler | None = None
    while (frame := receive_frame(channel)) is not None:
        request = pickle.loads(frame[1])
        try:
            if handle is None:
                reply, handle = present(load_function(request["function"]), request)
            else:
                reply = handle(request)
        except Refused as refusal:
            reply = {"error": refusal.args[0], "remedy": refusal.args[1]}
        send_frame(channel, reply)


def _end_with_caller(channel: int, folder: str) -> None:
    """Ends this process and those of its session once the caller has closed its end or was killed.

    The function may hang, and has started what it likes. The parent may be a shell, which nobody has killed,
    and processes that the caller has forked may hold its end open.
    """
    parent, closed = os.getppid(), select.poll()
    closed.register(channel, 0)  # a hang-up is always reported
    while not closed.poll(POLL_SECONDS * 1000) and os.getppid() == parent:
        pass
    if folder:
        with contextlib.suppress(OSError):
            remove_folder(folder)
    os.killpg(0, signal.SIGKILL)


def load_function(path: str) -> Callable[..., Any]:
    """The function `module:name`. Raises `Refused` where it cannot be imported."""
    module_name, _, function_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise Refused(
            f"its module could not be imported: {type(error).__name__}: {error}.",
            "Check the name, and that the module is installed or in the current directory.",
        ) from None
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if hasattr(function, _COMPUTE):
        return _by_compute_reward(function)
    if not callable(function):
        raise Refused(f"{module_name} has no function {function_name!r}.", "Write it as 'module:function'.")
    return function


def source_of(function: Callable[..., Any]) -> str:
    """The text of the module of a function, or its own if the program or notebook that runs has defined it.

    Of an object that can be called, it is that of its class. Raises `OSError`, `TypeError` or `KeyError`
    where there is none.
    """
    defined = function if hasattr(function, "__qualname__") else type(function)
    is_here = defined.__module__ == "__main__"
    return inspect.getsource(defined if is_here else sys.modules[defined.__module__])


_PROGRAMS = ("code", "current_code", "generated_code")
_COMPUTE = "compute_reward"
"""The method of a reward class that scores one program by its test results."""


def _by_compute_reward(given: Any) -> Callable[..., list[Any]]:
    """`f(answers)` of a class, or of one of its instances, with `compute_reward(code, test_results, ...)`.

    The method is called by keyword with what its parameters name: the program as `code`, `current_code` or
    `generated_code`, `test_results` with the entries passed, total, errors and success_rate, and `episode`,
    the number of programs that it scored before. A pair is taken for the reward and its parts. Raises
    `Refused` for a class that needs arguments, and for a parameter without a value.
    """
    try:
        scorer: Any = given() if inspect.isclass(given) else given
    except TypeError as error:
        raise Refused(
            f"it cannot be made without arguments: {error}.",
            "Give its parameters defaults, or name an object that you made of it: reward = MyReward(2.0).",
        ) from None
    parameters = Parameters.of(scorer.compute_reward)
    programs = tuple(name for name in _PROGRAMS if name in parameters.names) or _PROGRAMS[:1]
    served = (*_PROGRAMS, "test_results", "episode")
    if unknown := [name for name in parameters.required if name not in served]:
        raise Refused(
            f"{_COMPUTE} needs {', '.join(unknown)}, which training does not have.",
            f"Give these defaults. It is called with: {', '.join(served)}.",
        )
    scored = itertools.count()

    def score(answer: GradedAnswer) -> Any:
        verdict = answer.verdict
        failed = [f"Test {number} failed" for number, passed in enumerate(verdict.tests_passed) if not passed]
        if verdict.error_class:
            failed = [f"{verdict.error_class}: {verdict.error_message}", *failed[1:]]
        results = {
            "passed": sum(verdict.tests_passed),
            "total": len(verdict.tests_passed),
            "errors": failed,
            "success_rate": verdict.fraction_passed,
        }
        values: dict[str, Any] = dict.fromkeys(programs, answer.code or "")
        values |= {"test_results": results, "episode": next(scored)}
        found = scorer.compute_reward(**{name: one for name, one in values.items() if parameters.take(name)})
        return found[0] if isinstance(found, tuple) else found

    return lambda answers: list(map(score, answers))


def as_number(score: Any) -> float | str:
    """A number as a float; text that says what else it is."""
    if isinstance(score, (str, bytes)):
        return repr(score)[:80]
    try:
        return float(score)
    except (TypeError, ValueError, OverflowError):
        return f"a {type(score).__name__}"


Form = Literal["text", "messages"]
_BATCH = ("prompts", "completions", "completion_ids", "prompt_ids", "codes", "verdicts")
_TRAINER = ("trainer_state", "log_extra", "log_metric")
_WRONG_FORM = (TypeError, KeyError, IndexError, AttributeError)
_MAX_TEXT = 2000


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function, by what a call by keyword has to know."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Parameters:
        """Raises `Refused` for a function whose parameters cannot be read."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError) as error:
            raise Refused(f"its parameters cannot be read: {error}.", "Wrap it in a function.") from None
        named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
        return cls(
            tuple(one.name for one in named),
            tuple(one.name for one in named if one.default is one.empty),
            any(one.kind is one.VAR_KEYWORD for one in parameters),
        )

    def take(self, name: str) -> bool:
        """Whether the function can be called with this keyword."""
        return self.takes_any or name in self.names

    def follow_trl(self, further: Iterable[str] = ()) -> bool:
        """Whether they are those of a function for TRL, rather than of `f(answers, **options)`.

        `further` are names of columns beside `COLUMNS`.
        """
        if any(name in (*_BATCH, *_TRAINER, "environments") for name in self.names):
            return True
        return self.names[0] in (*COLUMNS, *further) if self.names else self.takes_any

    def check_columns(self, served: tuple[str, ...], columns: Mapping[str, str], who: str) -> None:
        """Raises `Refused` for a parameter that nothing fills, and for a renamed column that there is not."""
        missing = [name for name in self.required if name not in served and name not in columns]
        if "environments" in missing:
            raise Refused(
                "the function needs environments, the tool environments of TRL's environment_factory, "
                "which greenward does not have.",
                "Give the parameter a default, or use a function that judges completions.",
            )
        remedy = (
            f"There are: {', '.join(served)}. Name one of these for a parameter (columns: {{theirs: ours}}; "
            "--column theirs=ours for the audit), or put the data into `columns` of each problem."
        )
        if missing:
            raise Refused(f"the function needs {', '.join(missing)}, which {who} does not have.", remedy)
        for theirs, ours in columns.items():
            if ours not in served:
                raise Refused(
                    f"the column {ours!r}, meant for the parameter {theirs!r}, does not exist.", remedy
                )
            if not self.take(theirs):
                raise Refused(f"the function has no parameter {theirs!r} for the column {ours!r}.", remedy)


@dataclass
class Logged:
    """What a function logged during one call."""

    metrics: dict[str, list[Any]] = field(default_factory=dict)
    extra: dict[str, list[Any]] = field(default_factory=dict)

    def log_metric(self, name: str, value: float) -> None:
        """TRL's `log_metric`: a number for the batch."""
        self.metrics.setdefault(str(name), []).append(value)

    def log_extra(self, column: str, values: list[Any]) -> None:
        """TRL's `log_extra`: a column with one value for each completion."""
        self.extra.setdefault(str(column), []).extend(values)

    def to_plain(self, answers: int) -> dict[str, Any]:
        """As plain data. Raises `Refused` for a metric that is no number and a column of another length."""
        metrics = {_text(name): list(map(as_number, values)) for name, values in self.metrics.items()}
        for name, values in metrics.items():
            for value in values:
                if isinstance(value, str):
                    raise Refused(f"log_metric({name!r}) got {value}.", "Log one number for the batch.")
        for column, entries in self.extra.items():
            if len(entries) != answers:
                raise Refused(
                    f"log_extra({column!r}) got {len(entries)} values for {answers} answers.",
                    "Log one value for each completion.",
                )
        extra = {_text(column): list(map(_plain, entries)) for column, entries in self.extra.items()}
        return {"metrics": metrics, "extra": extra}


@dataclass
class TrainerState:
    """The attributes of TRL's `trainer_state` that are served: steps done, of how many, and passes."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


class TrlReward:
    """A user's function with TRL's signature, called with answers.

    `options` are further keyword arguments, `columns` gives columns under other names (theirs: ours),
    `row_columns` are those that the problems bring along. With `form` None the annotation of
    `completions` decides whether prompts and completions are texts or lists of messages; without
    one, the prompt's own form, unless the function raises on the first batch and does not on the other form.

    Raises `Refused` for a parameter that cannot be filled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        options: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
        row_columns: tuple[str, ...] = (),
        form: Form | None = None,
        who: str = "training",
    ) -> None:
        self._function = function
        self._parameters = Parameters.of(function)
        self._options = dict(options or {})
        self._renamed = dict(columns or {})
        self._columns = tuple(dict.fromkeys((*COLUMNS, *row_columns)))
        self.served = tuple(dict.fromkeys((*_BATCH, *_TRAINER, *self._columns)))
        for name in self._options:
            if not self._parameters.take(name):
                raise Refused(
                    f"its signature does not fit: it has no parameter for the option {name!r}.",
                    f"Its parameters: {', '.join(self._parameters.names)}.",
                )
        self._parameters.check_columns((*self.served, *self._options), self._renamed, who)
        self.form: Form | None = form or _annotated_form(function)

    def call(
        self, answers: list[GradedAnswer], form: Form, state: TrainerState, truth: GroundTruth = "json"
    ) -> tuple[Any, Logged]:
        """What the function returns for the answers, awaited if need be, and what it logged."""
        logged, prompts, completions = Logged(), list[Any](), list[Any]()
        for one in answers:
            messages = list(map(dict, one.messages)) or [{"role": "user", "content": one.prompt}]
            prompts.append(messages if form == "messages" else one.prompt)
            message = {"role": "assistant", "content": one.completion}
            completions.append([message] if form == "messages" else one.completion)
        by_problem = {id(answer.problem): answer.problem for answer in answers}
        columns = {key: problem_columns(problem, truth) for key, problem in by_problem.items()}
        rows = [columns[id(answer.problem)] for answer in answers]
        given = {
            **{name: [row.get(name) for row in rows] for name in self._columns},
            "prompts": prompts,
            "completions": completions,
            "completion_ids": [_token_ids(answer.completion_ids, answer.completion) for answer in answers],
            "prompt_ids": [_token_ids(answer.prompt_ids, answer.prompt) for answer in answers],
            "codes": [answer.code for answer in answers],
            "verdicts": [answer.verdict for answer in answers],
            "trainer_state": state,
            "log_extra": logged.log_extra,
            "log_metric": logged.log_metric,
        }
        given |= {theirs: given[ours] for theirs, ours in self._renamed.items()} | self._options
        taken = {name: value for name, value in given.items() if self._parameters.take(name)}
        return awaited(self._function(**taken)), logged

    def score(self, answers: list[GradedAnswer], state: TrainerState) -> tuple[Any, Logged]:
        """As `call`, in the form that the function takes."""
        if self.form is not None:
            return self.call(answers, self.form, state)
        forms: tuple[Form, Form] = ("messages", "text") if answers[0].messages else ("text", "messages")
        try:
            given, self.form = self.call(answers, forms[0], state), forms[0]
        except _WRONG_FORM as error:
            try:
                given, self.form = self.call(answers, forms[1], state), forms[1]
            except Exception:
                raise error from None
        return given

    def dry_run(self, answers: list[GradedAnswer], state: TrainerState) -> tuple[Any, Logged]:
        """As `score`, for made-up answers, which show whether the function takes texts or messages.

        Where it takes both and only one makes it tell the answers apart, it takes that one. The first three
        answers decide: the others are unusual, and what they raise says nothing of the form.
        """
        if self.form is not None:
            return self.call(answers, self.form, state)
        usual = list(islice(cycle(answers[:_USUAL]), len(answers)))
        tried: dict[Form, Any] = {}
        failed: list[Exception] = []
        for form in get_args(Form):
            try:
                given, _ = self.call(usual, form, state)
                tried[form] = list(given) if hasattr(given, "__iter__") else given
            except Exception as error:
                failed.append(error)
        if not tried:
            # The other form gives TypeError as a rule: what else was raised says more.
            raise next((error for error in failed if not isinstance(error, TypeError)), failed[0])
        telling = [form for form, scores in tried.items() if _varies(scores)]
        chosen = telling if len(telling) == 1 else list(tried)
        self.form = chosen[0] if len(chosen) == 1 else None
        return self.call(answers, chosen[0], state)


def _token_ids(ids: tuple[int, ...], text: str) -> list[int]:
    """The token ids; where no policy wrote the text, its UTF-8 bytes."""
    return list(ids or text.encode("utf-8", "replace"))


def _annotated_form(function: Callable[..., Any]) -> Form | None:
    """The form of `completions` that its annotation names (`list[str]`, `list[list[dict[str, str]]]`)."""
    parameter = inspect.signature(function).parameters.get("completions")
    said = "" if parameter is None or parameter.annotation is parameter.empty else str(parameter.annotation)
    return "messages" if "dict" in said.lower() else "text" if "str" in said else None


def _varies(scores: Any) -> bool:
    """Whether scores differ from one another; a score that is not a number counts as itself."""
    values = scores if isinstance(scores, list) else ()
    return len({str(score if score is None else as_number(score)) for score in values}) > 1


def awaited(result: Any) -> Any:
    """The result of a call, and for an async function what it resolves to. All calls share one event loop."""
    return _event_loop().run_until_complete(result) if inspect.isawaitable(result) else result


@cache
def _event_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _plain(value: Any) -> Any:
    """What a log holds of a value: numbers, texts of bounded length, lists and objects of these."""
    if hasattr(value, "tolist"):  # of NumPy or torch
        value = value.tolist()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, (list, tuple)) and len(value) <= _MAX_TEXT:
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {_text(key): _plain(one) for key, one in value.items()}
    return _text(value)


def _text(value: Any) -> str:
    return str(value)[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


RewardFunction = Callable[..., Any]
Rewards = Sequence["str | RewardFunction"] | Mapping["str | RewardFunction", float]

_REMEDY = "It must return one finite number, or None where it does not apply, for each answer."


class CustomReward(RewardTerm):
    """The term `module:function`; its signatures are documented in docs/rewards.md.

    `row_columns` are the names of the columns that the problems bring along; a function with TRL's
    signature gets them, too, and sees how many of `max_steps` are done in its `trainer_state`. A `function`
    that is given is called in this process, without a deadline.

    Raises `RewardError`, naming the function and the answer, when the function cannot be imported,
    needs a parameter that nothing fills, raises, takes longer than `timeout_seconds` for a batch, or
    gives the wrong number of scores or a score that is not a finite number.

    Its `name` in metrics is that of the recipe; where the program or notebook that runs defines the function,
    without `__main__:`, unless that is one of the `taken` names. `source` is that of `source_of`, or None.
    """

    def __init__(
        self,
        config: RewardTermConfig,
        *,
        row_columns: Sequence[str] = (),
        max_steps: int = 1,
        steps_per_epoch: float = 1.0,
        function: Callable[..., Any] | None = None,
        taken: Collection[str] = (),
    ) -> None:
        short = config.name.removeprefix("__main__:")
        name = config.name if short in taken else short
        super().__init__(name, config.weight, lambda answers, grader: self._ask(answers))
        self._timeout_seconds = config.timeout_seconds
        self._max_steps = max_steps
        self._steps_per_epoch = steps_per_epoch
        self._step = 0
        self._metrics: dict[str, list[float]] = {}
        header = {
            "options": dict(config.options),
            "columns": dict(config.columns),
            "form": None if config.completions == "auto" else config.completions,
            "row_columns": tuple(row_columns),
        }
        self._function = (
            FunctionProcess(config.name, _present, header)
            if function is None
            else _FunctionHere(config.name, function, header)
        )
        source = self._function.described["source"]
        self.source: str | None = source if isinstance(source, str) else None

    def dry_run(self, answers: Sequence[GradedAnswer]) -> None:
        """Calls the function once on made-up answers, and keeps the scores in `tried`.

        What would end the training at its first step (a column missing from `**kwargs`, a result of
        the wrong length) is an error now, and whether texts or messages are expected becomes known.
        """
        self.tried = self._ask(answers, is_dry_run=True)
        self.take_metrics()

    def begin(self, step: int) -> None:
        self._step = step

    def take_metrics(self) -> dict[str, list[float]]:
        """What the function logged by `log_metric` since the last call, by `function/name`."""
        metrics, self._metrics = self._metrics, {}
        return {f"{self.name}/{name}": values for name, values in metrics.items()}

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._function.close()

    def _ask(self, answers: Sequence[GradedAnswer], *, is_dry_run: bool = False) -> Scores:
        state = TrainerState(self._step, self._max_steps, self._step / self._steps_per_epoch)
        reply = self._function.ask((list(answers), state, is_dry_run), self._timeout_seconds)
        self.extra = reply["extra"]
        for name, values in reply["metrics"].items():
            self._metrics.setdefault(name, []).extend(values)
        scores: Scores = reply["scores"]
        when = _WHEN if is_dry_run else ""
        if len(scores) != len(answers):
            raise RewardError(
                f"{self.name}{when and ':'} {when}gave {len(scores)} scores for {len(answers)} answers.",
                remedy=_REMEDY,
            )
        for index, score in enumerate(scores):
            if score is not None and not (isinstance(score, float) and math.isfinite(score)):
                raise RewardError(
                    f"{self.name}{when and ':'} {when}gave {visible(str(score), 80)} for answer {index} "
                    f"(problem {answers[index].problem.task_id}{_shown(answers[index]) * is_dry_run}).",
                    remedy=_REMEDY,
                )
        return scores


class _FunctionHere:
    """A function of this process in the place of a `FunctionProcess`."""

    def __init__(self, name: str, function: Callable[..., Any], header: dict[str, Any]) -> None:
        self._name = name
        self._handle: Callable[[Any], Any] = lambda header: _present(function, header)
        self.described, self._handle = self.ask(header, 0.0)

    def ask(self, request: Any, timeout_seconds: float) -> Any:
        try:
            return self._handle(request)
        except Refused as refusal:
            raise RewardError(f"{self._name}: {refusal.args[0]}", remedy=refusal.args[1]) from None

    def close(self) -> None:
        pass


KINDS, _USUAL = 6, 3
MADE_UP = "right, wrong, without code, empty, cut short and with unusual characters"
_UNUSUAL = "\u00e9\u6f22\U0001f600\u200f\u2028\ufffd\x1b[0m\t\r\n"
_WHEN = "on made-up answers, before training, it "


def _shown(answer: GradedAnswer) -> str:
    """The text of an answer, for a message."""
    return f", text {answer.completion!r:.80}"


def made_up_answers(problem: Problem, number: int) -> list[GradedAnswer]:
    """`number` answers to a problem that no model wrote, of the kinds in `MADE_UP` by turns."""
    known = (one for one in problem.tests if not isinstance(getattr(one, "expected", None), Expected))
    problem = replace(problem, tests=tuple(known))
    tests = len(problem.tests) or 1
    program = problem.reference or f"{problem.starter_code}    pass\n"
    wrong = f"{problem.starter_code}    return None\n"
    failed = Verdict(Status.FAILED, (False,) * tests)
    kinds = (
        (f"```python\n{program}```\n", program, Verdict(Status.PASSED, (True,) * tests)),
        (f"```python\n{wrong}```\n", wrong, failed),
        ("I do not know the answer to this question.", None, Verdict(Status.NO_CODE, (False,) * tests)),
        ("", None, Verdict(Status.NO_CODE, (False,) * tests)),
        (f"```python\n{program[: len(program) // 2]}", program[: len(program) // 2], failed),
        (f"{_UNUSUAL}```python\n{wrong}# {_UNUSUAL}```\n", f"{wrong}# {_UNUSUAL}", failed),
    )
    prompt = problem.starter_code or problem.prompt
    return [GradedAnswer(problem, prompt, *kinds[index % len(kinds)]) for index in range(number)]


def _present(function: Callable[..., Any], header: dict[str, Any]) -> tuple[Reply, Handler]:
    options, columns, row_columns = header["options"], header["columns"], header["row_columns"]
    trl = None
    if Parameters.of(function).follow_trl((*row_columns, *columns)):
        trl = TrlReward(
            function, options=options, columns=columns, row_columns=row_columns, form=header["form"]
        )
    else:
        try:
            inspect.signature(function).bind([], **options)
        except TypeError as error:
            raise Refused(
                f"its signature {inspect.signature(function)} does not fit: {error}.",
                "Write f(answers, **options) or, as in TRL, f(prompts, completions, **columns). A function "
                "that makes reward functions is to be called in a module of yours: reward = get_reward(…).",
            ) from None

    def handle(request: tuple[list[GradedAnswer], TrainerState, bool]) -> Reply:
        answers, state, is_dry_run = request

        def score(answers: list[GradedAnswer]) -> tuple[Any, Logged]:
            if trl is None:
                return awaited(function(answers, **options)), Logged()
            return (trl.dry_run if is_dry_run else trl.score)(answers, state)

        try:
            scores, logged = score(answers)
            return {"scores": _as_numbers(scores), **logged.to_plain(len(answers))}
        except Refused:
            raise
        except Exception as error:
            served = "" if trl is None else f"It is called with: {', '.join(trl.served)}.\n"
            where = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
            own = [one for one in where if one.filename == where[0].filename]
            told = (
                *own[:1],
                *own[-1:],
                *where[-1:],
            )  # where the user's code begins and ends, and what raised
            shown = traceback.format_list([one for one in where if any(one is other for other in told)])
            explained = _explanation(error, answers, score, show_text=is_dry_run)
            raise Refused(
                (_WHEN if is_dry_run else "it ") + explained, f"{served}{''.join(shown)}".strip()
            ) from None

    try:
        source = source_of(function)
    except (OSError, TypeError, KeyError):
        source = None
    return {"trl": trl is not None, "source": source}, handle


def _as_numbers(scores: Any) -> list[float | str | None]:
    """Scores as floats and None; what is neither stays text, for the caller to refuse by index."""
    try:
        if isinstance(scores, (str, Mapping, Set)):
            raise TypeError
        given = list(scores)
    except TypeError:
        raise Refused(
            f"it returned {type(scores).__name__}, not a list.", "Return one number or None for each answer."
        ) from None
    return [score if score is None else as_number(score) for score in given]


def _explanation(
    error: Exception,
    answers: list[GradedAnswer],
    score: Callable[[list[GradedAnswer]], Any],
    *,
    show_text: bool,
) -> str:
    """What was raised, and by which answer: the first that raises when scored alone."""
    message = f"raised {type(error).__name__}: {error}"
    for index, answer in enumerate(answers):
        try:
            score([answer])
        except Exception:
            text = _shown(answer) if show_text else ""
            return f"{message} (answer {index}, problem {answer.problem.task_id}{text})."
    return f"{message} (no single answer raises when scored alone)."


def reward_terms(rewards: Rewards, functions: dict[str, RewardFunction]) -> list[dict[str, Any]]:
    """The section `rewards` of a recipe; `functions` gets the callables among them, by name."""
    if isinstance(rewards, str) or not isinstance(rewards, Iterable):
        raise ConfigError(
            f"rewards: expected a list or a mapping to weights, found {rewards!r:.200}.",
            remedy="Put a single term or function into a list.",
        )
    weights = rewards if isinstance(rewards, Mapping) else dict.fromkeys(rewards, 1.0)
    terms = []
    for reward, weight in weights.items():
        if not isinstance(reward, str) and not callable(reward):
            raise ConfigError(f"rewards: expected the name of a term or a function, found {reward!r}.")
        name = reward if isinstance(reward, str) else name_in(functions, reward)
        terms.append({"name": name, "weight": weight})
    return terms


def name_in(functions: dict[str, Callable[..., Any]], function: Callable[..., Any]) -> str:
    """The name `module:function` of a function, which `functions` gets under it. Raises `ConfigError`."""
    name = function_name(function)
    if name in functions:
        raise ConfigError(f"two functions are called {name}.", remedy="Give each a name of its own.")
    functions[name] = function
    return name


def function_name(function: RewardFunction) -> str:
    """The name `module:function` of a reward function."""
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
