"""Repositories of others: read as git reads them, and nothing that they bring along is run or followed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import greenward
from greenward.common.errors import RepositoryError
from greenward.runs import repository as module
from greenward.runs.machine import _git_state
from greenward.runs.repository import Repository

TEXTS = {
    "shop/prices.py": "RATE = 2\n",
    "shop/deep/er/fees.py": "FEE = 1\n",
    "tests/test_shop.py": "# café\n",
    "a name with spaces.txt": "",
    ".gitattributes": "* filter=canary diff=canary merge=canary text\n",
    ".gitconfig": '[filter "canary"]\n\tsmudge = touch {canary}/tracked_home\n\trequired = true\n',
    ".config/git/config": '[filter "canary"]\n\tsmudge = touch {canary}/tracked_xdg\n\trequired = true\n',
}
HOSTILE = """\
[core]
	fsmonitor = touch {canary}/fsmonitor; false
	hooksPath = {canary}/hooks
	pager = touch {canary}/pager
	editor = touch {canary}/editor
	sshCommand = touch {canary}/ssh
	gitProxy = touch {canary}/proxy
	worktree = {canary}/elsewhere
	attributesFile = {canary}/attributes
	alternateRefsCommand = touch {canary}/alternates
[include]
	path = {canary}/included
[filter "canary"]
	clean = touch {canary}/clean; cat
	smudge = touch {canary}/smudge; cat
	process = touch {canary}/process; cat
	required = true
[diff]
	external = touch {canary}/external
[diff "canary"]
	command = touch {canary}/diff
	textconv = touch {canary}/textconv
[alias]
	status = !touch {canary}/alias
	ls-tree = !touch {canary}/alias
[remote "origin"]
	url = ext::sh -c touch% {canary}/remote
	promisor = true
	uploadpack = touch {canary}/uploadpack
[extensions]
	partialClone = origin
[uploadpack]
	packObjectsHook = touch {canary}/pack
[credential]
	helper = !touch {canary}/credential
[interactive]
	diffFilter = touch {canary}/interactive
[gpg]
	program = touch {canary}/gpg
"""
HOOKS = ("post-checkout", "post-index-change", "pre-commit", "reference-transaction", "fsmonitor-watchman")
PATCH = """\
--- a/shop/prices.py
+++ b/shop/prices.py
@@ -1 +1 @@
-RATE = 2
+RATE = 3
--- /dev/null
+++ b/shop/new.py
@@ -0,0 +1 @@
+NEW = 1
"""
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def write(folder: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Copies of one history: a work tree with packed and loose references, a bare one, a shallow one, …"""
    root = tmp_path_factory.mktemp("repositories")
    canary, plain = root / "canary", root / "plain"
    canary.mkdir()
    plain.mkdir()
    texts = {path: text.format(canary=canary) for path, text in TEXTS.items()}
    write(plain, texts)
    (plain / "logo.png").write_bytes(b"\x89PNG\xff")
    (plain / "link.py").symlink_to("/etc/hostname")
    git(plain, "init", "-q", "-b", "main")
    git(plain, "add", ".")
    git(plain, "commit", "-qm", "one")
    git(plain, "tag", "-a", "v1", "-m", "annotated")
    git(plain, "tag", "light")
    git(plain, "pack-refs", "--all")
    git(plain, "gc", "-q")
    write(plain, {"shop/prices.py": "RATE = 9\n"})
    git(plain, "commit", "-qam", "two")
    git(plain, "branch", "topic/deep")
    git(root, "clone", "-q", "--bare", str(plain), "bare")
    git(root, "clone", "-q", "--depth", "1", f"file://{plain}", "shallow")
    git(root, "clone", "-q", "--no-hardlinks", str(plain), "clone")
    git(plain, "worktree", "add", "-q", "--detach", str(root / "linked"), "v1")
    git(plain, "repack", "-q", "-a", "-d")
    git(root, "init", "-q", "outer")
    git(root / "outer", "submodule", "-q", "add", str(plain), "inner")
    return root, canary, texts


@pytest.fixture(scope="module")
def hostile(places):
    root, canary, texts = places
    folder = root / "hostile"
    shutil.copytree(root / "clone", folder, symlinks=True)
    config = folder / ".git/config"
    config.write_text(HOSTILE.format(canary=canary))
    (canary / "included").write_text(f"[core]\n\tfsmonitor = touch {canary}/by_include; false\n")
    (canary / "elsewhere").mkdir()
    for name in HOOKS:
        for place in (folder / ".git/hooks", canary / "hooks"):
            place.mkdir(exist_ok=True)
            (place / name).write_text(f"#!/bin/sh\ntouch {canary}/hook_{name}\n")
            (place / name).chmod(0o755)
    return folder, canary, texts


class TestAsGitReads:
    @pytest.mark.parametrize("name", ["plain", "bare", "clone", "linked", "outer/inner"])
    def test_files_are_those_that_git_shows(self, places, name):
        root, _, texts = places
        with Repository(root / name) as repository:
            found = repository.files(repository.commit("v1"))
            blob = git(root / name, "show", "v1:shop/prices.py")
            listed = git(root / name, "ls-tree", "-r", "-z", "--name-only", "v1").split("\0")[:-1]
        assert found == texts and found["shop/prices.py"] == blob
        assert set(listed) - set(found) == {"logo.png", "link.py"}

    @pytest.mark.parametrize("name", ["plain", "bare", "shallow", "clone", "linked", "outer/inner"])
    def test_names_mean_what_they_mean_to_git(self, places, name):
        root, _, _ = places
        names = ["HEAD", "main", "light", "refs/tags/v1", "topic/deep", "origin/main", "origin", "none"]
        names += [git(root / "plain", "rev-parse", "HEAD").strip()[:length] for length in (7, 40)]
        with Repository(root / name) as repository:
            for one in names:
                try:
                    expected = git(root / name, "rev-parse", "--verify", f"{one}^{{commit}}").strip()
                except subprocess.CalledProcessError:
                    with pytest.raises(RepositoryError):
                        repository.commit(one)
                else:
                    assert repository.commit(one) == expected

    def test_a_patch_gives_the_tree_that_git_gives_and_leaves_theirs_alone(self, places, tmp_path):
        root, _, _ = places
        before = sorted((root / "clone/.git").rglob("*"))
        with Repository(root / "clone") as repository:
            tree = repository.patched(repository.commit("v1"), PATCH)
            found = repository.files(tree, {"shop/prices.py", "shop/new.py", "none"})
            with pytest.raises(RepositoryError, match="does not apply"):
                repository.patched(tree, PATCH)
        assert found == {"shop/prices.py": "RATE = 3\n", "shop/new.py": "NEW = 1\n"}
        assert sorted((root / "clone/.git").rglob("*")) == before
        git(root, "clone", "-q", str(root / "plain"), str(tmp_path / "own"))
        git(tmp_path / "own", "checkout", "-q", "v1")
        (tmp_path / "patch").write_text(PATCH)
        git(tmp_path / "own", "apply", "--index", "../patch")
        assert git(tmp_path / "own", "write-tree").strip() == tree

    def test_hashes_may_be_of_sha256(self, tmp_path):
        git(tmp_path, "init", "-q", "--object-format=sha256", "-b", "main")
        write(tmp_path, {"a.py": "x = 1\n"})
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-qm", "one")
        with Repository(tmp_path) as repository:
            assert repository.commit("main") == git(tmp_path, "rev-parse", "HEAD").strip()
            assert repository.files(repository.commit("HEAD")) == {"a.py": "x = 1\n"}

    def test_a_submodule_that_was_made_sparse_and_has_marks_in_its_name(self, places, tmp_path):
        git(tmp_path, "init", "-q", "outer")
        outer = tmp_path / "outer"
        git(outer, "submodule", "-q", "add", str(places[0] / "plain"), 'a#b"c')
        inner = outer / 'a#b"c'
        for prepare in ((), ("sparse-checkout", "init")):
            if prepare:
                git(inner, *prepare)
            with Repository(inner) as repository:
                assert repository.commit("HEAD") == git(inner, "rev-parse", "HEAD").strip()
                assert repository.is_modified() is False

    def test_a_git_folder_of_another_name(self, places, tmp_path):
        source = str(places[0] / "plain")
        git(tmp_path, "clone", "-q", "--separate-git-dir", str(tmp_path / "away"), source, "apart")
        with pytest.raises(RepositoryError, match="another folder") as caught:
            Repository(tmp_path / "apart")
        command = caught.value.remedy.rpartition(": ")[2]
        subprocess.run(command, shell=True, cwd=tmp_path / "apart", env=ENVIRONMENT, check=True, timeout=60)
        project = tmp_path / "project"
        git(tmp_path, "clone", "-q", "--bare", source, "project/.bare")
        (project / ".git").write_text("gitdir: ./.bare\n")
        git(project, "worktree", "add", "-q", "work", "main")
        for folder in (tmp_path / "apart", project, project / "work"):
            with Repository(folder) as repository:
                assert repository.commit("HEAD") == git(folder, "rev-parse", "HEAD").strip()
                if folder != project:
                    assert repository.is_modified() is False

    def test_the_state_of_the_working_folder_is_that_of_git(self, places, monkeypatch):
        root, _, _ = places
        folder = root / "clone"
        monkeypatch.chdir(folder / "shop/deep")
        commit = git(folder, "rev-parse", "HEAD").strip()
        assert _git_state() == {"commit": commit, "modified": False}
        os.utime(folder / "shop/prices.py")
        (folder / "untracked.py").write_text("")
        assert _git_state() == {"commit": commit, "modified": False}
        (folder / "shop/prices.py").write_text("RATE = 5\n")
        assert _git_state() == {"commit": commit, "modified": True}
        git(folder, "checkout", "-q", "shop/prices.py")
        git(folder, "rm", "-q", "--cached", "logo.png")
        assert _git_state() == {"commit": commit, "modified": True}
        git(folder, "reset", "-q", "--hard")
        assert _git_state() == {"commit": commit, "modified": False}
        (folder / "shop/prices.py").unlink()
        os.mkfifo(folder / "shop/prices.py")
        assert _git_state() == {"commit": commit, "modified": True}
        git(folder, "checkout", "-q", "shop/prices.py")
        monkeypatch.chdir(root / "linked")
        assert _git_state() == {
            "commit": git(root / "linked", "rev-parse", "HEAD").strip(),
            "modified": False,
        }
        monkeypatch.chdir(root / "bare")
        assert _git_state() == {"commit": git(root / "bare", "rev-parse", "HEAD").strip(), "modified": None}
        monkeypatch.chdir(root)
        assert _git_state() is None


class TestNothingIsRun:
    def test_the_traps_are_set(self, hostile):
        folder, canary, _ = hostile
        subprocess.run(["git", "status"], cwd=folder, env=ENVIRONMENT, capture_output=True, timeout=60)
        environment = {**ENVIRONMENT, "HOME": str(folder)}
        del environment["GIT_CONFIG_GLOBAL"]
        clone = folder.with_name("clone")
        command = ["git", "archive", "HEAD"]
        subprocess.run(command, cwd=clone, env=environment, capture_output=True, timeout=60)
        sprung = {path.name for path in canary.iterdir()} - {"hooks", "included", "elsewhere"}
        assert sprung >= {"by_include", "tracked_home"}
        for name in sprung:
            (canary / name).unlink()

    def test_reading_runs_nothing_of_a_repository(self, hostile, monkeypatch):
        folder, canary, texts = hostile
        before = sorted(canary.iterdir())
        for name, value in {
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / ".config"),
            "GIT_CONFIG_GLOBAL": str(folder / ".git/config"),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "core.fsmonitor",
            "GIT_CONFIG_VALUE_0": f"touch {canary}/variable; false",
            "GIT_EXTERNAL_DIFF": f"touch {canary}/variable",
            "GIT_DIR": str(folder / ".git"),
            "GIT_SSH_COMMAND": f"touch {canary}/variable",
            "PATH": f".{os.pathsep}{os.environ['PATH']}",
        }.items():
            monkeypatch.setenv(name, value)
        (folder / "git").write_text(f"#!/bin/sh\ntouch {canary}/program\n")
        (folder / "git").chmod(0o755)
        monkeypatch.chdir(folder)
        os.utime(folder / "shop/prices.py")
        with Repository.around(folder / "shop") as repository:
            commit = repository.commit("v1")
            assert repository.files(commit) == texts
            assert repository.files(repository.patched(commit, PATCH))["shop/new.py"] == "NEW = 1\n"
            assert repository.is_modified() is False
            with pytest.raises(RepositoryError):  # a promisor would be asked for it
                repository.files("0" * 40)
        assert _git_state() == {"commit": repository.reference("HEAD"), "modified": False}
        (folder / "shop/prices.py").write_text("RATE = 7\n")
        assert _git_state()["modified"] is True
        assert sorted(canary.iterdir()) == before

    def test_no_other_file_calls_git(self):
        source = Path(greenward.__file__).parent
        files = [*source.rglob("*.py"), *(source.parents[1] / "benchmarks").rglob("*.py")]
        calls = re.compile(r"""(?:\[|\()\s*["']git["']|import (?:git|pygit2|dulwich)\b""")
        found = [one.name for one in files if calls.search(one.read_text(encoding="utf-8"))]
        assert found == ["repository.py"]


class TestNothingIsFollowed:
    @pytest.fixture
    def clone(self, places, tmp_path):
        folder = tmp_path / "theirs"
        shutil.copytree(places[0] / "clone", folder, symlinks=True)
        return folder

    def refused(self, folder: Path, match: str, name: str = "HEAD") -> None:
        with pytest.raises(RepositoryError, match=match), Repository(folder) as repository:
            repository.files(repository.commit(name))

    def test_a_git_folder_elsewhere(self, clone, places):
        shutil.rmtree(clone / ".git")
        (clone / ".git").symlink_to(places[0] / "plain/.git")
        self.refused(clone, "symbolic link")
        (clone / ".git").unlink()
        for named in (places[0] / "plain/.git", places[0] / "plain/.git/worktrees/linked", "none", "a\0b"):
            (clone / ".git").write_text(f"gitdir: {named}\n")
            self.refused(clone, "another folder")
        (clone / ".git").unlink()
        os.mkfifo(clone / ".git")
        self.refused(clone, "cannot be read")
        (clone / ".git").unlink()
        self.refused(clone, "no git repository")

    def test_objects_elsewhere(self, clone, places):
        theirs = places[0] / "plain/.git/objects"
        (clone / ".git/objects/info/alternates").write_text(f"{theirs}\n")
        self.refused(clone, "another repository")
        (clone / ".git/objects/info/alternates").unlink()
        (clone / ".git/commondir").write_text(str(theirs.parent))
        self.refused(clone, "commondir")
        (clone / ".git/commondir").unlink()
        os.mkfifo(clone / ".git/objects/pack/pipe.pack")
        self.refused(clone, "a link, a pipe")
        (clone / ".git/objects/pack/pipe.pack").unlink()
        (clone / ".git/objects/ff").symlink_to(theirs / "pack")
        self.refused(clone, "a link, a pipe")
        shutil.rmtree(clone / ".git/objects")
        self.refused(clone, "no objects")
        (clone / ".git/objects").symlink_to(theirs)
        self.refused(clone, "symbolic link")

    def test_references_elsewhere(self, clone, places):
        secret = clone.parent / "secret"
        secret.write_text(git(places[0] / "plain", "rev-parse", "HEAD"))
        heads = clone / ".git/refs/heads"
        (heads / "link").symlink_to(secret)
        (heads / "loop").write_text("ref: refs/heads/loop\n")
        (heads / "out").write_text("ref: ../../secret\n")
        os.mkfifo(heads / "pipe")
        for name in ("link", "loop", "out", "pipe", "../../secret", str(secret), "-x", "a\0b", "\udcff", ""):
            self.refused(clone, "no commit, branch or tag", name)

    def test_paths_that_are_not_plain_are_left_out(self, clone):
        blob = git(clone, "hash-object", "-w", "shop/prices.py").strip()
        names = ["..", ".git", ".GIT", "a\\b", "tab\there", "new\nline", "ok.py", "\x7f"]
        content = b"".join(
            f"{mode} ".encode() + name + b"\0" + bytes.fromhex(blob)
            for mode, name in (
                *((100644, name.encode()) for name in names), (100644, b"\xff.py"), (160000, b"module"),
                (120000, b"link.py"),
            )
        )  # fmt: skip
        made = subprocess.run(
            ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
            cwd=clone, env=ENVIRONMENT, input=content, capture_output=True, check=True, timeout=60,
        )  # fmt: skip
        tree = made.stdout.decode().strip()
        with Repository(clone) as repository:
            assert list(repository.files(tree)) == ["ok.py"]


class TestBounds:
    def test_large_files_are_left_out_and_the_total_is_bounded(self, places, monkeypatch):
        monkeypatch.setattr(module, "MAX_FILE_BYTES", 10)
        with Repository(places[0] / "clone") as repository:
            commit = repository.commit("v1")
            assert set(repository.files(commit)) >= {"shop/prices.py"}
            assert ".gitconfig" not in repository.files(commit)
            monkeypatch.setattr(module, "MAX_TREE_BYTES", 10)
            with pytest.raises(RepositoryError, match="at most 10"):
                repository.files(commit)

    def test_long_lines_of_settings_take_no_time(self, places, tmp_path):
        git(tmp_path, "clone", "-q", str(places[0] / "plain"), "theirs")
        config = tmp_path / "theirs/.git/config"
        text = config.read_text()
        for line in (f"objectformat = a{' ' * 50_000}x", f"objectformat{' ' * 50_000}x"):
            config.write_text(f"{text}[extensions]\n\t{line}\n")
            start = time.process_time()
            with Repository(tmp_path / "theirs") as repository:
                if "=" in line:
                    with pytest.raises(RepositoryError, match="unknown kind"):
                        repository.commit("HEAD")
                else:
                    assert repository.is_modified() is False
            assert time.process_time() - start < 2

    def test_paths_that_a_git_file_names_are_bounded(self, tmp_path):
        for named in ("x" * 1000, "x" * 5000, "a/" * 3000, "x" * 100_000):
            (tmp_path / ".git").write_text(f"gitdir: {named}\n")
            with pytest.raises(RepositoryError) as caught:
                Repository(tmp_path)
            assert len(str(caught.value)) < 600

    def test_files_that_a_partial_clone_lacks_are_no_files_left_out(self, places, tmp_path):
        git(places[0] / "plain", "config", "uploadpack.allowFilter", "true")
        source = f"file://{places[0] / 'plain'}"
        git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", source, "partial")
        with (
            Repository(tmp_path / "partial") as repository,
            pytest.raises(RepositoryError, match="objects are missing") as caught,
        ):
            repository.files(repository.commit("v1"))
        assert "--filter" in caught.value.remedy

    def test_what_git_prints_is_bounded(self, places):
        with (
            Repository(places[0] / "clone") as repository,
            pytest.raises(RepositoryError, match="prints more than 100 bytes"),
        ):
            repository._git("ls-tree", "-r", "-z", repository.commit("v1"), most_bytes=100)

    def test_a_tree_that_unfolds_into_billions_of_files_is_refused(self, places, tmp_path):
        clone = tmp_path / "bomb"
        git(tmp_path, "clone", "-q", str(places[0] / "plain"), "bomb")
        kind, made = "blob", git(clone, "hash-object", "-w", "shop/prices.py").strip()
        for _ in range(10):
            mode = "100644" if kind == "blob" else "040000"
            rows = "".join(f"{mode} {kind} {made}\t{number}\n" for number in range(10))
            done = subprocess.run(
                ["git", "mktree"], cwd=clone, env=ENVIRONMENT, input=rows, capture_output=True, text=True,
                check=True, timeout=60,
            )  # fmt: skip
            kind, made = "tree", done.stdout.strip()
        with Repository(clone) as repository, pytest.raises(RepositoryError, match="prints more"):
            repository.files(made)

    def test_a_command_that_takes_too_long_is_ended(self, places, tmp_path, monkeypatch):
        (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / "git").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        with (
            Repository(places[0] / "clone") as repository,
            pytest.raises(RepositoryError, match="takes more than"),
        ):
            repository._git("status", seconds=0.2)
