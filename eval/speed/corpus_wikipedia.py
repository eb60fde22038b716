"""What `srt-peft corpus wikipedia` costs: its memory as dumps grow, and its speed beside plain decompression.

    python eval/speed/corpus_wikipedia.py DUMP.xml.bz2                 # 100 and 1,000 MiB of XML; half an hour
    python eval/speed/corpus_wikipedia.py DUMP.xml.bz2 --mib 10 50

The pages of a real dump are repeated, under other titles and ids, into two dumps which together have that much XML, as
multistream bz2 of a hundred pages a stream. Of the pages in the later one, a tenth have three sentences more, one in a
hundred is renamed and leaves a redirect behind, one in a hundred is gone, and one in a hundred is new.

MB/s is of XML, as decompressed (10^6 bytes). `bz2` decompresses both dumps, and `read` is the map (decompression, XML,
spool), both in one process; `whole` is the command, from the dumps to the corpus, on all cores. The peaks of memory
(RSS) are of the command's own process and of the largest of its workers. The dumps are deleted afterwards.
"""

from __future__ import annotations

import argparse
import bz2
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from xml.sax.saxutils import escape

from srt_peft.corpora.wikipedia import dump, snapshot
from srt_peft.corpora.wikipedia.dump import Page, Part, Site
from srt_peft.corpora.wikipedia.spool import spool
from srt_peft.corpora.wikipedia.wikitext import Names

SITE = Site(None, Names(), frozenset({"0"}))
HEAD = (
    '<mediawiki version="0.11" xml:lang="en">\n<siteinfo><dbname>enwiki</dbname>'
    "<base>https://en.wikipedia.org/wiki/Main_Page</base></siteinfo>\n"
)
STREAM = 100
DATES = {"old": "2023-11-01T00:00:00Z", "new": "2024-01-01T00:00:00Z"}


def nobody(_: int) -> None:
    """No progress."""


def pages(base: list[Page], mib: int) -> Iterator[tuple[str | None, str | None]]:
    """Pairs of XML, until both dumps together have that many MiB."""
    dice, made, number = random.Random(0), 0, 0
    while made < mib << 20:
        for page in base:
            number += 1
            key, title, lot = str(number), f"{page.title} {number}", dice.random()
            old: str | None = element(key, title, page.text, page.redirect, "old")
            new: str | None = element(key, title, page.text, page.redirect, "new")
            if page.redirect is None and lot < 0.01:
                new = None
            elif page.redirect is None and lot < 0.02:
                old = None
            elif page.redirect is None and lot < 0.03:
                moved = f"{title} (renamed)"
                new = element(key, moved, page.text, None, "new")
                new += element(f"9{key}", title, f"#REDIRECT [[{moved}]]", moved, "new")
            elif page.redirect is None and lot < 0.13:
                new = element(key, title, edited(page.text, dice), None, "new")
            made += len(old or "") + len(new or "")
            yield old, new


def edited(text: str, dice: random.Random) -> str:
    ends = [found.end() for found in re.finditer(r"[a-z]\. (?=[A-Z])", text)]
    for at in sorted(dice.sample(ends, min(3, len(ends))), reverse=True):
        text = f"{text[:at]}In {dice.randrange(1900, 2024)} it was measured {dice.randrange(10**6)} times. {text[at:]}"
    return text


def element(key: str, title: str, text: str, redirect: str | None, side: str) -> str:
    lead = "" if redirect is None else f'<redirect title="{escape(redirect, {chr(34): "&quot;"})}" />'
    return (
        f"<page><title>{escape(title)}</title><ns>0</ns><id>{key}</id>{lead}<revision><id>{key}</id>"
        f"<timestamp>{DATES[side]}</timestamp><model>wikitext</model>"
        f'<text xml:space="preserve">{escape(text)}</text></revision></page>\n'
    )


def generate(base: list[Page], folder: Path, mib: int) -> tuple[int, int]:
    """Write both dumps; their XML and their pages."""
    xml = number = 0
    files = {side: (folder / f"{side}.xml.bz2").open("wb") for side in DATES}
    for file in files.values():
        file.write(bz2.compress(HEAD.encode()))

    def streams() -> Iterator[tuple[str, bytes]]:
        held: dict[str, list[str]] = {side: [] for side in DATES}
        for pair in pages(base, mib):
            for side, one in zip(DATES, pair, strict=True):
                held[side] += [one] if one else []
                if len(held[side]) == STREAM:
                    yield side, "".join(held[side]).encode()
                    held[side] = []
        yield from ((side, ("".join(rest) + "</mediawiki>\n").encode()) for side, rest in held.items())

    with Pool() as pool:
        for side, size, count, packed in pool.imap(pack, streams(), chunksize=1):
            files[side].write(packed)
            xml, number = xml + size, number + count
    for file in files.values():
        file.close()
    return xml, number


def pack(stream: tuple[str, bytes]) -> tuple[str, int, int, bytes]:
    side, raw = stream
    return side, len(raw), raw.count(b"<page>"), bz2.compress(raw)


def decompressed(folder: Path) -> float:
    begun = time.perf_counter()
    for side in DATES:
        with bz2.open(folder / f"{side}.xml.bz2") as file:
            while file.read(1 << 20):
                pass
    return time.perf_counter() - begun


def read(folder: Path) -> float:
    begun = time.perf_counter()
    for side in DATES:
        path = folder / f"{side}.xml.bz2"
        for i, part in enumerate(dump.parts_of(path, dump.survey(path, nobody))):
            spool(part, SITE, folder / f"{side}-{i}")
    taken = time.perf_counter() - begun
    for path in folder.glob("*-*"):
        path.unlink()
    return taken


COMMAND = """
import json, resource, sys, time
from srt_peft.cli import main
begun = time.perf_counter()
code = main(sys.argv[1:])
peaks = [resource.getrusage(who).ru_maxrss // 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([code, time.perf_counter() - begun, *peaks]))
"""


def whole(folder: Path) -> tuple[float, int, int]:
    paths = [f"--{side}={folder / f'{side}.xml.bz2'}" for side in DATES]
    words = [sys.executable, "-c", COMMAND, "corpus", "wikipedia", *paths, f"--out={folder / 'corpus'}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    code, seconds, own, worker = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return seconds, own, worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dump", type=Path, help="a real dump, whose pages are repeated")
    parser.add_argument("--mib", type=int, nargs="+", default=[100, 1000], help="of XML in both dumps together")
    args = parser.parse_args()
    base = list(snapshot.read(Part(args.dump, 0, args.dump.stat().st_size), SITE, {}, nobody))
    print(f"| {'MiB of XML':>10} | {'pages':>7} | {'bz2 MB/s':>8} | {'read MB/s':>9} | {'whole MB/s':>10} "
          f"| {'own peak MiB':>12} | {'worker peak MiB':>15} |")  # fmt: skip
    print(f"|{'-' * 11}:|{'-' * 8}:|{'-' * 9}:|{'-' * 10}:|{'-' * 11}:|{'-' * 13}:|{'-' * 16}:|")
    for mib in args.mib:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            xml, number = generate(base, folder, mib)
            rates = [xml / 1e6 / seconds for seconds in (decompressed(folder), read(folder))]
            seconds, own, worker = whole(folder)
            print(f"| {xml / 2**20:>10,.0f} | {number:>7,} | {rates[0]:>8.1f} | {rates[1]:>9.1f} "
                  f"| {xml / 1e6 / seconds:>10.1f} | {own:>12,} | {worker:>15,} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
