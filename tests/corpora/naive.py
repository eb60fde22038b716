"""Slow and obvious: what changed between two texts, by its definition."""

import itertools
import re

from srt_peft.corpora.diffs import ALIKE


def stands(sentence, text):
    """Whether its words stand in a row somewhere in the other text."""
    words, others = sentence.words.split(), [word for other in text for word in other.words.split()]
    return any(others[i : i + len(words)] == words for i in range(len(others) - len(words) + 1))


def alike(one, other):
    """How alike two sentences are, whatever their numbers are; two fields, by their labels."""
    labels = [s.label or "" if s.opens else "" for s in (one, other)]
    if re.findall(r"\d+", labels[0]) != re.findall(r"\d+", labels[1]):
        return 0
    share = dice(*(re.sub(r"\d+", "0", s.words) for s in (one, other)))
    if share < ALIKE:
        return 0
    if all(labels):
        same = dice(*labels)
        return 1 + share if same == 1 else same if same >= ALIKE else 0
    return share


def dice(one, other):
    """The share of their words that two texts have in common."""
    left, right = (set(re.findall(r"\w+", text.casefold())) for text in (one, other))
    common = [word for word in left if word in right]
    return 2 * len(common) / max(1, len(left) + len(right))


def best_total(old, new):
    """The most that pairs which do not cross can be alike in all: every choice of pairs, tried."""
    most = 0
    for count in range(min(len(old), len(new)) + 1):
        for left in itertools.combinations(range(len(old)), count):
            for right in itertools.combinations(range(len(new)), count):
                table = [alike(old[i], new[j]) for i, j in zip(left, right, strict=True)]
                most = max(most, sum(table))
    return most


def labelled_once(text):
    """The labels that one line has, and no other."""
    labels = [s.label for s in text if s.opens and s.label]
    return {label for label in labels if labels.count(label) == 1}


def pairs(old, new, gone, fresh):
    """Which sentence replaces which: by a label that both texts have once; else in order, between what both have."""
    once = labelled_once(old) & labelled_once(new)
    found = {
        (i, j)
        for i in gone
        for j in fresh
        if old[i].opens and new[j].opens and old[i].label in once and old[i].label == new[j].label
    }
    taken, used = {i for i, _ in found}, {j for _, j in found}
    for left, right in gaps(old, new):
        mine = [i for i in left if i in gone - taken], [j for j in right if j in fresh - used]
        found |= {
            (mine[0][i], mine[1][j]) for i, j in best_in_order([old[i] for i in mine[0]], [new[j] for j in mine[1]])
        }
    return found


def best_in_order(old, new):
    """The pairs that do not cross whose likeness is the most in all: the textbook's recursion, from the end."""
    best = {}
    for i in range(len(old) + 1):
        for j in range(len(new) + 1):
            ways = [(0, ())] if not i or not j else [best[i - 1, j], best[i, j - 1]]
            share = alike(old[i - 1], new[j - 1]) if i and j else 0
            if share:
                total, chosen = best[i - 1, j - 1]
                ways.append((total + share, (*chosen, (i - 1, j - 1))))
            best[i, j] = max(ways, key=lambda way: way[0])
    return set(best[len(old), len(new)][1])


def gaps(old, new):
    """Between the sentences of a longest common subsequence, by the textbook's table: what is on either side."""
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old)):
        for j in range(len(new)):
            same = old[i].words == new[j].words
            table[i + 1][j + 1] = table[i][j] + 1 if same else max(table[i][j + 1], table[i + 1][j])
    found, i, j = [], len(old), len(new)
    left, right = [], []
    while i or j:
        if i and j and old[i - 1].words == new[j - 1].words:
            found.append((left[::-1], right[::-1]))
            left, right, i, j = [], [], i - 1, j - 1
        elif j == 0 or (i and table[i - 1][j] >= table[i][j - 1]):
            i -= 1
            left.append(i)
        else:
            j -= 1
            right.append(j)
    return [*found, (left[::-1], right[::-1])][::-1]
