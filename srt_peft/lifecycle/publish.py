"""An update is published: its folder is made, held against what the repository has, and sent as one commit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srt_peft.errors import OptionError, StateError
from srt_peft.lifecycle import hub, pushed
from srt_peft.lifecycle.card import Facts, Result, card
from srt_peft.lifecycle.following import Ended, ended, left_by
from srt_peft.review.files import Lock
from srt_peft.training.folder import check_run

_WHAT = "push"


@dataclass(frozen=True)
class Made:
    """A folder that can be pushed."""

    folder: Path
    about: dict[str, Any]

    @property
    def files(self) -> list[tuple[str, int]]:
        """What is in it, by name, and how many bytes."""
        paths = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [(path.relative_to(self.folder).as_posix(), path.stat().st_size) for path in paths]


Results = Callable[[Ended], Sequence[Result]]
Pictures = Callable[[Path], Mapping[str, str]]


def prepare(run: Path, repo: str, folder: Path, *, state: str, results: Results, pictures: Pictures) -> Made:
    """Make the folder: all of it, or nothing."""
    if folder.exists():
        raise OptionError(_WHAT, [f"--out = {folder} exists already: name another, or remove it"])
    last = ended(run, _WHAT)
    left, drawn = left_by(last, ()), pictures(run)
    facts = Facts(repo, last, left, results(last), list(drawn))
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=_there(folder)))
    try:
        about = pushed.write(
            staged / "whole", last, left, state=state, card=lambda about: card(facts, about), pictures=drawn
        )
        (staged / "whole").rename(folder)
    except OSError as error:
        raise StateError(
            f"{folder} could not be written ({error.strerror or error}); nothing is left of it."
        ) from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Made(folder, about)


def _there(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.parent


@contextmanager
def scratch(run: Path) -> Iterator[Path]:
    """A folder in the run's that is gone afterwards: the same file system, so that weights are linked, not copied.

    What a killed push has left there goes first; and one push of a run goes on at a time.
    """
    check_run(run, _WHAT)
    folder = run / ".push"
    lock = Lock(folder / "lock", f"What is pushed of {run}")
    try:
        shutil.rmtree(folder / "push", ignore_errors=True)
        shutil.rmtree(folder / "theirs", ignore_errors=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


def check_visible(place: hub.Place, *, public: bool) -> None:
    """Refuse to send to a repository that everybody can read, unless that is meant."""
    if place.there and not place.private and not public:
        fault = f"REPO = {place.repo} is public: expected a private one. Give --public if everybody may read it"
        raise OptionError(_WHAT, [f"{fault}, or make it private on the hub. Nothing was sent"])
