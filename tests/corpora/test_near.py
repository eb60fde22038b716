"""What has been said before, but for a word or two."""

import random

from srt_peft.corpora.near import NearDuplicates, signature_of
from tests.corpora.worlds import WORDS


def text(seed, count):
    rng = random.Random(seed)
    return " ".join(f"{rng.choice(WORDS)}{rng.randint(0, 999)}" for _ in range(count)).replace("7", "seven")


def shingles(words):
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def test_near_ones_are_seen_and_others_are_not():
    """Held against the likeness itself, which the sketch estimates: from 0.95 on nearly all, below 0.8 none."""
    near, far = [], []
    for seed in range(150):
        words = text(seed, 120).split()
        other = list(words)
        rng = random.Random(seed)
        for _ in range(rng.randint(0, 12)):
            other[rng.randrange(len(other))] = "changed"
        index = NearDuplicates()
        assert not index.seen(signature_of(" ".join(words), numbers=False))
        alike = len(shingles(words) & shingles(other)) / len(shingles(words) | shingles(other))
        found = index.seen(signature_of(" ".join(other), numbers=False))
        if alike >= 0.95:
            near.append(found)
        elif alike < 0.8:
            far.append(found)
    assert len(near) > 10
    assert sum(near) >= 0.95 * len(near)
    assert len(far) > 20
    assert not any(far)


def test_two_facts_that_differ_in_a_number_are_two():
    fact = "The population of the town by the river is {} as was counted " + text(1, 100)
    assert [NearDuplicates().seen(signature_of(fact.format(n))) for n in (5, 6)] == [False, False]
    for numbers in (True, False):
        index = NearDuplicates()
        said = [index.seen(signature_of(fact.format(n), numbers=numbers)) for n in (5, 6, 5)]
        assert said == [False, not numbers, True]


def test_of_short_texts_only_the_same_is_seen():
    index = NearDuplicates()
    said = ["Head of state: Anna", "Head of state:  Anna\n", "head of state: Boris", ""]
    assert [index.seen(signature_of(one)) for one in said] == [False, True, False, False]


def test_who_was_refused_is_not_remembered():
    """Else likeness would wander, from one near-duplicate to the next."""
    words = text(3, 400).split()
    index = NearDuplicates()
    seen = []
    for k in range(0, 80, 8):
        words[k : k + 8] = [f"other{k}"] * 8
        seen.append(index.seen(signature_of(" ".join(words), numbers=False)))
    assert seen[0] is False
    assert True in seen
    assert seen.count(False) > 1
