"""A commit of a git repository as a snapshot, read from its objects by git itself."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from srt_peft.corpora.documents import PLACE
from srt_peft.corpora.snapshots import INCLUDE, Snapshot, add_file, included
from srt_peft.corpora.writing import shown
from srt_peft.errors import OptionError

_FILES = {"100644", "100755"}
"""Modes of files: links and submodules are none."""


def two(repo: Path, revisions: Sequence[str], include: Sequence[str] | None) -> list[Snapshot]:
    """Two commits of a repository."""
    faults: list[str] = (
        [] if repo.is_dir() else [f"--repo = {repo}: does not exist; expected the folder of a git repository"]
    )
    commits = []
    for name, revision in zip(("--old", "--new"), revisions, strict=True) if not faults else ():
        found = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        if isinstance(found, str):
            reason = _git(repo, "rev-parse", "--git-dir")
            if isinstance(reason, str):
                faults.append(f"--repo = {repo}: {reason}; expected the folder of a git repository")
            else:
                known = "expected a commit, a tag or a branch, as `git log --all` shows them"
                faults.append(f"{name} = {revision}: no commit of {repo}; {known}")
        else:
            commits.append(found.decode().strip())
    if faults:
        raise OptionError("the arguments", list(dict.fromkeys(faults)))
    dates = [_must(repo, "show", "-s", "--format=%cI", commit).decode().strip() for commit in commits]
    if datetime.fromisoformat(dates[0]) > datetime.fromisoformat(dates[1]):
        order = f"committed {dates[0]}, after {revisions[1]} ({dates[1]}): expected the earlier of the two"
        raise OptionError("the arguments", [f"--old = {revisions[0]}: {order}"])
    return [_snapshot(repo, *one, include or INCLUDE) for one in zip(revisions, commits, dates, strict=True)]


def _snapshot(repo: Path, revision: str, commit: str, date: str, include: Sequence[str]) -> Snapshot:
    files = [(path, blob) for path, blob in _tree(repo, commit) if included(path, include)]
    snapshot, size = Snapshot(f"{revision} of {repo}", {}, {}), 0
    blobs = shown(_blobs(repo, [blob for _, blob in files]), "reading", "file", len(files))
    for (path, _), raw in zip(files, blobs, strict=True):
        size += len(raw)
        add_file(snapshot, path, raw)
    told = {"repository": str(repo), "revision": revision, "commit": commit, "committed": date}
    snapshot.about.update({**told, "files": len(files), "bytes": size})
    return snapshot


def _tree(repo: Path, commit: str) -> Iterator[tuple[str, str]]:
    """The files of a commit, and their blobs."""
    for entry in _must(repo, "ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0"):
        about, _, path = entry.partition(b"\t")
        mode, _, blob = about.decode().partition(" blob ")
        if mode in _FILES:
            yield path.decode(errors="replace"), blob


def _blobs(repo: Path, blobs: Sequence[str]) -> Iterator[bytes]:
    """What is in each, asked of one process: one question at a time, so that neither waits for the other for ever."""
    command = ["git", "-C", str(repo), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as git:  # noqa: S603
        assert git.stdin is not None
        assert git.stdout is not None
        for blob in blobs:
            git.stdin.write(f"{blob}\n".encode())
            git.stdin.flush()
            head = git.stdout.readline().split()
            if len(head) != 3:
                raise OptionError(PLACE, [f"{repo} lacks the object {blob}: fetch it whole (git fetch --unshallow)"])
            raw = git.stdout.read(int(head[2]) + 1)
            yield raw[:-1]
        git.stdin.close()


def _git(repo: Path, *arguments: str) -> bytes | str:
    """What git answers; or what it says is wrong."""
    try:
        done = subprocess.run(["git", "-C", str(repo), *arguments], capture_output=True, check=False)  # noqa: S603, S607
    except FileNotFoundError:
        raise OptionError("this installation", ["git = not found: repositories are read by it; install git"]) from None
    return done.stdout if done.returncode == 0 else done.stderr.decode(errors="replace").strip()


def _must(repo: Path, *arguments: str) -> bytes:
    found = _git(repo, *arguments)
    if isinstance(found, str):
        raise OptionError(PLACE, [f"{repo} cannot be read: {found}"])
    return found
