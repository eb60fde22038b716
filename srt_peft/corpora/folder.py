"""The folder that a corpus is: all or nothing, and gone on with after a kill.

    OUT.partial/         while it is made
      .work/plan.json      what is made: the command, its inputs with sizes and hashes, its options, the versions
      .work/parts/…        what is finished of it, and is not made again
      old.jsonl …          the outputs
    OUT/                 when it is done, in one rename
      MANIFEST.json        the plan, the counts, and the sizes and hashes of the outputs; written last

A folder of other inputs or options is never gone on with: it is refused by name. Neither the time nor the number of
processes is written anywhere, so the same inputs and options are the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import srt_peft
from srt_peft.corpora.documents import MendableError
from srt_peft.errors import OptionError
from srt_peft.review.files import Lock, sync, sync_all

MANIFEST = "MANIFEST.json"
LIBRARIES = ("sentencex", "datasketch", "mwparserfromhell", "identify", "license-expression")

SOUND = "of-"
"""So begin the names of parts that are of one file alone, named by what it holds: they are good beside any others."""
_WORK = ".work"


class Folder:
    """A folder that is being made."""

    def __init__(self, path: Path, plan: Mapping[str, Any]) -> None:
        self.path = path
        """Where the outputs are written, under their own names."""
        self.plan = plan
        self.counts: dict[str, Any] = {}
        """What the manifest says was kept, and was left out by which reason."""
        self._parts = path / _WORK / "parts"

    def has(self, name: str) -> bool:
        """Whether a part is finished."""
        return (self._parts / name).exists()

    def part(self, name: str, make: Callable[[Path], Any]) -> Path:
        """A part of the work, a file: made now, unless it was before a kill."""
        target = self._parts / name
        if not target.exists():
            beside = target.with_name(f".{target.name}.{os.getpid()}")
            make(beside)
            sync(beside)
            beside.replace(target)
        return target


def staged(
    out: Path,
    command: str,
    inputs: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    make: Callable[[Folder], None],
) -> dict[str, Any]:
    """Have `make` write the outputs, and put them in place; the manifest. What it had begun, it goes on with."""
    check_out(out)
    plan = {
        "command": command,
        "inputs": list(inputs),
        "options": dict(options),
        "versions": {"srt-peft": srt_peft.__version__, "python": sys.version.split()[0], **_versions()},
    }
    partial = out.with_name(f"{out.name}.partial")
    work = partial / _WORK
    lock = Lock(work / "lock", str(partial))
    try:
        _claim(work / "plan.json", plan, partial)
        (work / "parts").mkdir(exist_ok=True)
        if not (partial / MANIFEST).exists():  # else all was done but the rename
            _clear(partial)
            folder = Folder(partial, plan)
            try:
                make(folder)
            except MendableError:  # what is brought again is another input
                _keep_sound(partial)
                raise
            except OptionError:  # of these inputs and options nothing will come
                shutil.rmtree(partial)
                raise
            _vouch(folder)
        shutil.rmtree(work)
        partial.rename(out)
        sync(out.parent)
    finally:
        lock.release()
    manifest: dict[str, Any] = json.loads((out / MANIFEST).read_bytes())
    return manifest


def _keep_sound(partial: Path) -> None:
    """Forget what was to be made of which inputs, and with it all that is of several."""
    parts = partial / _WORK / "parts"
    if not any(part.name.startswith(SOUND) for part in parts.iterdir()):
        shutil.rmtree(partial)
        return
    for part in parts.iterdir():
        if not part.name.startswith(SOUND):
            part.unlink()
    (partial / _WORK / "plan.json").unlink()


def _clear(partial: Path) -> None:
    """Remove outputs of which nobody knows whether they are whole."""
    for left in partial.iterdir():
        if left.name != _WORK:
            left.unlink()


def check_out(out: Path) -> None:
    """Refuse to write over what is there."""
    if out.exists() or out.is_symlink():
        raise OptionError("the arguments", [f"--out = {out}: it is there already: name another folder, or delete it"])


def input_of(path: Path, files: Sequence[Path] | None = None) -> dict[str, Any]:
    """What the manifest says of a file, or of the files that are used of a folder."""
    if files is None:
        return {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    listing = "".join(f"{sha256(file)} {file.relative_to(path).as_posix()}\n" for file in files)
    size = sum(file.stat().st_size for file in files)
    whole = hashlib.sha256(listing.encode(errors="surrogateescape")).hexdigest()
    return {"path": str(path), "files": len(files), "bytes": size, "sha256": whole}


def sha256(path: Path) -> str:
    """The hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def line_of(row: Mapping[str, Any]) -> str:
    """A row as a line of JSON."""
    return json.dumps(row, ensure_ascii=False) + "\n"


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _claim(path: Path, plan: Mapping[str, Any], partial: Path) -> None:
    raw = dumped(plan)
    if path.exists():
        was = path.read_bytes()
        if was != raw:
            differ = ", ".join(_differing(json.loads(was), plan))
            remedy = "bring that back to go on, or delete the folder to begin anew"
            raise OptionError("the arguments", [f"{partial} = begun with other {differ}: {remedy}"])
        return
    beside = path.with_name("plan.new")
    beside.write_bytes(raw)
    sync(beside)
    beside.replace(path)


def _differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in now:
        if was.get(name) != json.loads(dumped(now))[name]:
            yield name


def _vouch(folder: Folder) -> None:
    """Write the manifest, of what is on the disk."""
    outputs = sorted(path for path in folder.path.iterdir() if path.name != _WORK)
    listed = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in outputs}
    for path in outputs:
        sync(path)
    beside = folder.path / _WORK / MANIFEST
    beside.write_bytes(dumped({**folder.plan, "counts": folder.counts, "outputs": listed}))
    sync_all(folder.path / _WORK)
    beside.replace(folder.path / MANIFEST)
    sync(folder.path)


def dumped(value: Mapping[str, Any]) -> bytes:
    """A file of one value, as people read it."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
