"""A comparison's page, made of what a real one has written."""

import json
import re
import shutil

import pytest

from srt_peft import cli
from srt_peft.errors import DamagedError
from srt_peft.report.contest import of_contest, read_contest
from srt_peft.report.page import write


@pytest.fixture
def copy(contest, tmp_path):
    """The contest's own file, to be changed, and the metrics of its runs."""
    shutil.copytree(contest, tmp_path / "contest", symlinks=True)
    return tmp_path / "contest"


def spoil(folder, **changes):
    path = folder / "contest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_every_scheduler_stands_in_the_plane(contest):
    """Where the results say, with bars as long as their intervals; perplexity's axes are turned."""
    said = json.loads((contest / "contest.json").read_text())
    planes = of_contest(read_contest(contest))[0].charts
    assert len(planes) == len(said["results"]) >= 2
    for plane, result in zip(planes, said["results"], strict=True):
        assert [trace.name for trace in plane.figure.data] == ["base", "cpt", "srt"]
        accuracy = result["metric"] == "accuracy"
        assert (plane.figure.layout.xaxis.autorange == "reversed") is not accuracy
        assert ("turned" in plane.reading) is not accuracy
        for trace, standing in zip(plane.figure.data, result["standings"], strict=True):
            old = standing["scores"]["old"]
            if accuracy:
                assert trace.y[0] == pytest.approx(100 * old["mean"])
                assert trace.error_y.array[0] == pytest.approx(100 * (old["high"] - old["mean"]))
                assert trace.error_y.arrayminus[0] == pytest.approx(100 * (old["mean"] - old["low"]))
                assert trace.x[0] == pytest.approx(100 * standing["scores"]["new"]["mean"])


def test_the_page_has_the_tables_and_the_sentences(contest):
    assert cli.main(["report", str(contest)]) == 0
    text = re.sub(r"<script.*?</script>", "", (contest / "report.html").read_text(), flags=re.DOTALL)
    said = json.loads((contest / "contest.json").read_text())
    assert text.count("<li>") >= len(said["sentences"]) > 0
    for told in ("What each was shown", "What each cost", "runs done</dt><dd>4 of 4", "old in the draws", "seeds ±"):
        assert told in text
    for result in said["results"]:
        assert f"<caption>{result['title']}</caption>" in text
    assert "Perplexity of old, held out" in text
    assert (contest / "report.html").stat().st_size < 6e6


def test_an_unfinished_comparison_is_told(copy):
    said = json.loads((copy / "contest.json").read_text())
    spoil(copy, complete=False, runs=said["runs"][:1])
    assert "1 of 4 runs are done, and only these are shown" in write(copy).read_text()


def test_one_run_links_to_its_own_page(copy):
    write(copy / "srt/seed-1")
    assert 'href="srt/seed-1/report.html"' in write(copy).read_text()


def test_one_training_each_has_no_spread(copy):
    """Null where a deviation or an interval cannot be."""
    text = (copy / "contest.json").read_text()
    (copy / "contest.json").write_text(re.sub(r'"(sd|between|low|high|p)": [-\d.e]+', r'"\1": null', text))
    text = write(copy).read_text()
    assert "seeds ±" not in text.partition("<h2>Tables")[2].partition("<script>")[0]


@pytest.mark.parametrize("changes", [{"format": "another"}, {"version": 2}, {"runs": [{}]}, {"entries": None}])
def test_a_file_of_another_kind_is_refused(copy, changes):
    spoil(copy, **changes)
    with pytest.raises(DamagedError, match=r"contest\.json is no contest that this srt-peft knows"):
        write(copy)
