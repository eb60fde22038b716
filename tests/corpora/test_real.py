"""On real snapshots, where they are there: the rows' invariants, and agreement with the slow and obvious way."""

import gzip
import json
import os
import random
from pathlib import Path

import pytest

from srt_peft.corpora.diffs import changes_of
from srt_peft.corpora.documents import Document
from srt_peft.corpora.rows import rows_of_pair
from srt_peft.corpora.sentences import sentences_of
from tests.corpora import naive

PAIRS = {
    "factbook": ("factbook/factbook_docs_2021-12-30", "factbook/factbook_docs_2024-07-11"),
    "peps": ("peps/peps_2021-12-31", "peps/peps_2024-07-01"),
    "wiki": ("wiki_pairs/enwiki_2015.dev", "wiki_pairs/enwiki_2017.dev"),
}


def snapshots(name):
    root = os.environ.get("SRT_PEFT_DATA")
    if not root:
        pytest.skip("SRT_PEFT_DATA does not name a folder with factbook, peps and wiki_pairs")
    for path in PAIRS[name]:
        with gzip.open(Path(root) / f"{path}.jsonl.gz", "rt") as file:
            yield {row["id"]: row["text"] for row in map(json.loads, file)}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_rows_tile_every_old_document_and_no_new_sentence_stands_in_it(name):
    old, new = snapshots(name)
    learned = 0
    for key in [key for key in old if key in new]:
        rows = rows_of_pair(Document(key, "", old[key]), Document(key, "", new[key]))
        assert "".join(old[key][slice(*row["span"])] for row in rows.old) == old[key]
        whole = f" {' '.join(s.words for s in sentences_of(old[key]))} "
        spans = [row["span"] for row in rows.new]
        for one in sentences_of(new[key]):
            if any(begin <= one.start and one.end <= end for begin, end in spans):
                learned += 1
                assert f" {one.words} " not in whole
    assert learned > 5_000


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_the_slow_and_obvious_way_finds_the_same(name):
    """What is new and what is gone: exactly. Which replaces which: all but where the textbook aligns otherwise."""
    old, new = snapshots(name)
    shared = [key for key in old if key in new and len(old[key]) + len(new[key]) < 24_000]
    agreed = asked = 0
    for key in random.Random(0).sample(shared, 60):
        before, after = sentences_of(old[key]), sentences_of(new[key])
        found = changes_of(before, after)
        gone = {i for i, s in enumerate(before) if not naive.stands(s, after)}
        fresh = {j for j, s in enumerate(after) if not naive.stands(s, before)}
        assert {*found.deleted, *(i for i, _ in found.modified)} == gone
        assert {*found.inserted, *(j for _, j in found.modified)} == fresh
        expected = naive.pairs(before, after, gone, fresh)
        agreed += len(expected & set(found.modified))
        asked += len(expected | set(found.modified))
    print(f"{name}: {agreed} of {asked} pairs agree")  # noqa: T201 - for whoever runs it by hand
    assert agreed >= 0.97 * asked > 0
