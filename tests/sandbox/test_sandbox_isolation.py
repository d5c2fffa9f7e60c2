"""Levels: which layers are in force, what is demanded, and what a machine without them says."""

from __future__ import annotations

import os
import subprocess
from textwrap import dedent

import pytest

from greenward.common.errors import SandboxError
from greenward.sandbox.isolation import (
    ALL_LAYERS,
    CORE_LAYERS,
    PORTABLE_LAYERS,
    Isolation,
    Layer,
    Level,
    level_of,
)
from greenward.sandbox.pool import LocalExecutor, inspect_sandbox
from greenward.sandbox.protocol import Call, Job

HERE, _ = inspect_sandbox()
needs = {
    level: pytest.mark.skipif(
        not HERE.level.suffices(level), reason=f"this machine offers level {HERE.level}"
    )
    for level in Level
}


def run(executor: LocalExecutor, code: str):
    ((_, result),) = executor.run([Job(code, "f", (Call((3,)),))])
    return result


@pytest.mark.parametrize(
    ("layers", "level"),
    [
        (ALL_LAYERS, Level.A),
        (CORE_LAYERS, Level.B),
        (ALL_LAYERS - {Layer.SECCOMP}, Level.C),
        (ALL_LAYERS - {Layer.LANDLOCK}, Level.C),
        (PORTABLE_LAYERS, Level.C),
        (frozenset(), Level.D),
        (ALL_LAYERS - {Layer.RESOURCES}, Level.D),
    ],
)
def test_a_level_is_what_all_its_layers_add_up_to(layers, level):
    assert level_of(layers) is level


def test_a_level_suffices_for_itself_and_for_those_below():
    assert [Level.B.suffices(level) for level in Level] == [False, True, True, True]


@needs[Level.A]
def test_all_layers_hold_here_and_every_verdict_names_them():
    with LocalExecutor(1) as executor:
        assert executor.isolation.level is Level.A
        assert executor.isolation.missing == {}
        assert set(run(executor, "def f(x): return x").layers) == {layer.value for layer in Layer}


@needs[Level.B]
@pytest.mark.parametrize("left_out", [Layer.LANDLOCK, Layer.SECCOMP])
def test_below_the_required_level_nothing_starts_and_the_error_names_what_is_missing(left_out):
    with pytest.raises(SandboxError) as refusal:
        LocalExecutor(1, layers=ALL_LAYERS - {left_out})
    assert left_out.value in refusal.value.message
    assert "sandbox.require=C" in str(refusal.value)


def test_a_machine_that_refuses_namespaces_gets_the_next_level_and_says_why(monkeypatch):
    refuse = (
        "import greenward.sandbox.inside.layers as n\n"
        "def refuse(): raise PermissionError(1, 'unshare: not on this machine')\n"
        "n.leave_the_host = refuse\n"
    )
    from greenward.sandbox import workers

    start = workers._BOOTSTRAP.replace("; from", f"; exec({refuse!r}); from")
    monkeypatch.setattr(workers, "_BOOTSTRAP", start)
    with LocalExecutor(2, require=Level.C) as executor:
        assert executor.isolation.level in (Level.B, Level.C)
        assert "not on this machine" in executor.isolation.reason(Layer.NAMESPACES)
        assert run(executor, "def f(x): return x").results[0].value == 3
        with pytest.raises(SandboxError, match="user namespaces"):
            executor.isolation.demand(Level.A)


@needs[Level.B]
def test_a_layer_that_the_kernel_takes_but_that_does_not_hold_counts_as_missing(monkeypatch):
    from greenward.sandbox import workers

    pretend = "import greenward.sandbox.inside.layers as l\nl.restrict_self = lambda ruleset: None\n"
    start = workers._BOOTSTRAP.replace("; from", f"; exec({pretend!r}); from")
    monkeypatch.setattr(workers, "_BOOTSTRAP", start)
    with pytest.raises(SandboxError, match="folders outside can be listed"):
        LocalExecutor(1)


def test_the_refusal_says_how_to_allow_each_missing_layer():
    isolation = Isolation((Layer.RESOURCES,), {"landlock": "this kernel has no Landlock"})
    with pytest.raises(SandboxError) as refusal:
        isolation.demand(Level.B)
    assert "no Landlock" in refusal.value.message
    assert "Linux 5.13" in str(refusal.value.remedy)


def test_on_a_mac_the_refusal_names_the_level_and_what_can_be_done_there(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    isolation = Isolation(tuple(PORTABLE_LAYERS), {})
    with pytest.raises(SandboxError) as refusal:
        isolation.demand(Level.B)
    remedy = str(refusal.value.remedy)
    assert "this machine offers C" in refusal.value.message
    assert "sandbox.require=C" in remedy and "sandbox.backend=http" in remedy
    assert "sysctl" not in remedy  # a setting of Linux, which a Mac has not


@needs[Level.A]
def test_the_view_of_the_machine_is_the_interpreter_and_an_empty_folder():
    code = dedent(
        """
        import os
        def f(x):
            return [os.getcwd(), os.listdir("."), os.path.exists("/home"), os.path.exists("/etc/passwd"),
                    os.path.exists(os.__file__), os.access(os.path.dirname(os.__file__), os.W_OK), os.getuid()]
        """
    )
    with LocalExecutor(1) as executor:
        assert run(executor, code).results[0].value == ["/answer", [], False, False, True, False, 65534]


@pytest.mark.skipif(Layer.SECCOMP not in HERE.layers, reason="this kernel offers no seccomp filters")
@pytest.mark.filterwarnings("ignore:.*isolation level")
@pytest.mark.parametrize("left_out", [(), (Layer.LANDLOCK,), (Layer.LANDLOCK, Layer.NAMESPACES)], ids=str)
def test_an_answer_sends_signals_to_nobody_but_itself(left_out):
    """Seccomp alone sees to it: not each kernel's Landlock keeps signals inside."""
    code = dedent(
        """
        import os
        def f(outside):
            met = []
            for send in (
                lambda: os.kill(os.getppid(), 0), lambda: os.kill(os.getpid() - 1, 0), lambda: os.kill(0, 0),
                lambda: os.kill(-1, 0), lambda: os.killpg(os.getpgrp(), 0), lambda: os.kill(outside, 0),
                lambda: os.kill(os.getpid(), 0),
            ):
                try:
                    send()
                except OSError as error:
                    met.append(type(error).__name__)
                else:
                    met.append("sent")
            return met
        """
    )
    with LocalExecutor(2, require=Level.C, layers=ALL_LAYERS - set(left_out)) as executor:
        ((_, result),) = executor.run([Job(code, "f", (Call((os.getpid(),)),))])
    assert Layer.SECCOMP.value in result.layers
    assert result.results[0].value == ["PermissionError"] * 6 + ["sent"]


def test_a_package_that_is_not_there_is_refused_by_name():
    with pytest.raises(SandboxError, match="no_such_package"):
        LocalExecutor(1, packages=["no_such_package"])


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@needs[Level.A]
def test_layers_need_no_privilege():
    source = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../src"))
    as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c"]
    script = (
        "from greenward.sandbox.pool import LocalExecutor\n"
        "with LocalExecutor(1) as executor: print(executor.isolation.level.value)"
    )
    try:
        able = subprocess.run(
            [*as_nobody, "import sys; assert sys.version_info >= (3, 10)"], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("setpriv is not installed")
    if able.returncode != 0:
        pytest.skip("the user nobody has no Python")
    done = subprocess.run(
        [*as_nobody, script], capture_output=True, text=True, cwd="/", env={"PYTHONPATH": source}
    )
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("the user nobody cannot read this checkout")
    assert done.stdout.strip() == "A", done.stderr
