"""Dumps: cut anywhere, packed in any way, they are the same pages; and what is no dump is told of in words."""

import bz2
import gzip
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.corpora.wikipedia import dump, snapshot
from srt_peft.corpora.wikipedia.dump import Part
from srt_peft.errors import OptionError
from tests.corpora.wikis import DATES, element, header, multistream, written, xml

PAGES = [element(i, f"Title {i} & <i>", f"Text <page> of [[{i}]] é " * i) for i in range(1, 12)]
PAGES.insert(5, element(99, "Talk:A", "x", space=1))
PAGES.insert(7, element(98, "Elsewhere", "#REDIRECT [[Title 1]]", "Title 1"))


def nobody(_):
    pass


def read(path, parts=None):
    parts = parts or dump.parts_of(path, dump.survey(path, nobody))
    site = snapshot.site_of(path, frozenset({"0"}))
    left_out = {}
    return [page for part in parts for page in snapshot.read(part, site, left_out, nobody)], left_out


def test_a_page_is_read_as_it_was_written(tmp_path):
    pages, left_out = read(written(tmp_path, "a", PAGES))
    assert [page.title for page in pages[:2]] == ["Title 1 & <i>", "Title 2 & <i>"]
    assert pages[1].text == "Text <page> of [[2]] é " * 2
    assert (pages[1].id, pages[1].timestamp, pages[1].redirect) == ("2", DATES[0], None)
    assert [page.redirect for page in pages if page.redirect] == ["Title 1"]
    assert left_out == {"pages of namespace 1": 1}


@pytest.mark.parametrize("how", [".xml.gz", ".one.xml.bz2", ".xml.bz2"])
def test_however_it_is_packed_it_is_the_same(tmp_path, how):
    assert read(written(tmp_path, "a", PAGES, how)) == read(written(tmp_path, "b", PAGES))


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(1, len(xml(PAGES)) - 1), max_size=8), chunk=st.sampled_from([7, 64, 1 << 20]))
def test_plain_xml_may_be_cut_anywhere(tmp_path_factory, cuts, chunk):
    path = written(tmp_path_factory.mktemp("cut"), "a", PAGES)
    edges = [0, *sorted(set(cuts)), path.stat().st_size]
    parts = [Part(path, a, b) for a, b in pairwise(edges)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "CHUNK", chunk)
        found, _ = read(path, parts)
    assert found == read(path)[0]


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, len(xml(PAGES))), max_size=12), part=st.integers(1, 2000))
def test_streams_may_end_within_pages(tmp_path_factory, cuts, part):
    """pbzip2 ends a stream wherever it likes, and so may begin one with half a tag; some streams are empty."""
    raw, edges = xml(PAGES), [0, *sorted(cuts), len(xml(PAGES))]
    path = tmp_path_factory.mktemp("cut") / "a.xml.bz2"
    path.write_bytes(b"".join(bz2.compress(raw[a:b]) for a, b in pairwise(edges)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "PART", part)
        found, _ = read(path)
    assert found == read(written(path.parent, "b", PAGES))[0]


def test_a_multistream_dump_has_a_part_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "PART", 1)
    path = written(tmp_path, "a", PAGES, ".xml.bz2")
    assert len(dump.parts_of(path, dump.survey(path, nobody))) == 1 + -(-len(PAGES) // 3) + 1


def test_of_a_history_the_newest_revision_is_read(tmp_path):
    page = PAGES[0].replace("<revision>", "<revision><text>before</text></revision>\n<revision>", 1)
    assert read(written(tmp_path, "a", [page]))[0][0].text.startswith("Text")


def test_where_a_redirect_leads_is_said_by_an_attribute_or_by_the_text(tmp_path):
    """Before 2010 there was no element, and before 2012 it had no title."""
    old = element(1, "A", "#redirect: [[B_c#part|d]]")
    between = element(2, "A", "#WEITERLEITUNG [[B]]").replace("<revision>", "<redirect /><revision>")
    lists = [element(3, "A", "# See [[B]]"), element(4, "A", "#item [[B]]")]
    pages, _ = read(written(tmp_path, "a", [old, between, element(5, "A", "", "B#c"), *lists]))
    assert [page.redirect for page in pages] == ["B_c", "B", "B", None, None]


REFUSED = {
    "empty.xml": (b"", "is empty"),
    "short.xml": (xml(PAGES)[:-40], "is cut off"),
    "short.xml.bz2": (multistream(PAGES)[:-30], "is cut off"),
    "streams.xml.bz2": (bz2.compress(xml(PAGES)[:-40]), "is cut off: it has no </mediawiki>"),
    "short.xml.gz": (gzip.compress(xml(PAGES))[:-200], "cannot be decompressed"),
    "page.xml": (b"<html><body></mediawiki>", "is no MediaWiki XML"),
    "text.bz2": (bz2.compress(b"Dear Anna,"), "is no MediaWiki XML"),
    "noise.gz": (b"Dear Anna, " * 9, "cannot be decompressed"),
    "broken.xml": (xml([PAGES[0].replace("<ns>", "<ns")]), "has a page that is no XML"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_whole_dump_is_refused_by_name(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(REFUSED[name][0])
    with pytest.raises(OptionError, match=f"{name} {REFUSED[name][1]}"):
        read(path)


def test_what_was_cut_off_is_told_before_anything_is_read(tmp_path):
    """Of bz2 and of XML the end says so; of gz it cannot be known."""
    for name in ("short.xml", "short.xml.bz2"):
        path = tmp_path / name
        path.write_bytes(REFUSED[name][0])
        with pytest.raises(OptionError, match="is cut off"):
            dump.survey(path, nobody)


def test_damage_within_a_stream_is_noticed(tmp_path):
    raw = bytearray(bz2.compress(xml(PAGES)))
    raw[len(raw) // 2] ^= 255
    path = tmp_path / "a.xml.bz2"
    path.write_bytes(raw)
    with pytest.raises(OptionError, match="cannot be decompressed"):
        read(path)


def test_a_dump_says_of_which_wiki_it_is(tmp_path):
    site = snapshot.site_of(
        written(tmp_path, "a", PAGES, host="de.wikipedia.org", category="Kategorie"), frozenset("0")
    )
    assert site.host == "de.wikipedia.org"
    assert "kategorie" in site.names.category
    assert "category" in site.names.category


def test_files_are_found_by_name_folder_and_pattern(tmp_path):
    for name in ("w-1.xml.bz2", "w-2.xml.bz2", "w-index1.txt.bz2", "notes.txt", "train.parquet"):
        (tmp_path / name).write_bytes(b"x")
    found, faults = snapshot.files_of("old", [str(tmp_path / "w-*.bz2")])
    assert ([path.name for path in found], faults) == (["w-1.xml.bz2", "w-2.xml.bz2"], [])
    assert len(snapshot.files_of("old", [str(tmp_path)])[0]) == 3
    assert snapshot.files_of("new", [str(tmp_path / "no*")])[1][0].startswith("--new = ")
    assert "expected .xml" in snapshot.files_of("new", [str(tmp_path / "notes.txt")])[1][0]


def test_rows_are_pages_of_prose(tmp_path):
    """As wikimedia/wikipedia has them, and as WikiExtractor does, with the title above the text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    url = "https://en.wikipedia.org/wiki/Alps"
    rows = [
        {"id": "7", "url": url, "title": "Alps", "text": "Mountains [[of]] rock."},
        {"id": "8", "url": url, "title": "Void", "text": " "},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text('{"id": 7, "title": "Alps", "text": "Alps\\n\\nMountains [[of]] rock."}\n')
    for name in ("a.parquet", "a.jsonl"):
        (page, *_), left_out = read(tmp_path / name)
        assert (page.id, page.title, page.text, page.plain) == ("7", "Alps", "Mountains [[of]] rock.", True)
    assert snapshot.site_of(tmp_path / "a.parquet", frozenset("0")).host == "en.wikipedia.org"
    assert left_out == {}


def test_rows_without_a_text_are_counted_and_columns_that_lack_are_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"title": "A", "text": null}\n{"title": "B", "text": "b"}\n')
    assert read(tmp_path / "a.jsonl")[1] == {"rows without a title or a text": 1}
    (tmp_path / "b.jsonl").write_text('{"name": "A", "text": "b"}\n')
    with pytest.raises(OptionError, match="has no column 'title'"):
        read(tmp_path / "b.jsonl")


def test_a_page_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(dump, "LONGEST", 1 << 10)
    monkeypatch.setattr(dump, "CHUNK", 1 << 8)
    path = Path(tmp_path / "a.xml")
    path.write_bytes((header() + "<page>" + "x" * 4096 + "</mediawiki>").encode())
    with pytest.raises(OptionError, match="has a page of more than"):
        read(path)
