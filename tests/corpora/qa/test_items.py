"""What is asked of, and that no training row has it."""

import pytest

from srt_peft.corpora.qa.cloze import STOCK
from srt_peft.corpora.qa.items import PASSAGE, hold_apart, items_of, read
from srt_peft.errors import OptionError
from tests.corpora.qa import world


@pytest.fixture
def corpus(tmp_path):
    return world.build(tmp_path / "towns")


def test_old_items_still_stand_and_new_ones_are_new(corpus):
    """Each stands in its passage, and its passage in its document; an updated one knows what it was."""
    items, _ = items_of(read(corpus), 0)
    held = {row["id"]: row for row in world.rows(corpus / "held-out.jsonl")}
    assert {len(items["old"]), len(items["new"])} == {12 * 4, 12 * 3}
    for split, others in items.items():
        for item in others:
            document = held[item.document]
            assert item.passage in document[split]
            assert item.statement in item.passage
            assert len(item.passage) <= PASSAGE + len(item.statement)
            assert (item.statement in document["old"] and item.statement in document["new"]) == (split == "old")
            assert (item.was is None) == (split == "old")
            assert item.was is None or item.was in document["old"]
    assert len({item.id for others in items.values() for item in others}) == 12 * 7


def test_documents_take_turns(corpus):
    """The first so many items are of as many documents."""
    items, _ = items_of(read(corpus), 3)
    assert len({item.document for item in items["new"][:12]}) == 12
    assert [i.id for i in items["new"]] != [i.id for i in items_of(read(corpus), 4)[0]["new"]]


def test_a_document_of_one_snapshot_is_asked_of_as_a_whole(corpus):
    rows = world.rows(corpus / "held-out.jsonl")[:2]
    gone, come = {**rows[0], "new": None, "changes": []}, {**rows[1], "old": None, "changes": []}
    world.write(corpus / "held-out.jsonl", [gone, come])
    items, _ = items_of(read(corpus), 0)
    assert {split: (len(found), {i.document for i in found}) for split, found in items.items()} == {
        "old": (7, {gone["id"]}),
        "new": (7, {come["id"]}),
    }


def apart(folder):
    corpus = read(folder)
    items, _ = items_of(corpus, 0)
    every = [item for found in items.values() for item in found]
    return hold_apart(corpus, every, STOCK), {item.id: item for item in every}


def test_a_training_row_of_a_held_out_document_is_refused_by_name(corpus):
    """By its column, by its id, and by its text under another name."""
    held, rows = world.rows(corpus / "held-out.jsonl"), world.rows(corpus / "new.jsonl")
    planted = {
        "column": {**rows[0], "document": held[0]["id"]},
        "id": {"id": f"{held[1]['id']}#n12", "text": "something"},
        "text": {"id": "a-copy", "text": f"A title\n{held[2]['new']}"},
    }
    world.write(corpus / "new.jsonl", [*rows, *planted.values()])
    with pytest.raises(OptionError) as refused:
        apart(corpus)
    told = refused.value.faults
    assert [fault.rpartition(", which is held out")[0].rpartition("'")[0].rpartition("'")[2] for fault in told] == [
        row["id"] for row in held[:3]
    ]
    assert all(f"new.jsonl, line {len(rows) + i}" in fault for i, fault in enumerate(told, 1))


def test_a_statement_that_a_training_row_has_is_not_asked_for(corpus):
    """However it is wrapped there; a commonplace of a few words is asked for."""
    before, items = apart(corpus)  # towns are few, and some have built a bridge in the same year
    assert len(before) < len(items) / 5
    held, rows = world.rows(corpus / "held-out.jsonl"), world.rows(corpus / "old.jsonl")
    said = next(line for line in held[0]["old"].splitlines() if line.startswith("Its bridge"))
    area = next(line for line in held[0]["old"].splitlines() if line.startswith("Population"))
    assert len(area.split()) < 8
    world.write(
        corpus / "old.jsonl", [*rows, {"id": "x", "text": f"{area}. Once,\n" + said.replace(" in ", "\n  in ")}]
    )
    assert [items[one].statement for one in apart(corpus)[0] - before] == [said]


@pytest.mark.parametrize("name", ["MANIFEST.json", "held-out.jsonl", "old.jsonl", "new.jsonl"])
def test_a_folder_that_is_not_whole_is_refused(corpus, name):
    (corpus / name).unlink()
    with pytest.raises(OptionError, match=f"{name} is not there"):
        read(corpus)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "no document was held out"),
        ('{"id": "a"}\n', "has no column 'title'"),
        ('{"id": "a", "title": "", "source": "", "old": 5, "new": "", "changes": []}\n', "is no held-out document"),
        ('{"id": "a", "title": "", "source": "", "old": "", "new": "", "changes": [3]}\n', "is no held-out document"),
        ("nonsense\n", "is not JSON"),
    ],
)
def test_held_out_documents_that_are_none_are_refused(corpus, content, told):
    (corpus / "held-out.jsonl").write_text(content)
    with pytest.raises(OptionError, match=told):
        read(corpus)
