"""The package as its users install it: a wheel, without the repository around it."""

import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from greenward.models.kernels.compiling import LEVELS, compiler
from tiny_model import TINY_STUDY

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_runs_from_an_installed_wheel(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: object) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, command)),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    pip = ("-m", "pip", "--disable-pip-version-check")
    run(sys.executable, *pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    (wheel,) = tmp_path.glob("greenward-*.whl")
    run(python, *pip, "install", "-q", "--no-deps", "--no-index", wheel)
    # All that the wheel needs, without the editable installation of the repository beside it.
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip()
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import greenward; print(greenward.__file__)").stdout
    assert where.startswith(packages)
    if wheel.stem.endswith("-any"):
        assert compiler() is None or platform.machine() not in LEVELS
    else:  # the kernels of the wheel serve where there is no compiler
        environment |= {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        said = run(python, "-c", "from greenward.models.kernels import build; print(build.build().reason)")
        assert said.stdout.startswith("prebuilt for ")

    greenward = tmp_path / "venv/bin/greenward"
    run(greenward, "demo", "--quick", "--seeds", "0", "--output", "demo", *TINY_STUDY)
    report = json.loads((tmp_path / "demo/report.json").read_text())
    table = next(one["blocks"][0] for one in report["sections"] if one["title"] == "Before and after")
    arms = ["Before", "After GRPO", "Rejection sampling", "Control"]
    differences = [
        "Gain of GRPO",
        "Change of Rejection sampling",
        "GRPO minus Rejection sampling",
        "Change of Control",
        "GRPO minus Control",
    ]
    assert [row[0] for row in table["rows"]] == arms + differences
