"""On real dumps, where they are there: what is read, what is left of the markup, and agreement with the slow way."""

import bz2
import os
import random
import re
from pathlib import Path

import pytest

from srt_peft.corpora.wikipedia import snapshot
from srt_peft.corpora.wikipedia.build import Options, wikipedia
from srt_peft.corpora.wikipedia.dump import Part
from srt_peft.corpora.wikipedia.wikitext import plain
from tests.corpora.wikis import corpus_of, rows_in

pytestmark = pytest.mark.slow

# Not the pattern by which lines are left out: a wider one, of what markup looks like anywhere.
MARKUP = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\|\||^\s*[|!]|\|\s*(thumb|left|right|upright|\d+\s*px)|\bthumb\b\||''|<!--|-->|&[a-z]+;"
    r"|</?(ref|br|div|span|small|sub|sup|nowiki|table|math|gallery|blockquote|code|references|poem)\b"
    r"|(style|class|align|valign|bgcolor|width|colspan|rowspan|cellpadding)\s*=|\b(File|Image|Category|Template):\w"
    r"|__[A-Z]+__|#REDIRECT|\[https?:|\(\s*[,;]?\s*\)",
    re.MULTILINE,
)


def dumps():
    root = os.environ.get("SRT_PEFT_DATA")
    if not root:
        pytest.skip("SRT_PEFT_DATA does not name a folder with mediawiki_xml")
    return sorted((Path(root) / "mediawiki_xml").glob("*.bz2"))


def test_all_pages_are_read_and_no_markup_is_left():
    articles, redirects, left_out = [], 0, {}
    for path in dumps():
        part = Part(path, 0, path.stat().st_size)
        for page in snapshot.read(part, snapshot.site_of(path, frozenset("0")), left_out, lambda _: None):
            redirects += page.redirect is not None
            articles += [page] if page.redirect is None else []
    assert (len(articles), redirects, left_out) == (111, 99, {"pages of namespace 4": 1})
    found = [plain(page.text) for page in articles]
    assert [match[0] for text, _ in found for match in MARKUP.finditer(text)] == []
    assert sum(broken for _, broken in found) == 0
    assert sum(len(text) for text, _ in found) > 2_500_000


def later(raw, rng):
    """The same dump some years on: sentences inserted and changed, some pages renamed."""
    text = raw.decode().replace("<timestamp>201", "<timestamp>202")
    text = re.sub(
        r"<title>A([a-z]+)</title>", lambda m: m[0] if rng.random() < 0.95 else f"<title>The {m[1]}</title>", text
    )

    def change(match):
        lot = rng.random()
        return f". It rained in {rng.randrange(2000)}. " if lot < 0.01 else " [[and]] " if lot < 0.02 else match[0]

    return re.sub(r"(?<=[a-z])\. (?=[A-Z])| of ", change, text).encode()


def test_the_slow_and_obvious_way_finds_the_same(tmp_path):
    raw = bz2.decompress(max(dumps(), key=lambda path: path.stat().st_size).read_bytes())
    new = later(raw, random.Random(0))
    for name, one in (("old", raw), ("new", new)):
        (tmp_path / f"{name}.xml").write_bytes(one)
    wikipedia([str(tmp_path / "old.xml")], [str(tmp_path / "new.xml")], tmp_path / "wiki", Options(), progress=False)
    named = [re.sub(rb' xmlns="[^"]*"', b"", one, count=1) for one in (raw, new)]
    for name, rows in zip(("old", "new"), corpus_of(*named), strict=True):
        found = {row["id"]: {**row, "source": "", "date": ""} for row in rows_in(tmp_path / "wiki" / f"{name}.jsonl")}
        assert len(rows) > 500
        assert found == {key: {**row, "source": "", "date": ""} for key, row in rows.items()}
