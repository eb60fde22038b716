"""Records survive a kill, and are never another model's."""

import pytest

from srt_peft.errors import DamagedError, SRTError
from srt_peft.evaluation.records import Records, key_of


def record(i, **more):
    return {"key": key_of(i), "split": "old", "value": i / 10, "weight": 1.0, **more}


def opened(folder, of="a model"):
    return Records(folder, "qa", {"weights": of}, {"questions": "q"})


def test_what_was_added_is_there_again(tmp_path):
    """In its order; and characters that end lines elsewhere do not end them here."""
    first = opened(tmp_path)
    mine = [record(i, text="a\u2028b\u0085c\x0cd") for i in range(3)]
    assert list(first.add(mine)) == mine
    again = opened(tmp_path)
    assert list(again.known.values()) == mine
    assert not again.done
    again.close()
    assert opened(tmp_path).done
    assert list(opened(tmp_path).known.values()) == mine


@pytest.mark.parametrize("torn", [1, 7, 40])
def test_a_torn_last_line_is_cut_off(tmp_path, torn):
    first = opened(tmp_path)
    list(first.add([record(1), record(2)]))
    first.path.write_bytes(first.path.read_bytes()[:-torn])
    again = opened(tmp_path)
    assert [r["value"] for r in again.known.values()] == [0.1]
    list(again.add([record(2)]))
    assert [r["value"] for r in opened(tmp_path).known.values()] == [0.1, 0.2]


def test_a_torn_header_is_written_again(tmp_path):
    first = opened(tmp_path)
    list(first.add([]))
    first.path.write_bytes(first.path.read_bytes()[:20])
    assert opened(tmp_path).known == {}
    list(opened(tmp_path).add([record(1)]))
    assert list(opened(tmp_path).known.values()) == [record(1)]


def test_another_model_has_another_file(tmp_path):
    list(opened(tmp_path).add([record(1)]))
    assert opened(tmp_path, of="another model").known == {}


@pytest.mark.parametrize("harm", [lambda s: s.replace('"key"', '"kex"'), lambda s: s.replace("a model", "b model")])
def test_damage_is_told(tmp_path, harm):
    first = opened(tmp_path)
    list(first.add([record(1), record(2)]))
    first.path.write_text(harm(first.path.read_text()))
    with pytest.raises(DamagedError, match="Delete it to ask again"):
        opened(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_score_that_is_no_number_is_told_and_not_kept(tmp_path, value):
    with pytest.raises(SRTError, match="no finite score"):
        list(opened(tmp_path).add([{**record(1), "value": value}]))
    assert opened(tmp_path).known == {}


def test_a_key_is_the_same_everywhere():
    assert key_of("qa", ["ä", 1]) == "d848f49f6accf1fc"
    assert key_of("qa", ["ä", 1]) != key_of("qa", ["ä", "1"])
