"""Towns in two snapshots: a corpus in the form that `srt-peft corpus` writes, by its own functions."""

import json
import random

from srt_peft.corpora.documents import Document
from srt_peft.corpora.rows import held_out_of, rows_of_pair

MAYORS = ["Anna Berg", "Boris Conti", "Clara Duval", "David Evans", "Elena Fuchs", "Felix Greco", "Greta Holm"]
RIVERS = ["Arno", "Drava", "Ebro", "Isar", "Lena", "Maas", "Oder", "Rhône", "Soča", "Tagus", "Volga", "Weser"]


def text(town, rng, *, year):
    """What a snapshot says of a town: numbers and the mayor change, the river does not."""
    fixed = random.Random(town)
    return "\n".join(
        [
            f"Population: {rng.randint(20_000, 90_000):,} ({year} est.)",
            f"Area: {fixed.randint(100, 400)} sq km of land and water in all",
            f"Rainfall of the driest month: {fixed.randint(10, 60)}.{fixed.randint(1, 9)} mm as measured at the weir",
            f"Unemployment rate: {rng.randint(20, 190) / 10}% of the labour force ({year})",
            f"Mayor: Mayor {rng.choice(MAYORS)} (since {rng.randint(1, 28)} May {year})",
            f"The old town of {town} lies on the river {fixed.choice(RIVERS)}, where two roads meet at a market.",
            f"Its bridge was built in {fixed.randint(1700, 1950)} after the flood had carried the wooden one away.",
        ]
    )


def pair(number):
    """A town as it was and as it is."""
    town = f"Town {chr(65 + number % 26)}{number}"
    old, new = (text(town, random.Random(f"{number} {year}"), year=year) for year in (2021, 2024))
    return [Document(f"towns/{number}.md", town, one, "towns") for one in (old, new)]


def build(folder, *, trained=30, held=12):
    """A corpus of so many towns."""
    folder.mkdir(parents=True)
    olds, news, helds = [], [], []
    for number in range(trained):
        rows = rows_of_pair(*pair(number))
        olds += rows.old
        news += rows.new
    helds = [held_out_of(*pair(number)) for number in range(trained, trained + held)]
    for name, rows in (("old", olds), ("new", news), ("held-out", helds)):
        write(folder / f"{name}.jsonl", rows)
    (folder / "MANIFEST.json").write_text("{}")
    return folder


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
