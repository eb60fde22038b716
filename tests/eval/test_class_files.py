"""The data sets of `eval.paper.classes`: files of the publishers' formats, bad ones told in words, and the splits."""

import gzip
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from eval.paper.classes import networks, sources
from eval.paper.classes.splits import digest, split
from eval.paper.classes.worlds import WORLDS
from srt_peft.errors import DamagedError, OptionError


@pytest.fixture(scope="module")
def wines():
    return sources.embedded_wine()


# --- files ----------------------------------------------------------------------------------------------------------


def write_idx(path, values):
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    raw = bytes([0, 0, 8, values.ndim]) + sizes + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)


@pytest.fixture
def clothes(tmp_path):
    """Fashion-MNIST's four files, half of them gzipped, with twenty and ten pictures."""
    folder, random = tmp_path / "fashion-mnist", np.random.default_rng(0)
    folder.mkdir()
    for part, n, zipped in (("train", 20, ".gz"), ("t10k", 10, "")):
        write_idx(folder / f"{part}-images-idx3-ubyte{zipped}", random.integers(0, 256, (n, 28, 28)))
        write_idx(folder / f"{part}-labels-idx1-ubyte{zipped}", np.arange(n) % 10)
    return folder


def test_idx_files_are_read_zipped_or_not(clothes):
    train, test = sources.load("fashion", clothes.parent, None)
    assert train.features.shape == (20, 1, 28, 28)
    assert test.features.shape == (10, 1, 28, 28)
    assert train.labels.tolist() == list(range(10)) * 2
    pixels = np.random.default_rng(0).integers(0, 256, (20, 28, 28))
    assert np.array_equal(train.features[:, 0], pixels)
    data = split(WORLDS["fashion"], (train, test), seed=0)
    assert data.n_old == 14
    assert data.labels.tolist() == [0, 1, 3, 4, 5, 8, 9] * 2 + [2, 6, 7] * 2
    x, _ = data.batch(torch.arange(1))
    assert torch.equal(x[0, 0], torch.from_numpy(pixels[0]).float() / 255)


def spoil(path, how):
    path.write_bytes(how(path.read_bytes()))


SPOILT = {
    "exchanged": ("t10k-images-idx3-ubyte", lambda raw: raw[:3] + b"\1" + raw[4:], "begins with 00 00 08 01"),
    "a web page": ("t10k-labels-idx1-ubyte", lambda _: b"<!DOCTYPE html>", "expected 00 00 08 01, as idx files of"),
    "empty": ("t10k-labels-idx1-ubyte", lambda _: b"", "begins with nothing"),
    "no sizes": ("t10k-images-idx3-ubyte", lambda raw: raw[:9], "expected its sizes in the first 16"),
    "truncated": ("t10k-images-idx3-ubyte", lambda raw: raw[:-1], "7,839 bytes follow its head: expected 7,840"),
    "zip cut": ("train-images-idx3-ubyte.gz", lambda raw: raw[:-20], "gzipped, and cannot be unpacked"),
    "a label of 10": ("t10k-labels-idx1-ubyte", lambda raw: raw[:-1] + b"\x0a", "the label 10: expected 0 to 9"),
    "one label less": (
        "t10k-labels-idx1-ubyte", lambda raw: raw[:7] + b"\x09" + raw[8:-1], "9 labels: expected 10, as t10k-images",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_bad_idx_file_is_named_and_told_in_words(clothes, what):
    name, how, told = SPOILT[what]
    spoil(clothes / name, how)
    with pytest.raises(DamagedError, match=told) as caught:
        sources.images(clothes)
    assert name in str(caught.value)


def test_a_missing_file_is_named_with_what_is_expected(clothes):
    (clothes / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        OptionError, match=r"lacks t10k-labels-idx1-ubyte, or the same with \.gz: expected train-images"
    ):
        sources.images(clothes)


def test_cifars_binary_version_is_read_and_nothing_that_is_pickled(tmp_path):
    random, n = np.random.default_rng(1), 3
    rows = {
        name: np.concatenate([np.arange(n)[:, None] + i, random.integers(0, 256, (n, 3072))], 1).astype(np.uint8)
        for i, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])
    }
    for name, values in rows.items():
        (tmp_path / f"{name}.bin").write_bytes(values.tobytes())
    train, test = sources.cifar(tmp_path)
    assert train.features.shape == (15, 3, 32, 32)
    assert train.labels.tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 5, 4, 5, 6]
    row = rows["test_batch"][2]  # a label, 1,024 of red by row, then green, then blue
    assert test.labels[2] == row[0]
    assert test.features[2, 1, 31, 2] == row[1 + 1024 + 31 * 32 + 2]
    network = networks.made(WORLDS["cifar"], split(WORLDS["cifar"], (train, test), 0), seed=0)
    assert any(isinstance(layer, nn.Dropout) and layer.p == 0.5 for layer in network)
    (tmp_path / "data_batch_2.bin").write_bytes(b"\0" * 3072)
    with pytest.raises(DamagedError, match=r"data_batch_2\.bin: it has 3,072 bytes: expected a multiple of 3,073"):
        sources.cifar(tmp_path)
    for i in range(1, 6):
        (tmp_path / f"data_batch_{i}.bin").rename(tmp_path / f"data_batch_{i}")
    with pytest.raises(OptionError, match=r"is pickled, and is not read: expected data_batch_1\.bin"):
        sources.cifar(tmp_path)


def test_wine_is_the_same_from_uci_from_scikit_learn_and_embedded(tmp_path, wines):
    whole, _ = wines
    lines = [",".join(map(repr, row)) for row in whole.features.astype(float).tolist()]
    uci = "\n".join(f"{label + 1},{line}" for label, line in zip(whole.labels, lines, strict=True)) + "\n\n"
    (tmp_path / "wine.data").write_text(uci)
    (tmp_path / "wine_data.csv").write_text(
        "178,13,class_0,class_1,class_2\n" + "\n".join(f"{x},{y}" for x, y in zip(lines, whole.labels, strict=True))
    )
    for name in ("wine.data", "wine_data.csv"):
        found = sources.table(tmp_path / name)
        assert np.array_equal(found.features, whole.features)
        assert np.array_equal(found.labels, whole.labels)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "it has no examples"),
        ("1,2,3\n1,2\n", "line 2 has 2 values: expected 13 features and a class"),
        (f"1{',0' * 12},red\n", "line 1 is .* expected numbers"),
        (f"4{',0' * 13}\n", "it has a class 4: expected the classes 1, 2 and 3 in its first column"),
    ],
)
def test_a_bad_table_is_told_by_its_line(tmp_path, text, told):
    path = tmp_path / "wine.data"
    path.write_text(text)
    with pytest.raises(DamagedError, match=told):
        sources.table(path)


def test_a_data_set_of_the_hubs_form_is_the_one_of_the_files(tmp_path, clothes):
    """Parquet with a column of pictures and one of labels, as the hub has MNIST."""
    pytest.importorskip("PIL", reason="datasets decodes pictures with Pillow")
    from datasets import ClassLabel, Dataset, Features, Image

    train, test = sources.images(clothes)
    for name, part in (("train", train), ("test", test)):
        features = Features({"image": Image(), "label": ClassLabel(num_classes=10)})
        columns = {"image": list(part.features[:, 0]), "label": part.labels.tolist()}
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        Dataset.from_dict(columns, features).to_parquet(tmp_path / "hub" / "data" / f"{name}-00000-of-00001.parquet")
    found = sources.load("fashion", None, f"hub:{tmp_path / 'hub'}")
    assert digest(found) == digest((train, test))


# --- what is trained on and what is asked ---------------------------------------------------------------------------


def test_nothing_that_is_asked_is_trained_on_and_the_test_is_stratified(wines):
    data = split(WORLDS["wine-raw"], wines, seed=3)
    rows = {tuple(row) for row in data.features.tolist()}
    assert not rows & {tuple(row) for row in data.asked.tolist()}
    assert len(data.labels) + len(data.answers) == 178
    assert torch.bincount(data.answers).tolist() == [18, 21, 14]
    assert set(data.labels[: data.n_old].tolist()) == {0, 1}
    assert set(data.labels[data.n_old :].tolist()) == {2}
    assert data.asked_old.tolist() == (data.answers < 2).tolist()


def test_features_are_standardised_by_the_old_training_examples_alone(wines):
    raw, data = (split(WORLDS[name], wines, seed=3) for name in ("wine-raw", "wine"))
    known = raw.features[: raw.n_old].double().numpy()
    mean, deviation = known.mean(0), known.std(0, ddof=1)
    assert np.allclose(data.asked.numpy(), (raw.asked.numpy() - mean) / deviation, atol=1e-4)


def test_few_new_examples_are_so_many_of_each_class():
    digits = sources.embedded_digits()
    data = split(replace(WORLDS["digits"], few=10), digits, seed=0)
    whole = split(WORLDS["digits"], digits, seed=0)
    assert torch.bincount(data.labels[data.n_old :]).tolist() == [0] * 7 + [10] * 3
    assert data.n_old == whole.n_old


def test_old_and_new_classes_are_the_papers_and_their_numbers_the_publishers():
    labels = {name: (world.old_labels, [world.classes.index(c) for c in world.new]) for name, world in WORLDS.items()}
    digits, wine = ([0, 1, 2, 3, 4, 5, 6], [7, 8, 9]), ([0, 1], [2])
    assert labels == {
        "mnist": digits, "mnist-few": digits, "digits": digits, "wine": wine, "wine-raw": wine,
        "fashion": ([0, 1, 3, 4, 5, 8, 9], [2, 6, 7]),  # new: Pullover, Shirt, Sneaker
        "cifar": ([0, 1, 2, 3, 4, 8], [5, 6, 7, 9]),  # new: Dog, Frog, Horse, Truck
    }  # fmt: skip
