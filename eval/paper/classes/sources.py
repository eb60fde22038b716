"""Data sets as their publishers have them, from files, the hub, or scikit-learn's own copies.

    mnist, fashion   four idx files, gzipped or not: 00 00 08 and the number of dimensions, a size each, bytes
    cifar            the binary version: 3,073 bytes an example, its label and then red, green and blue, row by row
    wine             CSV, the class first and 1 to 3 (UCI), or last and 0 to 2 below a head (scikit-learn)
    digits           scikit-learn's only

Pickled files are never read. Whatever is wrong with a file is told with its name, what was expected, and what to do.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from srt_peft.errors import DamagedError, OptionError

HUB = "hub:"
IMAGE = 3_073
"""Bytes of an example of CIFAR-10."""
FEATURES = 13
PARTS = {"train": "train", "test": "t10k"}


@dataclass(frozen=True, eq=False)
class Labelled:
    """Examples with their labels: bytes of images (channel, row, column) or a table of numbers."""

    features: NDArray[Any]
    labels: NDArray[np.int64]
    top: float = 1.0
    """What a feature is divided by to lie between 0 and 1."""


Source = tuple[Labelled, Labelled | None]
"""What is trained on and what is asked; None where one set is to be parted."""


@dataclass(frozen=True)
class Files:
    """What a data set is read from."""

    folder: str
    """Its folder in --data."""
    expected: str
    read: Callable[[Path], Source] | None
    embedded: Callable[[], Source] | None = None


def damaged(path: Path, what: str, remedy: str = "Fetch it again.") -> DamagedError:
    return DamagedError(f"{path}: {what} {remedy}")


# --- idx --------------------------------------------------------------------------------------------------------------


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """One idx file of bytes, gzipped or not."""
    try:
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, f"it is gzipped, and cannot be unpacked ({error}): expected a whole file.") from None
    magic, head = bytes([0, 0, 8, dimensions]), 4 + 4 * dimensions
    if raw[:4] != magic:
        kind = "images" if dimensions == 3 else "labels"
        raise damaged(
            path,
            f"it begins with {raw[:4].hex(' ') or 'nothing'}: expected {magic.hex(' ')}, as idx files of {kind} do.",
            "See that images and labels are not exchanged, and that it is the file itself, not a page about it.",
        )
    if len(raw) < head:
        raise damaged(path, f"it has {len(raw)} bytes: expected its sizes in the first {head}.")
    shape = tuple(np.frombuffer(raw, ">u4", count=dimensions, offset=4).tolist())
    wanted = int(np.prod(shape, dtype=np.int64))
    if len(raw) - head != wanted:
        raise damaged(path, f"{len(raw) - head:,} bytes follow its head: expected {wanted:,}, for {shape}.")
    return np.frombuffer(raw, np.uint8, offset=head).reshape(shape)


def images(folder: Path) -> Source:
    """The four files of MNIST or of Fashion-MNIST."""
    train, test = (
        _paired(_idx_file(folder, f"{part}-images", 3), _idx_file(folder, f"{part}-labels", 1))
        for part in PARTS.values()
    )
    return train, test


def _idx_file(folder: Path, stem: str, dimensions: int) -> Path:
    name = f"{stem}-idx{dimensions}-ubyte"
    for there in (folder / name, folder / f"{name}.gz"):
        if there.is_file():
            return there
    raise OptionError("the data", [f"{folder} lacks {name}, or the same with .gz: expected {FILES['mnist'].expected}"])


def _paired(of_images: Path, of_labels: Path) -> Labelled:
    pixels, labels = read_idx(of_images, 3), read_idx(of_labels, 1)
    if len(pixels) != len(labels):
        raise damaged(of_labels, f"it has {len(labels):,} labels: expected {len(pixels):,}, as {of_images.name} has.")
    return Labelled(pixels[:, None], _within(of_labels, labels, 10), 255.0)


def _within(path: Path, labels: NDArray[np.uint8], classes: int) -> NDArray[np.int64]:
    if not labels.size:
        raise damaged(path, "it has no examples.")
    if labels.max() >= classes:
        raise damaged(path, f"it has the label {labels.max()}: expected 0 to {classes - 1}.")
    return labels.astype(np.int64)


# --- CIFAR-10 ---------------------------------------------------------------------------------------------------------


def cifar(folder: Path) -> Source:
    """The six files of the binary version."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)]
    gone = [name for name in (*names, "test_batch.bin") if not (folder / name).is_file()]
    if gone:
        pickled = "; what lies there is the version for Python, which is pickled, and is not read"
        found = pickled if (folder / "data_batch_1").is_file() else ""
        raise OptionError("the data", [f"{folder} lacks {', '.join(gone)}{found}: expected {FILES['cifar'].expected}"])
    parts = [_batch(folder / name) for name in names]
    train = Labelled(np.concatenate([p.features for p in parts]), np.concatenate([p.labels for p in parts]), 255.0)
    return train, _batch(folder / "test_batch.bin")


def _batch(path: Path) -> Labelled:
    raw = np.fromfile(path, np.uint8)
    if raw.size % IMAGE:
        raise damaged(path, f"it has {raw.size:,} bytes: expected a multiple of {IMAGE:,}, a label and 32 × 32 × 3.")
    rows = raw.reshape(-1, IMAGE)
    return Labelled(rows[:, 1:].reshape(-1, 3, 32, 32), _within(path, rows[:, 0], 10), 255.0)


# --- Wine -------------------------------------------------------------------------------------------------------------


def wine(folder: Path) -> Source:
    """UCI's wine.data, or scikit-learn's wine_data.csv."""
    for name in ("wine.data", "wine_data.csv"):
        if (folder / name).is_file():
            return table(folder / name), None
    raise OptionError("the data", [f"{folder} lacks wine.data and wine_data.csv: expected {FILES['wine'].expected}"])


def table(path: Path) -> Labelled:
    """Thirteen numbers and a class a line."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [(i, line) for i, line in enumerate(csv.reader(file), 1) if line]
    headed = bool(lines) and len(lines[0][1]) != FEATURES + 1
    rows = []
    for i, line in lines[headed:]:
        try:
            rows.append([float(value) for value in line])
        except ValueError:
            raise damaged(path, f"line {i} is {','.join(line)!r}: expected numbers.") from None
        if len(line) != FEATURES + 1:
            raise damaged(path, f"line {i} has {len(line)} values: expected {FEATURES} features and a class.")
    if not rows:
        raise damaged(path, "it has no examples.")
    values = np.array(rows)
    where, first = (-1, 0) if headed else (0, 1)
    labels = values[:, where] - first
    if not set(labels) <= {0.0, 1.0, 2.0}:
        told = f"the classes {first}, {first + 1} and {first + 2} in its {'last' if headed else 'first'} column"
        raise damaged(path, f"it has a class {values[:, where].max():g}: expected {told}.")
    return Labelled(np.delete(values, where, axis=1).astype(np.float32), labels.astype(np.int64))


# --- scikit-learn and the hub -----------------------------------------------------------------------------------------


def embedded_wine() -> Source:
    """The 178 wines that come with scikit-learn."""
    features, labels = _sklearn().load_wine(return_X_y=True)
    return Labelled(features.astype(np.float32), labels.astype(np.int64)), None


def embedded_digits() -> Source:
    """The 1,797 digits of 8 × 8 pixels that come with scikit-learn."""
    features, labels = _sklearn().load_digits(return_X_y=True)
    return Labelled(features.astype(np.uint8).reshape(-1, 1, 8, 8), labels.astype(np.int64), 16.0), None


def _sklearn() -> Any:
    try:
        from sklearn import datasets  # type: ignore[import-untyped]  # noqa: PLC0415 - takes a second
    except ImportError:
        raise OptionError("the data", ["scikit-learn is not here: expected pip install 'srt-peft[eval]'"]) from None
    return datasets


def of_hub(name: str) -> Source:
    """A data set of images and class labels with the splits train and test, as `datasets` loads it."""
    from datasets import ClassLabel, Image, load_dataset  # type: ignore[import-untyped]  # noqa: PLC0415 - seconds

    try:
        found = load_dataset(name)
        train, test = (_columns(found.get(part), name, part, Image, ClassLabel) for part in PARTS)
    except (OSError, ValueError, ImportError) as error:  # of no such name, no network, or no Pillow
        if isinstance(error, OptionError):
            raise
        raise OptionError("the data", [f"{HUB}{name} cannot be loaded ({error}): expected a data set's name"]) from None
    return train, test


def _columns(split: Any, name: str, part: str, image: type, label: type) -> Labelled:
    features = {} if split is None else split.features
    pictures, labels = ([key for key, kind in features.items() if isinstance(kind, one)] for one in (image, label))
    if not pictures or not labels:
        raise OptionError(
            "the data", [f"{HUB}{name}: expected a split {part} with a column of images and one of labels"]
        )
    pixels = np.stack([np.asarray(picture) for picture in split[pictures[0]]])
    pixels = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return Labelled(pixels, np.asarray(split[labels[0]], dtype=np.int64), 255.0)


_FOUR = "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"
FILES = {
    "mnist": Files("mnist", _FOUR, images),
    "fashion": Files("fashion-mnist", _FOUR, images),
    "cifar": Files(
        "cifar-10",
        "data_batch_1.bin to data_batch_5.bin and test_batch.bin of the binary version (cifar-10-binary.tar.gz)",
        cifar,
    ),
    "wine": Files("wine", "UCI's wine.data, the class first, or scikit-learn's wine_data.csv", wine, embedded_wine),
    "digits": Files("digits", "nothing: they come with scikit-learn", None, embedded_digits),
}  # fmt: skip


def load(source: str, data: Path | None, named: str | None) -> Source | None:
    """The data set: from where it was named, from its folder in `data`, or its own copy; None where there is none."""
    files = FILES[source]
    if named is not None:
        if named.startswith(HUB):
            return of_hub(named.removeprefix(HUB))
        if files.read is None or not Path(named).is_dir():
            raise OptionError("the data", [f"--from {source}={named}: expected a folder with {files.expected}"])
        return files.read(Path(named))
    if data is not None and files.read is not None and (data / files.folder).is_dir():
        return files.read(data / files.folder)
    return files.embedded() if files.embedded is not None else None
