"""A clone, read by git's plumbing: nothing is checked out, nothing of the repository is run, nothing is fetched.

A repository may be anybody's. So git is told its folder and looks for no other; it reads no configuration but the
clone's own, whose hooks, monitors, signatures' programs and remotes are switched off; it replaces no objects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from srt_peft.errors import DamagedError, OptionError

_OFF = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.splitIndex": "false",  # else it would write beside the clone's own index
    "log.showSignature": "false",
    "protocol.allow": "never",
}
_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_GRAFT_FILE": os.devnull,
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


class Commit(NamedTuple):
    """A commit, and when: `authored` says when its change was written, `committed` when it was recorded as it is."""

    id: str
    authored: int
    committed: int


class Entry(NamedTuple):
    """A file in a commit."""

    path: bytes
    mode: str
    blob: str
    size: int


def check_git() -> None:
    """Refuse to begin without git."""
    if shutil.which("git") is None:
        raise OptionError(
            "this installation", ["git is not installed, or not on the PATH: install it, such as with apt install git"]
        )


def git_folder(path: Path) -> Path | None:
    """Where a clone keeps its objects: itself, if it is bare; None where it is no clone."""
    for folder in (path / ".git", path):
        if folder.name == ".git" and folder.is_file():  # a linked worktree's says where
            return folder
        if (folder / "HEAD").is_file() and (folder / "objects").is_dir() and (folder / "refs").is_dir():
            return folder
    return None


def run(git: Path, *words: str, given: bytes | None = None, index: Path | None = None) -> bytes:
    """What git says."""
    done = _asked(git, *words, given=given, index=index)
    if done.returncode:
        raise _damaged(git, done.stderr)
    return done.stdout


def commit_of(git: Path, revision: str) -> str | None:
    """The commit that a tag, a branch or the like means; None where there is none of this name."""
    found = _asked(git, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    return found.stdout.decode().strip() if found.returncode == 0 else None


def tip(git: Path) -> str | None:
    """The newest commit of the default branch: of the remote's, where the clone has noted it, else HEAD's."""
    return commit_of(git, "refs/remotes/origin/HEAD") or commit_of(git, "HEAD")


def settings(git: Path, names: str) -> list[str]:
    """What the clone's own configuration says of the names that a pattern matches."""
    done = _asked(git, "config", "--local", "--null", "--get-regexp", names)
    return [said.partition("\n")[2] for said in done.stdout.decode(errors="replace").split("\0")[:-1]]


def commits(git: Path, *which: str) -> Iterator[Commit]:
    """Commits, as `git rev-list` orders them; a date that git cannot read is 0."""
    out = run(git, "rev-list", "--format=%H %at %ct", *which, "--")
    for line in out.decode("ascii", "replace").splitlines():
        if not line.startswith("commit "):
            name, *dates = line.split(" ")
            authored, committed = (int(date) if date.lstrip("-").isdigit() else 0 for date in (*dates, "", "")[:2])
            yield Commit(name, authored, committed)


def tree(git: Path, commit: str) -> list[Entry]:
    """The files of a commit, links and submodules among them."""
    found = []
    for line in run(git, "ls-tree", "-r", "-z", "-l", "--full-tree", commit).split(b"\0")[:-1]:
        about, _, path = line.partition(b"\t")
        mode, _kind, blob, size = about.decode().split()
        found.append(Entry(path, mode, blob, int(size) if size.isdigit() else 0))
    return found


def attributes(git: Path, commit: str, paths: Sequence[bytes], names: Sequence[str]) -> dict[bytes, set[str]]:
    """Which of these attributes a commit's own `.gitattributes` set, by path; they are asked of an index of ours."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "index")
        run(git, "read-tree", commit, index=index)
        given = b"".join(path + b"\0" for path in paths)
        out = run(git, "check-attr", "--cached", "--stdin", "-z", *names, given=given, index=index)
    found: dict[bytes, set[str]] = {}
    words = out.split(b"\0")
    for path, name, value in zip(words[0::3], words[1::3], words[2::3], strict=False):
        if value in (b"set", b"true"):
            found.setdefault(path, set()).add(name.decode())
    return found


class Blobs:
    """The contents of blobs, one after the other, from one process."""

    def __init__(self, git: Path, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._git, self._in, self._out = git, process.stdin, process.stdout

    def read(self, blob: str) -> bytes:
        """A blob's bytes."""
        self._in.write(blob.encode() + b"\n")
        self._in.flush()
        head = self._out.readline().split()
        if len(head) != 3 or head[1] != b"blob":
            raise _damaged(self._git, b"object " + b" ".join(head))
        raw = self._out.read(int(head[2]))
        self._out.read(1)
        return raw


@contextmanager
def blobs(git: Path) -> Iterator[Blobs]:
    """A reader of blobs."""
    command, pipe = _command(git, ("cat-file", "--batch")), subprocess.PIPE
    silent, env = subprocess.DEVNULL, _environment(None)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=silent, env=env) as process:  # noqa: S603
        try:
            yield Blobs(git, process)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()  # type: ignore[union-attr]  # it ends by that


def _asked(
    git: Path, *words: str, given: bytes | None = None, index: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command, env = _command(git, words), _environment(index)
    return subprocess.run(command, input=given, capture_output=True, env=env, check=False)  # noqa: S603


def _command(git: Path, words: Iterable[str]) -> list[str]:
    settings = [word for name, value in _OFF.items() for word in ("-c", f"{name}={value}")]
    return ["git", "--no-pager", f"--git-dir={git}", *settings, *words]


def _environment(index: Path | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return kept | _ENVIRONMENT | ({} if index is None else {"GIT_INDEX_FILE": str(index)})


def _damaged(git: Path, said: bytes) -> DamagedError:
    words = said.decode(errors="replace").strip().splitlines()
    reason = words[-1] if words else "git says no more"
    return DamagedError(f"{git} cannot be read ({reason}): check it with git fsck, and clone it anew if it is damaged.")
