"""Somebody else's folders, files, links, mounts and roots as the place to write to: refused, nothing changed.

The options are those of all commands whose type is `OutputFolder` or `OutputFile`, so that a new command is
tested as well.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from greenward.cli.main import cli, main
from greenward.cli.options import OutputFile, OutputFolder
from greenward.cli.rldk import main as rldk_main
from greenward.cli.rldk import rldk
from greenward.runs.directory import RunDirectory
from greenward.runs.output import KINDS, MARK, claim_folder

NAMED_LIKE_AN_OUTPUT = re.compile(r"out(put)?(_dir)?$|_(file|folder|dir)$|^(logs|alarms|folder|to)$")
# What is named so is read, or is a place for new files only (tests/cli/test_init_command.py).
READ = {("greenward show", "folder"), ("greenward runs", "folder"), ("greenward init", "folder")}


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    for own, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {own}")
        else:
            yield f"{name} {own}", command


COMMANDS = [*commands(cli, "greenward"), *commands(rldk, "rldk")]
OUTPUTS = [
    pytest.param(name, command, option, id=f"{name} {option.opts[0]}")
    for name, command in COMMANDS
    for option in command.params
    if isinstance(option.type, OutputFolder | OutputFile)
]


def test_each_option_that_names_an_output_is_checked():
    others = {
        (name, str(option.name))
        for name, command in COMMANDS
        for option in command.params
        if isinstance(option.type, click.Path | click.File | click.types.StringParamType)
        and not isinstance(option.type, OutputFolder | OutputFile)
        and NAMED_LIKE_AN_OUTPUT.search(str(option.name))
    }
    assert others == READ
    assert len(OUTPUTS) >= 25


def build_world(world: Path) -> dict[str, str]:
    """Fills `world` with what is not greenward's; the places by what they are."""
    theirs = world / "theirs"
    for folder in ("src", "runs", ".git", "checkpoints/step_000001", "rollouts", "reports"):
        (theirs / folder).mkdir(parents=True)
    files = {
        "README.md": "# Theirs", "report.md": "their report", "report.html": "<p>theirs", "report.json": "{}",
        "summary.json": '{"status": "finished"}', "config.yaml": "name: theirs", "metrics.jsonl": '{"step": 1}\n',
        "settings.json": '{"theme": "dark"}', "results.jsonl": '{"a": 1}\n', "provenance.json": '{"sessions": []}',
        "manifest.json": '{"name": "web app"}', "src/main.py": "print(1)", ".git/HEAD": "ref: refs/heads/main",
        "rollouts/step_000001.jsonl": "{}\n", "diagnosis.html": "theirs", "metrics.csv": "step,loss\n1,2\n",
        "checkpoints/step_000001/model.safetensors": "weights", "reward_health.md": "theirs",
        "training_metrics.jsonl": '{"step": 1}\n', "job.sh": "#!/bin/sh\n",
    }  # fmt: skip
    for name, text in files.items():
        (theirs / name).write_text(text)
    for name, entries in {
        "only_hidden": [".env"],
        "only_a_folder": ["src/"],
        "a_config": ["config.yaml"],
        "a_log": ["metrics.jsonl"],
        "a_report": ["report.html"],
        "a_summary": ["summary.json"],
        "a_repository": [".git/"],
        "like_a_run": ["config.yaml", "provenance.json", "metrics.jsonl", "rollouts/"],
        "like_an_evaluation": ["settings.json", "samples.jsonl", "results.jsonl", "summary.json"],
        "like_a_model": ["config.json", "model.safetensors", "tokenizer.json"],
        "like_problems": ["train.json", "held_out.json", "manifest.json"],
        "like_a_study": ["seed_0/config.yaml", "seed_1/config.yaml"],
        "with_an_empty_mark": [MARK, "thesis.tex"],
    }.items():
        for entry in entries:
            place = world / name / entry
            (place if entry.endswith("/") else place.parent).mkdir(parents=True, exist_ok=True)
            if not entry.endswith("/"):
                place.write_text("{}\n")
    (world / "empty").mkdir()
    (world / "home").mkdir()
    (world / "shared").mkdir()
    (world / "shared").chmod(0o1777)
    (world / "file").write_text("theirs")
    (world / "to_folder").symlink_to("theirs")
    (world / "to_empty").symlink_to("empty")
    (world / "to_file").symlink_to("file")
    (world / "to_nothing").symlink_to("nothing")
    (world / "to_itself").symlink_to("to_itself")
    (world / "to_root").symlink_to("/")
    (world / "to_device").symlink_to("/dev/null")
    (world / "to_link").symlink_to("to_folder")
    os.mkfifo(world / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(".", os.O_RDONLY)
        os.chdir(world)  # the name of a socket is short
        listener.bind("socket")
        os.fchdir(here)
        os.close(here)
    for kind in KINDS:
        claim_folder(world / f"ours_{kind}", kind)
        (world / f"ours_{kind}" / "rollouts").symlink_to("../theirs")
    places = {
        name: str(world / name)
        for name in os.listdir(world)
        if name not in ("empty", "pipe", "socket") and not name.startswith("ours_")
    }
    return places | {
        "a named pipe": str(world / "pipe"),
        "a socket": str(world / "socket"),
        **{f"a link out of {kind}": str(world / f"ours_{kind}") for kind in KINDS},
        "through a link out of a run": str(world / "ours_run" / "rollouts" / "new"),
        "through a dangling link": str(world / "to_nothing" / "new"),
        "through a loop": str(world / "to_itself" / "new"),
        "below a file": str(world / "file" / "new"),
        "far below a file": str(world / "file" / "a" / "b" / "new"),
        "a folder's file": str(theirs / "README.md"),
        "a folder's folder": str(theirs / "src"),
        "a folder of checkpoints": str(theirs / "checkpoints"),
        "the inside of a repository": str(theirs / ".git"),
        "the current folder": ".",
        "the folder above": "..",
        "far above": "../" * 30,
        "round about": str(theirs / "src" / ".." / ".." / "theirs"),
        "above a link": str(world / "to_folder" / ".." / "theirs"),
        "with a slash": f"{world / 'to_folder'}/",
        "with a dot": f"{world / 'to_folder'}/.",
        "a long name": str(world / ("x" * 300)),
        "a long path": str(world / "/".join(["x" * 200] * 30)),
        "a long name below": str(world / "new" / ("x" * 300)),
        "no name": "",
        "a null character": f"{world}/a\0b",
        "the root": "/",
        "the root, doubled": "//",
        "a mount of the kernel": "/proc",
        "a process": "/proc/self",
        "the memory of a process": "/proc/self/mem",
        "a folder of devices": "/dev",
        "a device": "/dev/null",
        "standard output": "/dev/stdout",
        "the settings of the system": "/etc",
        "the programs of the system": "/usr/bin",
        "the interpreter": os.path.realpath(os.sys.executable),
    }


def snapshot(world: Path) -> dict[str, object]:
    """Names, types, modes, times and contents of all that lies in a folder."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(world):
        for path in (Path(folder), *(Path(folder, name) for name in (*names, *files))):
            status = path.lstat()
            content: object = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            found[str(path)] = (status.st_mode, status.st_ino, status.st_nlink, status.st_mtime_ns, content)
    return found


def exit_code(name: str, arguments: list[str]) -> int:
    program, *inner = name.split()
    with pytest.raises(SystemExit) as ended:
        if program == "greenward":
            main([*inner, *arguments])
        else:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("sys.argv", ["rldk", *inner, *arguments])
                rldk_main()
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = tmp_path_factory.mktemp("world")
    return world, build_world(world)


@pytest.fixture
def places(world, monkeypatch):
    folder, places = world
    assert len(places) >= 40
    monkeypatch.chdir(folder / "theirs" / "src")
    monkeypatch.setenv("HOME", str(folder / "home"))
    return places


def required(command: click.Command, world: Path) -> list[str]:
    """Values for what a command cannot do without: files of the world, and a name that is none."""
    given: list[str] = []
    for one in command.params:
        if one.required:
            is_path = isinstance(one.type, click.Path)
            value = str(world / "theirs") if is_path else "quickstart"
            given += [value] if isinstance(one, click.Argument) else [one.opts[0], value]
    return given


@pytest.mark.parametrize(("name", "command", "option"), OUTPUTS)
def test_no_command_writes_into_what_is_somebody_elses(name, command, option, world, places, capsys):
    flags = [["--overwrite"]] if any(one.name == "overwrite" for one in command.params) else []
    needed = required(command, world[0])
    before, listed = snapshot(world[0]), {path: sorted(os.listdir(path)) for path in ("/", "/etc")}
    for what, place in places.items():
        for more in ([], *flags):
            code = exit_code(name, [f"{option.opts[0]}={place}", *more, "--", *needed])
            said = capsys.readouterr()
            assert code == 2, f"{what} ({place}): exit code {code}: {said}"
            assert "Traceback" not in said.err, what
            named = place if what != "a long path" else "x" * 200
            assert str(Path(named)).partition("\0")[0] in said.err or not place, f"{what}: {said.err}"
    assert snapshot(world[0]) == before
    assert {path: sorted(os.listdir(path)) for path in listed} == listed
    assert stat.S_ISCHR(os.lstat("/dev/null").st_mode) and os.path.islink("/dev/stdout")


@pytest.mark.parametrize(("name", "command", "option"), OUTPUTS)
def test_no_command_writes_into_a_folder_of_another_kind(name, command, option, tmp_path, capsys, world):
    if isinstance(option.type, OutputFile) or "report" in option.type.kinds:
        return  # a file is no folder of any kind, and reports may lie in each
    needed = required(command, world[0])
    for kind in KINDS.keys() - set(option.type.kinds):
        claim_folder(tmp_path / kind, kind)
        before = snapshot(tmp_path / kind)
        assert exit_code(name, [option.opts[0], str(tmp_path / kind), "--", *needed]) == 2
        assert f"found {KINDS[kind].words}" in capsys.readouterr().err
        assert snapshot(tmp_path / kind) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
@pytest.mark.parametrize("mode", [0o000, 0o444, 0o555])
def test_a_folder_that_this_user_may_not_write_is_refused(mode, tmp_path, capsys):
    locked = tmp_path / "locked"
    locked.mkdir(mode=mode)
    try:
        for place in (locked, locked / "new"):
            assert exit_code("greenward train", ["--output", str(place), "quickstart"]) == 2
            assert str(locked) in capsys.readouterr().err
    finally:
        locked.chmod(0o700)
    assert not list(locked.iterdir())


@pytest.fixture
def strangers_run(tmp_path):
    """A run as somebody else sent it, with a report and links that are theirs."""
    path = tmp_path / "theirs" / "sent"
    with RunDirectory.create(path, {"algorithm": {"name": "grpo"}, "name": "theirs"}) as run:
        for step in range(1, 30):
            run.metrics.append(step, {"loss": 1.0, "reward/mean": 0.5})
        run.write_rollouts(
            1, [{"task_id": "a", "answer": "x", "status": "passed", "rewards": {"policy": 1.0}}]
        )
    (path / "report.html").write_text("their notes")
    (path / "rollouts-2.html").write_text("theirs")
    (path / "report.md").symlink_to("../secret")
    (tmp_path / "theirs" / "secret").write_text("theirs")
    (tmp_path / "mine").mkdir()
    return path


@pytest.mark.parametrize(
    "arguments",
    [
        ["greenward report", "--format", "html"],
        ["greenward report"],
        ["greenward rollouts"],
        ["greenward diagnose"],
        ["rldk reward-health", "--run"],
        ["rldk evals", "--run"],
        ["greenward monitor", "--once"],
    ],
)
def test_a_run_that_is_only_read_does_not_change(arguments, strangers_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path / "mine")
    before = snapshot(tmp_path / "theirs")
    name, *options = arguments
    for _ in range(2):  # reports of greenward's own are written anew
        code = exit_code(name, [*options, str(strangers_run)])
        assert code == 0 or "html" not in options, capsys.readouterr().err
    assert snapshot(tmp_path / "theirs") == before
    if "html" in options:
        assert (tmp_path / "mine" / "reports" / "sent" / MARK).is_file()
        assert capsys.readouterr().out.splitlines()[-1].startswith("reports/sent/")


def test_a_run_with_hostile_links_is_refused_as_the_place_of_its_report(strangers_run, tmp_path, capsys):
    before = snapshot(tmp_path)
    output = ["--format", "html", "--output", str(strangers_run)]
    assert exit_code("greenward report", [str(strangers_run), *output]) == 2
    assert "leads out of it" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ("greenward report PATH --format html", "reports/sent"),
        ("greenward report PATH OTHER --format html", "reports/overlay"),
        ("greenward problems from-source PATH", "mined"),
        ("greenward train quickstart", "runs/quickstart"),
        ("greenward demo", "runs/demo"),
        ("greenward sweep quickstart seed=0,1", "runs/sweep"),
    ],
)
def test_the_usual_place_is_refused_where_it_is_somebody_elses(
    arguments, place, strangers_run, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path / "mine")
    shutil.copytree(strangers_run, tmp_path / "theirs" / "other", symlinks=True)
    paths = {"PATH": str(strangers_run), "OTHER": str(tmp_path / "theirs" / "other")}
    program, inner, *rest = [paths.get(one, one) for one in arguments.split()]
    usual = tmp_path / "mine" / place
    usual.parent.mkdir(parents=True, exist_ok=True)
    for make in (
        lambda: (
            usual.mkdir(),
            (usual / "report.html").write_text("theirs"),
            (usual / "a.py").write_text("a"),
        ),
        lambda: usual.symlink_to(tmp_path / "theirs"),
        lambda: usual.symlink_to(tmp_path / "nothing"),
        lambda: usual.write_text("theirs"),
    ):
        make()
        before = snapshot(tmp_path)
        assert exit_code(f"{program} {inner}", rest) == 2
        assert place in capsys.readouterr().err
        assert snapshot(tmp_path) == before
        usual.rename(tmp_path / f"old-{len(list(tmp_path.iterdir()))}")
