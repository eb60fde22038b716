"""A comparison's page, made of what a real one has written."""

import json
import re
import shutil

import pytest

from srt_peft import cli
from srt_peft.errors import DamagedError, VersionError
from srt_peft.report.contest import of_contest, read_contest, tables
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


def test_perplexities_far_apart_stand_on_logarithmic_axes(copy):
    """Else the base's, which has never seen the new text, presses all others into a corner."""
    said = json.loads((copy / "contest.json").read_text())
    [held_out] = [result for result in said["results"] if result["metric"] == "nll"]
    for mean, kind in ((6.0, "log"), (1.0, None)):
        for standing in held_out["standings"]:
            for score in standing["scores"].values():
                score["mean"] = mean if standing["label"] == "base" else 1.0
        spoil(copy, results=[held_out])
        layout = of_contest(read_contest(copy))[0].charts[0].figure.layout
        assert (layout.xaxis.type, layout.yaxis.type) == (kind, kind)
        assert ("log scale" in layout.xaxis.title.text) == (kind == "log")


def test_the_table_reads_as_the_sentences_do(copy):
    """Better or worse where no interval has 0 in it and p is small; a seed alone has but the questions' interval."""
    found = json.loads((copy / "contest.json").read_text())["differences"][0]
    row = found["rows"][0] | {"split": "old", "mean": 0.031, "p": 0.0004, "seeds": [0, 1]}
    bounds = {
        "better": (0.011, 0.051, 0.02, 0.04), "level": (-0.01, 0.072, 0.02, 0.04), "worse": (-0.4, -0.2, -0.3, -0.1),
        "better ": (None, None, 0.02, 0.04), "level ": (0.011, 0.051, 0.02, 0.04),
    }  # fmt: skip
    names = ("low", "high", "question_low", "question_high")
    rows = [row | dict(zip(names, given, strict=True)) for given in bounds.values()]
    rows[-1]["p"] = 0.25  # of three questions that are all better, which have no spread
    spoil(copy, differences=[found | {"metric": "accuracy", "rows": rows}])
    [table] = [table for table in tables(read_contest(copy)) if "above 0 is better" in table.caption]
    assert [row[-1] for row in table.rows] == [name.strip() for name in bounds]
    assert table.rows[0][1:-1] == ["old", "+3.1", "+1.1 to +5.1", "+2.0 to +4.0", "< 0.001", "2"]
    assert table.rows[3][3] == "–"


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
    text = write(copy).read_text()
    assert "1 of 4 runs are done, and only these are shown" in text
    assert "runs done</dt><dd>1 of 4" in text


def test_more_seeds_of_one_scheduler_leave_nothing_unfinished(copy):
    """What was planned counts, and not the whole table of schedulers and seeds."""
    said = json.loads((copy / "contest.json").read_text())
    spoil(copy, planned=said["planned"][:3], runs=said["runs"][:3])
    text = write(copy).read_text()
    assert "is not finished" not in text
    assert "runs done</dt><dd>3 of 3" in text


def test_no_interval_of_a_share_leaves_what_a_share_can_be(copy):
    """Trainings that differ may take its end further; what is shown is cut, and what is saved is as it was."""
    said = json.loads((copy / "contest.json").read_text())
    result = next(result for result in said["results"] if result["metric"] == "accuracy")
    result["standings"][1]["scores"]["old"] |= {"mean": 0.97, "low": -0.02, "high": 1.04}
    spoil(copy, results=[result])
    read = read_contest(copy)
    trace = of_contest(read)[0].charts[0].figure.data[1]
    assert trace.y[0] + trace.error_y.array[0] == pytest.approx(100)
    assert trace.y[0] - trace.error_y.arrayminus[0] == pytest.approx(0)
    assert "0.0\u202f% to 100.0\u202f%" in tables(read)[0].rows[1][1]


def test_one_run_links_to_its_own_page(copy):
    write(copy / "srt/seed-1")
    assert 'href="srt/seed-1/report.html"' in write(copy).read_text()


def test_one_training_each_has_no_spread(copy):
    """Null where a deviation or an interval cannot be."""
    text = (copy / "contest.json").read_text()
    (copy / "contest.json").write_text(re.sub(r'"(sd|between|low|high|p)": [-\d.e]+', r'"\1": null', text))
    text = write(copy).read_text()
    assert "seeds ±" not in text.partition("<h2>Tables")[2].partition("<script>")[0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"format": "another"}, "it.format is 'another'"), ({"version": None}, "it.version is 'None'"),
        ({"runs": [{}]}, r"it.runs[0] has no entry"), ({"entries": None}, "it.entries is 'None'"),
        ({"entries": ["cpt"]}, "runs has 'srt', which entries has not"), ({"sentences": None}, "it.sentences is"),
        ({"seeds": "01"}, "it.seeds is '01'"), ({"recipe": {}}, "it.recipe has no model"),
        ({"exposure": {"srt": {"coverage_old": 0.5}}}, "it.exposure.srt.coverage_old is '0.5'"),
        ({"results": [{"metric": "charm"}]}, "it.results[0] has no title"),
        ({"differences": [3]}, "it.differences[0] is '3'"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_refused(changes, told, copy):
    """By the place where it is amiss, whatever that is."""
    spoil(copy, **changes)
    with pytest.raises(DamagedError, match=r"contest\.json is damaged \(.* keeps the runs that are finished") as error:
        write(copy)
    assert told in str(error.value)
    assert "Remove it and run the same comparison again" in str(error.value)


def test_a_file_of_another_version_is_no_damage(copy):
    spoil(copy, version=2)
    with pytest.raises(VersionError, match=r"contest\.json is of version 2; this srt-peft reads 1"):
        write(copy)


def test_whatever_is_lacking_is_told_in_words(copy):
    """Any key of any depth, one at a time: no damage comes as a surprise."""
    whole = json.loads((copy / "contest.json").read_text())

    def places(value, path=()):
        if isinstance(value, dict):
            for name in value:
                yield (*path, name)
                yield from places(value[name], (*path, name))
        elif isinstance(value, list) and value:
            yield from places(value[0], (*path, 0))

    for path in places({key: value for key, value in whole.items() if key != "recipe"}):
        said = json.loads(json.dumps(whole))
        inner = said
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]
        (copy / "contest.json").write_text(json.dumps(said))
        try:
            read = read_contest(copy)
            of_contest(read)
            tables(read)
        except DamagedError:
            continue
        except Exception as error:
            raise AssertionError(path) from error
