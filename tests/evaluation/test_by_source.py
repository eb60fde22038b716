"""What each source of old has lost: against the same by hand."""

import numpy as np
import pytest

from srt_peft.evaluation.by_source import MOST, by_source

ROWS = [("old", "work", "a"), ("old", "work", "b"), ("old", "home", "c"), ("new", "work", "d")]


def records(*values, weights=(1.0, 1.0, 1.0, 1.0)):
    return [
        {"split": split, "source": source, "key": key, "value": value, "weight": weight}
        for (split, source, key), value, weight in zip(ROWS, values, weights, strict=True)
    ]


def test_each_source_counts_once_in_the_mean():
    """However many questions it has; new questions do not; the largest source stands first."""
    base = records(1, 1, 1, 0)
    found = by_source("qa", "accuracy", base, {"a": [records(0, 1, 1, 1), records(0, 0, 1, 1)], "b": [base]})
    assert found.questions == {"work": 2, "home": 1}
    one, other = found.rows
    assert one.sources == {
        "work": {"mean": 0.75, "sd": pytest.approx(np.std([0.5, 1.0], ddof=1))},
        "home": {"mean": 0.0, "sd": 0.0},
    }
    assert one.mean["mean"] == pytest.approx(0.375)
    assert one.worst == "work"
    assert other.mean == {"mean": 0.0, "sd": None}


def test_of_nll_more_is_worse_and_tokens_weigh():
    """(0.5·1 + 0.1·3)/4 a token of work, and home has got better."""
    weights = (1.0, 3.0, 2.0, 1.0)
    base, after = (records(*values, weights=weights) for values in ((1.0, 2.0, 3.0, 5.0), (1.5, 2.1, 2.9, 4.0)))
    [row] = by_source("held out", "nll", base, {"a": [after]}).rows
    assert {name: spread["mean"] for name, spread in row.sources.items()} == pytest.approx({"work": 0.2, "home": -0.1})
    assert row.worst == "work"


NONE = {
    "one source": lambda row: {**row, "source": "work"},
    "no sources": lambda row: {key: value for key, value in row.items() if key != "source"},
    "some without": lambda row: {**row, "source": None if row["key"] == "a" else row["source"]},
}


@pytest.mark.parametrize("case", NONE)
def test_where_there_is_nothing_to_tell_apart_there_is_no_table(case):
    base = [NONE[case](row) for row in records(1, 1, 1, 0)]
    assert by_source("qa", "accuracy", base, {"a": [base]}) is None


def test_of_very_many_sources_there_is_no_table():
    base = [{"split": "old", "source": str(i), "key": str(i), "value": 1.0, "weight": 1.0} for i in range(MOST + 1)]
    assert by_source("qa", "accuracy", base, {"a": [base]}) is None
    assert len(by_source("qa", "accuracy", base[:MOST], {"a": [base]}).questions) == MOST
