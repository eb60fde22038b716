"""Which page became which, held against the definition; and how topics and strata are told."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.wikipedia import choose, pairs
from srt_peft.corpora.wikipedia.choose import median_of, taken_of, write
from srt_peft.corpora.wikipedia.compare import Told
from srt_peft.corpora.wikipedia.dump import Page
from srt_peft.corpora.wikipedia.spool import Spools, _Writer, normalised_title
from srt_peft.corpora.wikipedia.topics import NAMES, STRATA, TOPICS, stratum_of, topic_of


def page(key, title, redirect=None):
    return Page(str(key), title, redirect, "", f"text of {key}")


def aligned(folder, old, new):
    """Who became whom: titles by titles, and how."""
    folder.mkdir(exist_ok=True)
    for name, found in {"old": old, "new": new}.items():
        with _Writer(folder / f"{name}-0") as writer:
            for one in found:
                writer.add(one) if one.redirect is None else writer.redirect(one)
    result = pairs.align(folder, {"old": ["old-0"], "new": ["new-0"]})
    spools = Spools(folder)
    told = [
        (pair.kind, *(spools.page(place).title if place else None for place in (pair.old, pair.new)))
        for heap in pairs.batches(folder, 20, believed=result.believed)
        for pair in heap
    ]
    return result, told


MANY = [page(100 + i, f"Same {i}") for i in range(40)]
"""So that ids are believed."""


def test_each_way_that_a_page_may_go(tmp_path):
    old = [
        page(1, "Moved"),
        page(2, "Again"),
        page(3, "Copied"),
        page(4, "Merged"),
        page(5, "Gone"),
        page(6, "Swap"),
        page(7, "Swop"),
    ]
    new = [
        page(1, "Moved away"), page(9, "Moved", "Moved away"), page(10, "Again"),
        page(11, "Copy"), page(12, "Copied", "Half"), page(13, "Half", "Copy"), page(14, "Merged", "Same 0"),
        page(15, "Gone", "Gone"), page(6, "Swop"), page(7, "Swap"), page(16, "Fresh"),
    ]  # fmt: skip
    result, told = aligned(tmp_path, old + MANY, new + MANY)
    assert told[:7] == [
        ("moved", "Moved", "Moved away"), ("recreated", "Again", "Again"), ("redirected", "Copied", "Copy"),
        ("merged", "Merged", None), ("gone", "Gone", None), ("moved", "Swap", "Swop"), ("moved", "Swop", "Swap"),
    ]  # fmt: skip
    assert told[-1] == ("created", None, "Fresh")
    assert result.kinds == {
        "same": 40,
        "moved": 3,
        "recreated": 1,
        "redirected": 1,
        "merged": 1,
        "gone": 1,
        "created": 1,
    }
    assert result.left_out == {"new: redirects": 5}


def test_row_numbers_are_not_taken_for_ids(tmp_path):
    """One page more at the beginning of the later table would pair each with its neighbour."""
    old = [page(i, f"Page {i}") for i in range(9)]
    new = [page(0, "First"), *(page(i + 1, f"Page {i}") for i in range(9))]
    result, told = aligned(tmp_path, old, new)
    assert not result.believed
    assert told == [*(("same", f"Page {i}", f"Page {i}") for i in range(9)), ("created", None, "First")]


def test_a_page_that_is_there_twice_counts_once(tmp_path):
    result, told = aligned(tmp_path, MANY + MANY[:3], [*MANY, page(7, "same_1"), page(103, "Same 3, moved since")])
    assert len(told) == 40
    assert result.left_out == {"old: pages that were there twice": 3, "new: pages that were there twice": 2}


def naive(old, new):
    """By id and title, by id, by title, and by where the title leads to; each at most once."""
    articles = [[p for p in side if p.redirect is None] for side in (old, new)]
    titles = {p.title: p for p in new}
    both = [(o, n) for o in articles[0] for n in articles[1] if o.id == n.id]
    believed = both and sum(o.title == n.title for o, n in both) >= 0.9 * len(both)
    found = []

    def leads_to(title):
        for _ in range(5):
            if title not in titles or titles[title].redirect is None:
                return titles.get(title)
            title = titles[title].redirect
        return None

    def take(kind, wanted):
        for o in articles[0]:
            for n in articles[1]:
                if wanted(o, n) and all(o is not p and n is not q for _, p, q in found):
                    found.append((kind, o, n))

    if believed:
        take("same", lambda o, n: o.id == n.id and o.title == n.title)
        take("moved", lambda o, n: o.id == n.id)
    take("recreated" if believed else "same", lambda o, n: o.title == n.title)
    take("redirected", lambda o, n: leads_to(o.title) is n)
    known = {id(p) for _, *two in found for p in two}
    alone = [("merged" if leads_to(o.title) else "gone", o, None) for o in articles[0] if id(o) not in known]
    alone += [("created", None, n) for n in articles[1] if id(n) not in known]
    return {(kind, o and o.title, n and n.title) for kind, o, n in found + alone}


def wiki(rng, count):
    """Ids and titles once each; some of them redirects, to anywhere."""
    titles = rng.sample("ABCDEFGHIJ", count)
    ids = rng.sample(range(12), count)
    return [
        page(i, t, rng.choice("ABCDEFGHIJ") if rng.random() < 0.3 else None) for i, t in zip(ids, titles, strict=True)
    ]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.booleans())
def test_alignment_is_what_its_definition_says(tmp_path_factory, seed, believed):
    rng = random.Random(seed)
    old, new = wiki(rng, rng.randint(0, 8)), wiki(rng, rng.randint(0, 8))
    if believed:
        many = [page(100 + i, f"Same {i}") for i in range(90)]
        old, new = old + many, new + many
    _, told = aligned(tmp_path_factory.mktemp("wiki"), old, new)
    assert len(told) == len(set(told))
    assert set(told) == naive(old, new)


def test_titles_are_known_as_mediawiki_knows_them():
    assert normalised_title("  apple__pie ") == "Apple pie"
    assert normalised_title("Cafe\u0301") == "Caf\u00e9"
    assert normalised_title("ßx") == "ßx"
    assert normalised_title("ICE") != normalised_title("Ice")


TOLD = {
    "politics": ("X", "X is a town.", ["Elections in Utopia", "Articles with hCards", "Rivers"]),
    "current affairs": ("2021 Utopia floods", "", []),
    "computer science and AI": ("Quicksort", "Quicksort is a sorting algorithm. It was an election.", []),
    "business and economics": ("X", "", ["Banks of Utopia"]),
    "science and medicine": ("X", "", ["Chemical elements", "Noble gases", "Physics", "Elections"]),
    "law and policy": ("X", "", ["Case law"]),
    "sports and entertainment": ("X", "X is a film. It is about physics.", ["1967 births"]),
    "other": ("X", "X is a town.", ["Towns in Utopia"]),
}


@pytest.mark.parametrize("topic", TOLD)
def test_topics_are_told_by_categories_and_else_by_the_opening(topic):
    assert topic_of(*TOLD[topic]) == topic


def test_there_are_the_papers_seven_topics():
    assert sorted(TOPICS) == sorted(set(TOLD) - {"other"})


def test_strata_are_shares_of_sentences():
    assert [stratum_of("same", changed, 100) for changed in (0, 5, 6, 25, 26)] == [
        "unchanged", "small", "medium", "medium", "large",
    ]  # fmt: skip
    assert stratum_of("created", 0, 0) == "created"


@given(st.lists(st.integers(0, 20), min_size=1))
def test_the_median_of_counts_is_the_median(values):
    import statistics

    assert median_of(Counter(values)) == statistics.median(values)


def heaps(folder, seed, count):
    """Files of pairs as `compare` writes them, and what is in them."""
    rng, told = random.Random(seed), []
    for name in ("heap-0", "heap-1"):
        with (folder / name).open("wb") as file:
            for _ in range(count):
                blocks = [f"{rng.random()}\n".encode() * rng.randint(0, 3) for _ in range(3)]
                sizes = tuple(map(len, blocks))
                one = Told(
                    rng.getrandbits(50),
                    rng.choice(NAMES),
                    rng.choice(STRATA),
                    False,
                    (1, 1),
                    (0, 0, 0),
                    (0, 1, 0),
                    {},
                    sizes,
                )
                file.write(json.dumps(one).encode() + b"\n" + b"".join(blocks))
                told.append((one, blocks))
    return [folder / "heap-0", folder / "heap-1"], told


@pytest.mark.parametrize("per", [None, 1, 3])
def test_of_each_stratum_those_with_the_lowest_hashes_are_taken(tmp_path, per):
    paths, told = heaps(tmp_path, 7, 150)
    wanted = NAMES[:4]
    figures, left_out = write(paths, tmp_path, taken_of(paths, wanted, per), lambda _: None)
    expected = []
    for one, blocks in told:
        same = sorted(other.rank for other, _ in told if (other.topic, other.stratum) == (one.topic, one.stratum))
        if one.topic in wanted and (per is None or one.rank in same[:per]):
            expected.append(blocks)
    for i, name in enumerate(("old", "new", "held-out")):
        assert (tmp_path / f"{name}.jsonl").read_bytes() == b"".join(blocks[i] for blocks in expected)
    assert figures["rows"]["new"] == len(expected)
    assert left_out.total() == len(told) - len(expected)
    assert "politics" in choose.table_of(figures)
