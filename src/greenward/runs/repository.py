"""Reads repositories of others as data. No other module calls git.

git runs in an empty repository of our own, which borrows their objects. It never sees their configuration,
hooks, filters and references: the few references that are needed are read here, as text.

- `.git/config`, hooks, filters, aliases and promisor remotes have no effect.
- Links, submodules, files of more than 1 MiB and paths such as `.git/config` or `..` are left out.
- A repository whose `.git`, objects or references lead elsewhere is refused (clone without `--shared`), and
  so is a commit of which files are missing (clone without `--filter`).
- Source trees are read up to 1 MiB a file, 50 folders deep, 20,000 files.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import selectors
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path

from greenward.common.errors import Closeable, RepositoryError
from greenward.common.files import read_untrusted

MAX_FILE_BYTES = 1 << 20
MAX_TREE_BYTES = 256 << 20  # of all files of a commit that are read
_MAX_OUTPUT_BYTES = 64 << 20  # of a git command that lists
_MAX_FACT_BYTES = 8 << 10  # of a file with one reference or path
_MAX_SETTINGS_BYTES, _MAX_REFERENCES_BYTES = 1 << 20, 16 << 20
_MAX_PATH_CHARS = 4096
_MAX_INDEX_BYTES = 256 << 20
_MAX_MEMORY_BYTES, _MAX_WRITTEN_BYTES = 2 << 30, 512 << 20  # of a git process
_SECONDS = 120.0
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PLACES = ("{}", "refs/{}", "refs/tags/{}", "refs/heads/{}", "refs/remotes/{}", "refs/remotes/{}/HEAD")
_MAX_SYMBOLIC = 5  # references that only name another one
_SETTINGS = """\
[core]
	repositoryFormatVersion = 1
	bare = false
	fsmonitor = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	commitGraph = false
	packedGitWindowSize = 32m
	packedGitLimit = 256m
[extensions]
	objectFormat = {}
[protocol]
	allow = never
"""


class Repository(Closeable):
    """The repository of the work tree, or the bare one, at `folder`. A context manager.

    Raises `RepositoryError` if there is none, or if it lies elsewhere: where its `.git` is a link, or names a
    folder that does not name this work tree in turn (those of linked work trees and of submodules do).
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._git_folder = self._find_git_folder()
        self._common = self._git_folder  # where objects and references are
        with contextlib.suppress(FileNotFoundError):
            self._common = self._place(self._git_folder, self._fact(self._git_folder, "commondir"))
            if self._git_folder.resolve().parent != self._common / "worktrees":
                raise self._error("its commondir leads elsewhere")

    @classmethod
    def around(cls, folder: str | Path) -> Repository:
        """The repository of the work tree that `folder` lies in. Raises `RepositoryError`."""
        start = Path(folder).resolve()
        found = next((one for one in (start, *start.parents) if os.path.lexists(one / ".git")), start)
        return cls(found)

    def close(self) -> None:
        if "_own" in vars(self):
            self._own.cleanup()

    def reference(self, name: str) -> str | None:
        """The hash that a branch, a tag or HEAD stands for, as git looks it up; None if there is no such."""
        for place in _PLACES:
            if found := self._read_reference(place.format(name)):
                return found
        return None

    def commit(self, name: str) -> str:
        """The full hash of a commit that is named by a reference, or by a hash or its beginning.

        Raises `RepositoryError`.
        """
        found = self.reference(name) or name.lower()
        if not re.fullmatch("[0-9a-f]{4,64}", found):
            raise self._error(f"it has no commit, branch or tag {name!r:.100}")
        return self._git("rev-parse", "--verify", f"{found}^{{commit}}").decode("ascii").strip()

    def files(self, tree: str, paths: Collection[str] | None = None) -> dict[str, str]:
        """The text files of a commit or tree by their paths, or those among `paths`.

        Left out are links, submodules, files of more than `MAX_FILE_BYTES` or that are not UTF-8, and paths
        that are not plain. Raises `RepositoryError`, also if objects of files are missing, as in a partial
        clone, and for more than `MAX_TREE_BYTES`.
        """
        listed = self._git("ls-tree", "-r", "-z", "--long", "--full-tree", tree)
        found: dict[str, tuple[str, int]] = {}
        for entry in listed.split(b"\0")[:-1]:
            facts, _, name = entry.partition(b"\t")
            mode, _, blob, size = facts.decode("ascii").split()
            path = _plain_path(name)
            if path is None or not mode.startswith("100") or (paths is not None and path not in paths):
                continue
            if not size.isdigit():
                raise self._error(
                    f"objects are missing (a partial clone): {path!r:.100} has none",
                    remedy="Clone it without --filter.",
                )
            if int(size) <= MAX_FILE_BYTES:
                found[path] = blob, int(size)
        total = sum(size for _, size in found.values())
        if total > MAX_TREE_BYTES:
            raise self._error(f"the files of {tree[:100]} have {total} bytes, of at most {MAX_TREE_BYTES}")
        texts = dict(self._texts(dict(found.values())))
        return {path: texts[blob] for path, (blob, _) in found.items() if blob in texts}

    def patched(self, tree: str, patch: str) -> str:
        """The hash of the tree that a patch makes of a commit or tree. Raises `RepositoryError`."""
        self._git("read-tree", tree)
        self._git("apply", "--cached", "-", given=patch.encode("utf-8", "surrogatepass"))
        return self._git("write-tree").decode("ascii").strip()

    def is_modified(self, seconds: float = _SECONDS) -> bool:
        """Whether tracked files differ from HEAD, in the work tree or the index; submodules do not count.

        What filters would make of a file is not known: where only the index can say that it is unchanged, a
        file of Git LFS counts as modified. Raises `RepositoryError`, also for a bare repository, and if it
        takes longer than `seconds`.
        """
        if self._git_folder == self.folder or self._setting("bare", self._git_folder) == "true":
            raise self._error("it has no work tree")
        own = Path(self._own.name)
        (own / "HEAD").write_text(f"{self.commit('HEAD')}\n", encoding="ascii")
        with contextlib.suppress(FileNotFoundError), self._reading():
            (own / "index").write_bytes(read_untrusted(self._git_folder, "index", _MAX_INDEX_BYTES))
            times = os.lstat(self._git_folder / "index")
            os.utime(own / "index", ns=(times.st_atime_ns, times.st_mtime_ns))  # tells what may have changed
        options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all", "--no-renames")
        return bool(self._git("status", *options, work_tree=self.folder.absolute(), seconds=seconds))

    def _find_git_folder(self) -> Path:
        place = self.folder / ".git"
        if place.is_symlink():
            raise self._error(".git is a symbolic link")
        if place.is_dir():
            return place
        if place.exists():
            return self._linked_folder()
        if all((self.folder / one).exists() for one in ("HEAD", "objects", "refs")):
            return self.folder
        raise self._error("there is no git repository")

    def _linked_folder(self) -> Path:
        """The folder that a `.git` file names, if it lies in the work tree or names the work tree, too."""
        own = self.folder.resolve()
        with contextlib.suppress(FileNotFoundError):
            found = self._place(self.folder, self._fact(self.folder, ".git").removeprefix("gitdir:"))
            if found.is_relative_to(own) and os.path.isdir(found):
                return found
            if os.path.exists(found / "commondir"):
                back = self._place(found, self._fact(found, "gitdir")).parent
            else:
                settings = (self._setting("worktree", found, file) for file in ("config.worktree", "config"))
                back = self._place(found, next(filter(None, settings), os.devnull))
            if back == own:
                return found
        raise self._error(
            "its .git file names the repository of another folder",
            remedy='If that repository belongs to this folder, run in it: git config core.worktree "$PWD"',
        )

    def _read_reference(self, name: str) -> str | None:
        for _ in range(_MAX_SYMBOLIC):
            text = ""
            for folder in dict.fromkeys((self._git_folder, self._common)):
                # A part of the name can be a file, the whole a folder; what leads elsewhere is not followed.
                with contextlib.suppress(OSError, ValueError, RepositoryError):
                    text = text or self._fact(folder, name).strip()
            text = text or self._packed_references.get(name, "")
            if not text.startswith("ref:"):
                return text if _HASH.fullmatch(text) else None
            name = text.removeprefix("ref:").strip()
        return None

    @cached_property
    def _packed_references(self) -> dict[str, str]:
        try:
            lines = self._fact(self._common, "packed-refs", _MAX_REFERENCES_BYTES).splitlines()
        except FileNotFoundError:
            return {}
        pairs = (line.partition(" ") for line in lines if line[:1] not in ("#", "^"))
        return {name: value for value, _, name in pairs}

    @cached_property
    def _own(self) -> tempfile.TemporaryDirectory[str]:
        """An empty repository that borrows their objects. Raises `RepositoryError`."""
        objects = self._common / "objects"
        if not objects.is_dir():
            raise self._error("it has no objects")
        with self._reading():
            self._demand_own_files(objects)
        format_ = self._setting("objectformat", self._common) or "sha1"
        if format_ not in ("sha1", "sha256"):
            raise self._error(f"its hashes are of an unknown kind, {format_!r:.40}")
        made = tempfile.TemporaryDirectory(prefix="greenward-git-")
        own = Path(made.name)
        for folder in ("objects/info", "refs", "home", "empty"):
            (own / folder).mkdir(parents=True)
        (own / "HEAD").write_text("ref: refs/heads/none\n", encoding="ascii")
        (own / "config").write_text(_SETTINGS.format(format_), encoding="ascii")
        path = os.fsencode(objects.resolve()).replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        quoted = path.replace(b"\n", b"\\n")
        (own / "objects/info/alternates").write_bytes(b'"' + quoted + b'"\n')
        return made

    def _demand_own_files(self, objects: Path) -> None:
        """Raises `RepositoryError` for objects that are links, pipes or devices, or lie in another folder."""
        if objects.is_symlink():
            raise self._error("its objects are a symbolic link")
        if os.path.lexists(objects / "info/alternates"):
            raise self._error(
                "it borrows the objects of another repository (objects/info/alternates)",
                remedy="Clone it without --shared and --reference, or with --dissociate.",
            )
        waiting = [str(objects)]
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif not entry.is_file(follow_symlinks=False):
                        raise self._error("among its objects is a link, a pipe or a device")

    def _texts(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """(hash, text) of the blobs that are UTF-8."""
        most = sum(sizes.values()) + 128 * (len(sizes) + 1)
        asked = "".join(f"{blob}\n" for blob in sizes).encode("ascii")
        content, start = self._git("cat-file", "--batch", given=asked, most_bytes=most), 0
        for blob, size in sizes.items():
            end = content.index(b"\n", start)
            if content[start:end] != f"{blob} blob {size}".encode("ascii"):
                raise self._error(f"its object {blob} cannot be read")
            start = end + 1 + size + 1
            with contextlib.suppress(UnicodeDecodeError):
                yield blob, content[end + 1 : start - 1].decode("utf-8")

    def _git(
        self,
        *arguments: str,
        given: bytes = b"",
        work_tree: Path | None = None,
        most_bytes: int = _MAX_OUTPUT_BYTES,
        seconds: float = _SECONDS,
    ) -> bytes:
        """What a git command prints. Raises `RepositoryError` if it fails, prints more or takes longer."""
        own = Path(self._own.name)
        environment = {
            "PATH": os.pathsep.join(one for one in os.get_exec_path() if os.path.isabs(one)),
            "LC_ALL": "C",
            "HOME": str(own / "home"),
            "XDG_CONFIG_HOME": str(own / "home"),
            "GIT_DIR": str(own),
            "GIT_WORK_TREE": str(work_tree or own / "empty"),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_OPTIONAL_LOCKS": "0",
        }
        with tempfile.TemporaryFile(dir=own) as stdin, tempfile.TemporaryFile(dir=own) as stderr:
            stdin.write(given)
            stdin.seek(0)
            try:
                process = subprocess.Popen(
                    ["git", "--no-pager", *arguments],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=environment,
                    cwd=environment["GIT_WORK_TREE"],
                )
            except OSError as error:
                remedy = "Install git." if isinstance(error, FileNotFoundError) else None
                raise self._error(f"git cannot be started: {error.strerror}", remedy=remedy) from None
            try:
                output = _bounded_output(process, most_bytes, seconds)
            except (TimeoutError, ValueError) as error:
                raise self._error(f"git {arguments[0]} {error}") from None
            finally:
                process.kill()
                process.wait()
            if process.returncode:
                stderr.seek(0)
                reason = stderr.read(1000).decode("utf-8", "replace").strip()[:300]
                raise self._error(f"git {arguments[0]}: {reason or f'it ended with {process.returncode}'}")
        return output

    def _fact(self, folder: Path, name: str, most_bytes: int = _MAX_FACT_BYTES) -> str:
        """The text of a small file. Raises `FileNotFoundError` where there is none, `RepositoryError`."""
        with self._reading():
            return read_untrusted(folder, name, most_bytes).decode("utf-8", "surrogateescape")

    def _setting(self, name: str, folder: Path, file: str = "config") -> str | None:
        """The value of a setting of the repository itself; None if it has none. Raises `RepositoryError`."""
        with contextlib.suppress(FileNotFoundError):
            for line in self._fact(folder, file, _MAX_SETTINGS_BYTES).split("\n"):
                key, _, value = line.partition("=")
                if key.strip().lower() == name:
                    return re.sub(r'\\(.)|"', r"\1", value.strip())
        return None

    def _place(self, folder: Path, stated: str) -> Path:
        """The folder that a file in `folder` names. Raises `RepositoryError`."""
        path = stated.strip().replace("\0", "")
        if len(path) > _MAX_PATH_CHARS:
            raise self._error(f"it names a path of more than {_MAX_PATH_CHARS} characters")
        return Path(os.path.realpath(folder / path))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            name = os.path.basename(str(error.filename or ""))
            raise self._error(f"{name!r:.100} cannot be read: {error.strerror}") from None

    def _error(self, problem: str, *, remedy: str | None = None) -> RepositoryError:
        return RepositoryError(f"{self.folder}: {problem}.", remedy=remedy)


def _bounded_output(process: subprocess.Popen[bytes], most_bytes: int, seconds: float) -> bytes:
    """What a process prints until it ends. Raises `TimeoutError`, and `ValueError` if that is too much."""
    with contextlib.suppress(AttributeError, OSError):  # only Linux has `prlimit`; the process has ended
        for what, most in (
            (resource.RLIMIT_DATA, _MAX_MEMORY_BYTES),
            (resource.RLIMIT_FSIZE, _MAX_WRITTEN_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.prlimit(process.pid, what, (most, most))
    assert process.stdout is not None
    output, deadline = bytearray(), time.monotonic() + seconds
    with process.stdout, selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            block = os.read(process.stdout.fileno(), 1 << 20)
            output += block
            if len(output) > most_bytes:
                raise ValueError(f"prints more than {most_bytes} bytes")
            if not block:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, deadline - time.monotonic()))
                    return bytes(output)
                break
    raise TimeoutError(f"takes more than {seconds:.0f} s")


def _plain_path(name: bytes) -> str | None:
    """The path of a file as text; None for one that could lead elsewhere or be shown as another."""
    try:
        path = name.decode("utf-8")
    except UnicodeDecodeError:
        return None
    parts = path.split("/")
    is_plain = path.isprintable() and "\\" not in path
    return path if is_plain and not any(one.lower() in ("", ".", "..", ".git") for one in parts) else None
