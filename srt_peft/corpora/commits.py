"""A commit of a git repository as a snapshot, read from its objects."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from srt_peft.corpora import git
from srt_peft.corpora.snapshots import INCLUDE, SIDES, Snapshot, add_file, included, none_included
from srt_peft.corpora.writing import shown
from srt_peft.errors import OptionError

_FILES = {"100644", "100755"}
"""Modes of files: links and submodules are none."""


def two(repo: Path, revisions: Sequence[str], include: Sequence[str] | None) -> list[Snapshot]:
    """Two commits of a repository."""
    git.check_git()
    expected = "expected the folder of a git repository"
    folder = git.git_folder(repo)
    if folder is None:
        what = "is not a git repository" if repo.is_dir() else "does not exist"
        raise OptionError("the arguments", [f"--repo = {repo}: {what}; {expected}"])
    found = [git.commit_of(folder, revision) for revision in revisions]
    faults = [
        f"{name} = {revision}: no commit of {repo}; expected a commit, a tag or a branch, as `git log --all` shows them"
        for name, revision, commit in zip(SIDES, revisions, found, strict=True)
        if commit is None
    ]
    if faults:
        raise OptionError("the arguments", faults)
    both = [next(git.commits(folder, "--max-count=1", commit)) for commit in found if commit is not None]
    dates = [datetime.fromtimestamp(one.committed, UTC).isoformat() for one in both]
    if both[0].committed > both[1].committed:
        order = f"committed {dates[0]}, after {revisions[1]} ({dates[1]}): expected the earlier of the two"
        raise OptionError("the arguments", [f"--old = {revisions[0]}: {order}"])
    wanted = include or INCLUDE
    files = [_files(folder, one.id, wanted) for one in both]
    named = zip(SIDES, revisions, files, strict=True)
    faults = [none_included(f"{side} = {revision}", wanted) for side, revision, found in named if not found]
    if faults:
        raise OptionError("the arguments", faults)
    told = zip(revisions, (one.id for one in both), dates, files, strict=True)
    return [_snapshot(repo, folder, *one) for one in told]


def _files(folder: Path, commit: str, include: Sequence[str]) -> list[tuple[str, str]]:
    """The text files of a commit: the path and the blob of each."""
    return [
        (path, entry.blob)
        for entry in git.tree(folder, commit)
        if entry.mode in _FILES and included(path := entry.path.decode(errors="surrogateescape"), include)
    ]


def _snapshot(
    repo: Path, folder: Path, revision: str, commit: str, date: str, files: Sequence[tuple[str, str]]
) -> Snapshot:
    snapshot, size = Snapshot(f"{revision} of {repo}", {}, {}), 0
    with git.blobs(folder) as blobs:
        for path, blob in shown(files, "reading", "file", len(files)):
            raw = blobs.read(blob)
            size += len(raw)
            add_file(snapshot, path, raw)
    told = {"repository": str(repo), "revision": revision, "commit": commit, "committed": date}
    snapshot.about.update({**told, "files": len(files), "bytes": size})
    return snapshot
