"""The support matrix names tests that exist, and the versions that are tested."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text()
TESTS = {path.name: path.read_text() for path in Path(__file__).parent.glob("*.py")}


def test_every_test_that_the_matrix_names_is_there():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 10
    there = {name for text in TESTS.values() for name in re.findall(r"def (test_\w+)", text)}
    assert named <= there
    assert set(re.findall(r"`(test_\w+\.py)`", PAGE)) <= TESTS.keys()


@pytest.mark.parametrize("column", ["oldest", "newest"])
def test_the_versions_are_those_of_the_constraints(column):
    path = {"oldest": ROOT / ".ci" / "oldest.txt", "newest": ROOT / "constraints.txt"}[column]
    if not path.exists():
        pytest.skip("not in a clone: .ci is not there")
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", path.read_text(), re.MULTILINE))
    rows = re.findall(r"^\| (\w+) \| (\d[\d.]+) \| (\d[\d.]+) \|$", PAGE, re.MULTILINE)
    assert len(rows) == 5
    assert {name: (old if column == "oldest" else new) for name, old, new in rows}.items() <= pinned.items()
