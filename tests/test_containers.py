"""The files that make container images, as far as they can be read without building one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONTAINERS = ROOT / "containers"
CPU = "https://download.pytorch.org/whl/cpu"


def instructions() -> list[tuple[str, str]]:
    """(instruction, arguments) of the Dockerfile, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", (CONTAINERS / "Dockerfile").read_text()).replace("\\\n", " ")
    return [
        (line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line.strip()
    ]


def sections() -> dict[str, str]:
    """The header ("") and the sections of the Apptainer definition by name."""
    text = re.sub(r"(?m)^#.*\n", "", (CONTAINERS / "greenward.def").read_text())
    header, *rest = re.split(r"(?m)^%(\w+)\n", text)
    return {"": header, **dict(zip(rest[::2], rest[1::2], strict=True))}


def of(name: str) -> list[str]:
    return [arguments for instruction, arguments in instructions() if instruction == name]


def test_both_images_stand_on_one_small_pinned_python_that_the_project_supports():
    bases = {arguments.split()[0] for arguments in of("FROM")}
    (base,) = bases
    version = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-bookworm", base)
    assert version and version[1] in ("3.10", "3.11", "3.12", "3.13")
    header = dict(line.split(": ", 1) for line in sections()[""].splitlines() if line)
    assert header == {"Bootstrap": "docker", "From": base}


def test_the_image_runs_greenward_as_an_ordinary_user_in_a_folder_that_is_his():
    last = instructions()[[name for name, _ in instructions()].index("FROM", 1) :]
    order = [name for name, _ in last]
    assert of("USER") == ["greenward"] and "useradd --uid 1000" in dict(last)["RUN"]
    assert "--owner greenward /work" in dict(last)["RUN"] and order.index("RUN") < order.index("USER")
    assert of("WORKDIR") == ["/work"]
    assert [json.loads(arguments) for arguments in of("ENTRYPOINT")] == [["greenward"]]
    assert sections()["runscript"].split() == ["exec", "greenward", '"$@"']


def test_the_cpu_build_is_the_default_and_an_argument_chooses_another():
    assert f"TORCH_INDEX={CPU}" in of("ARG")
    assert f"TORCH_INDEX={CPU}" in sections()["arguments"]
    assert all('"$TORCH_INDEX" "$EXTRAS"' in one for one in of("RUN") if "install.sh" in one)
    assert '"{{ TORCH_INDEX }}" "{{ EXTRAS }}"' in sections()["post"]


def test_what_is_copied_exists_and_is_not_ignored():
    sources = [word for one in of("COPY") if "--from" not in one for word in one.split()[:-1]]
    ignored = (CONTAINERS / "Dockerfile.dockerignore").read_text().splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    assert ignored[0] == "*"
    for source in sources:
        assert (ROOT / source).exists() and any(fnmatch(source, one) for one in kept), source
    listed = [line.split() for line in sections()["files"].splitlines() if line.strip()]
    assert {source for source, _ in listed} == set(sources)
    assert all((ROOT / source).exists() and target == f"/source/{source}" for source, target in listed)


@pytest.mark.slow
def test_a_wheel_is_built_from_what_is_copied(tmp_path):
    for one in of("COPY"):
        *sources, target = one.split()
        if sources[0].startswith("--from"):
            continue
        place = tmp_path / target.strip("/")
        for source in sources:
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / source, place)
    command = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
    )
    subprocess.run((*command, tmp_path / "source"), check=True)
    (wheel,) = tmp_path.glob("greenward-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {"greenward/configs/quickstart.yaml", "greenward/models/kernels/kernels.c"} <= set(names)


@pytest.mark.parametrize("script", ["install.sh", "post", "RUN"])
def test_shell_parts_are_read_by_a_shell(script):
    text = {"install.sh": (CONTAINERS / "install.sh").read_text(), "post": sections()["post"]}.get(script)
    text = text or "\n".join(of("RUN"))
    assert subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True).stderr == ""
    if script == "install.sh" and shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout


def test_the_installation_takes_every_version_from_the_lock(tmp_path):
    """With stand-ins for Python's environments: which commands of pip run, and what pins them."""
    pip = f"#!{sys.executable}\n" + (
        "import sys, pathlib, shutil\n"
        "arguments = sys.argv[1:]\n"
        f"log = open({str(tmp_path / 'log')!r}, 'a'); print(*arguments, file=log)\n"
        "if arguments[0] == 'wheel':\n"
        "    folder = pathlib.Path(arguments[arguments.index('--wheel-dir') + 1])\n"
        "    (folder / 'greenward-1-py3-none-any.whl').touch()\n"
        "    shutil.copy(folder / 'pins.txt', " + repr(str(tmp_path / "pins.txt")) + ")\n"
    )
    (tmp_path / "pip").write_text(pip)
    (tmp_path / "pip").chmod(0o755)
    (tmp_path / "python3").write_text(f'#!/bin/sh\nmkdir -p "$3/bin"; cp {tmp_path}/pip "$3/bin/pip"\n')
    (tmp_path / "python3").chmod(0o755)
    command = ["sh", CONTAINERS / "install.sh", ROOT, tmp_path / "my venv", CPU, "hf,peft"]
    done = subprocess.run(command, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hatchling, wheel, torch, package = (tmp_path / "log").read_text().splitlines()
    assert "--no-build-isolation" in wheel and "hatchling" in hatchling
    assert torch.endswith(f"--index-url {CPU} torch") and package.endswith("-1-py3-none-any.whl[hf,peft]")
    assert all("pins.txt" in line for line in (hatchling, torch, package))
    assert "requirements/constraints.txt" in torch
    locked = re.findall(r"(?m)^([\w.-]+)==(\S+)", (ROOT / "requirements/lock.txt").read_text())
    pins = (tmp_path / "pins.txt").read_text()
    assert "--hash" not in pins and "\\" not in pins
    assert re.findall(r"(?m)^([\w.-]+)==(\S+)", pins) == locked and len(locked) > 50
