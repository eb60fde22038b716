"""Texts that are edited as people edit them."""

import random

from hypothesis import strategies as st

WORDS = "river bridge stone lamp night morning town water boat sheep Anna Boris held carried counted rose fell".split()  # noqa: SIM905


def sentence(rng):
    kind = rng.random()
    words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12)))
    if kind < 0.2:
        return f"{rng.choice(WORDS).capitalize()} {rng.choice(['', '2019', '2020'])}: {words} {rng.randint(0, 99)}\n"
    if kind < 0.3:
        return f"- {words}\n"
    return f"{words.capitalize()} {rng.randint(0, 99)}{rng.choice('.!?')}{rng.choice([' ', ' ', chr(10), chr(10) * 2])}"


def prose(seed, count=12):
    rng = random.Random(seed)
    return "".join(sentence(rng) for _ in range(count))


TEXTS = st.builds(prose, st.integers(0, 10**6), st.integers(0, 14))


def edited(text, seed, *, moving=True):
    """Sentences changed in a word, dropped, added, and moved."""
    rng = random.Random(seed)
    parts = [part + "\n" for part in text.replace(". ", ".\n").split("\n")]
    found = []
    for part in parts:
        deed = rng.random()
        if deed < 0.15:
            continue
        if deed < 0.4 and part.strip():
            words = part.split(" ")
            words[rng.randrange(len(words))] = f"{rng.choice(WORDS)}{rng.randint(100, 999)}\n"[: rng.choice([-1, None])]
            part = " ".join(words)  # noqa: PLW2901
        if deed > 0.9:
            found.append(sentence(rng))
        found.append(part)
    if moving and len(found) > 2:
        at = rng.randrange(len(found))
        found.insert(rng.randrange(len(found)), found.pop(at))
    return "".join(found)
