"""Fetches the libraries of the page of `greenward ui` from the npm registry: make vendor

Files are copied byte for byte. VENDOR.json says of each package its version, its licence, the integrity that
the registry gives, which is checked, and the SHA-256 of each file, which a test recomputes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "src" / "greenward" / "ui" / "static" / "vendor"
PACKAGES = {
    ("lit-html", "3.3.3"): (
        "LICENSE",
        "lit-html.js",
        "directive.js",
        "directive-helpers.js",
        "directives/repeat.js",
    ),
    ("uplot", "1.6.32"): ("LICENSE", "dist/uPlot.iife.min.js", "dist/uPlot.min.css"),
}


def npm(*arguments: str, folder: Path | None = None) -> str:
    """What a command of npm prints."""
    return subprocess.run(("npm", *arguments), cwd=folder, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Fetch, check, copy and record all packages."""
    record = {}
    shutil.rmtree(FOLDER, ignore_errors=True)
    for (name, version), wanted in PACKAGES.items():
        integrity = json.loads(npm("view", f"{name}@{version}", "dist.integrity", "--json"))
        with tempfile.TemporaryDirectory() as temporary:
            packed = Path(temporary) / npm("pack", f"{name}@{version}", folder=Path(temporary)).strip()
            found = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
            if integrity != f"sha512-{found}":
                raise SystemExit(f"{name}@{version}: expected {integrity}, found sha512-{found}")
            hashes = {}
            with tarfile.open(packed) as archive:
                licence = json.load(archive.extractfile("package/package.json"))["license"]  # type: ignore[arg-type]
                for file in wanted:
                    content = archive.extractfile(f"package/{file}").read()  # type: ignore[union-attr]
                    # git ignores folders called dist
                    file = file.removeprefix("dist/")
                    target = FOLDER / name / file
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content)
                    hashes[file] = hashlib.sha256(content).hexdigest()
        record[name] = {"version": version, "license": licence, "integrity": integrity, "sha256": hashes}
    (FOLDER / "VENDOR.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
