"""Which clones were given, what each is called, and when it was there.

A repository is old, new, or neither, by the dates in its history:

    old   its default branch had a commit by the first date. What is read is the last of them.
    new   no commit on any of its branches or tags was written or recorded by the second date. What is read is its tip.

Git keeps two dates. The committer's says when a commit was recorded as it is: rebasing, squashing and rewriting renew
it, so nothing in a commit is younger. That vouches for old. The author's says when a change was first written, and
outlives all of these: an import with a rewritten history shows its age by it. That denies new. What is old by one date
and new by the other is neither.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from srt_peft.corpora import git
from srt_peft.corpora.code.options import WHAT
from srt_peft.corpora.git import Commit
from srt_peft.errors import OptionError

_DEEP = 3
"""Folders below one that is given in which clones are looked for: SITE/OWNER/NAME."""
_DAY = 86_400


class Clone(NamedTuple):
    """A repository on this machine."""

    path: Path
    git: Path
    name: str
    root: str
    """The id of its first commit, which its forks share; empty where it has none."""
    when: int
    """When that was committed."""


class Era(NamedTuple):
    """What a repository is to the corpus."""

    kind: str
    """old, new, or why it is neither."""
    read: Commit | None
    """The commit whose files become rows."""
    before: Commit | None
    """The newest commit that was written by the second date: whatever is in it existed before."""


OLD, NEW = "old", "new"
BETWEEN, OLDER, IMPOSSIBLE, EMPTY = (
    "created between the dates",
    "older than its first commit",
    "impossible date",
    "empty",
)


def clones_of(given: Sequence[str]) -> list[Clone]:
    """The clones that lists and folders name, oldest first; every one that cannot be dated or read is told at once."""
    faults: list[str] = []
    places: dict[Path, tuple[Path, str]] = {}
    for path, name in _paths(given, faults):
        folder = git.git_folder(path)
        if folder is None:
            faults.append(f"--repos: {path} is no git repository: expected a clone, bare or not. Take the line out")
        else:
            places.setdefault(folder.resolve(), (path, name))
    found = []
    for folder, (path, name) in places.items():
        if fault := _fault(folder):
            faults.append(f"--repos: {path} {fault}")
        else:
            found.append(_clone(path, folder, name))
    if faults:
        raise OptionError(WHAT, faults, most=20)
    return _named(sorted(found, key=lambda clone: (clone.when, clone.root, clone.name, str(clone.path))))


def _paths(given: Sequence[str], faults: list[str]) -> Iterator[tuple[Path, str]]:
    """The paths of clones, and what each is called where it lies."""
    for word in given:
        path = Path(word).expanduser()
        if path.is_file():
            said = path.read_text(encoding="utf-8-sig", errors="surrogateescape")
            lines = (line.strip() for line in said.splitlines())
            listed = [Path(line).expanduser() for line in lines if line and not line.startswith("#")]
            if not listed:
                faults.append(f"--repos = {word}: the list is empty: expected the path of a clone on each line")
            yield from ((one, one.absolute().name) for one in listed)
        elif git.git_folder(path):
            yield path, path.absolute().name
        elif path.is_dir():
            below = [(one, one.relative_to(path).as_posix()) for one in _below(path, _DEEP)]
            if not below:
                faults.append(f"--repos = {word}: no git repository is in this folder: expected clones, bare or not")
            yield from below
        else:
            faults.append(f"--repos = {word} does not exist: expected a clone, a folder of clones, or a list of paths")


def _below(folder: Path, deep: int) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            if git.git_folder(path):
                yield path
            elif deep > 1:
                yield from _below(path, deep - 1)


def _fault(folder: Path) -> str | None:
    """Why a clone cannot be used: what it lacks is not known to be missing, or to have been there."""
    if git.run(folder, "rev-parse", "--is-shallow-repository").strip() == b"true":
        return "is a shallow clone, so its first commit is not known: git fetch --unshallow brings the rest"
    if git.settings(folder, r"^(extensions\.partialclone|remote\..*\.promisor)$"):
        return "is a partial clone, so its files are not all here: clone it without --filter"
    return None


def _clone(path: Path, folder: Path, name: str) -> Clone:
    newest = git.tip(folder)
    roots = list(git.commits(folder, "--max-parents=0", newest)) if newest else []
    first = min(roots, key=lambda commit: (commit.committed, commit.id), default=Commit("", 0, 0))
    far = _far("".join(git.settings(folder, r"^remote\.origin\.url$")[:1]))
    near = os.fsencode(name).decode(errors="replace").removesuffix(".git")
    return Clone(path, folder, far or near, first.id, first.committed)


def _far(address: str) -> str:
    """What a repository is called where it was cloned from: the last two parts, as what precedes may be a password."""
    parts = [part for part in address.removesuffix("/").removesuffix(".git").replace(":", "/").split("/") if part]
    return "/".join(parts[-2:]) if "://" in address or "@" in address else ""


def _named(clones: Iterable[Clone]) -> list[Clone]:
    """The same, with a name of its own for each: where two are called the same, the later ones' tell their roots."""
    taken: set[str] = set()
    found = []
    for clone in clones:
        names = (
            clone.name,
            f"{clone.name}@{clone.root[:7]}",
            *(f"{clone.name}@{clone.root[:7]}-{i}" for i in range(2, 999)),
        )
        name = next(name for name in names if name not in taken)
        taken.add(name)
        found.append(clone._replace(name=name))
    return found


def era(clone: Clone, old_before: int, new_after: int) -> Era:
    """Old before the one moment, new from the other on, in seconds since 1970."""
    newest = git.tip(clone.git)
    if newest is None:
        return Era(EMPTY, None, None)
    line = list(git.commits(clone.git, "--first-parent", "--reverse", newest))
    before = _last(line, [commit.authored for commit in line], new_after)
    if not 0 < clone.when < time.time() + _DAY:
        return Era(IMPOSSIBLE, None, before)
    read = _last(line, [commit.committed for commit in line], old_before)
    if read:
        return Era(OLD, read, before)
    if clone.when < new_after:
        return Era(BETWEEN, None, before)
    every = git.commits(clone.git, "--branches", "--tags", "--remotes", newest)
    if any(min(commit.authored, commit.committed) < new_after for commit in every):
        return Era(OLDER, None, before)
    return Era(NEW, line[-1], None)


def _last(line: Sequence[Commit], dates: Sequence[int], moment: int) -> Commit | None:
    """The last commit before the first that is of a later moment: a clock that was wrong once lets no later ones in."""
    late = next((i for i, date in enumerate(dates) if date >= moment), len(line))
    return line[late - 1] if late else None
