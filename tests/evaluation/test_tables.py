"""The tables, to the letter where people read them, and whole whatever the labels."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from srt_peft.evaluation import tables
from srt_peft.evaluation.bootstrap import Estimate
from srt_peft.evaluation.compare import Comparison, Effect, Standing, compare
from srt_peft.evaluation.tables import FORMATS, latex, markdown, terminal, to_json
from tests.evaluation.test_compare import records

AWKWARD = [
    r"a|b",
    r"50%_of #1 & \rho^2 ~{x}",
    "**bold** [link](u) <i>",
    "$x$",
    "two\nlines\x1b[31m",
    "日本語",
    "é́",
    "",
    "`",
]


def standing(label, old, new, *, between=None, effects=()):
    """A condition with these scores, each a mean and a deviation."""
    both = ((old[0] + new[0]) / 2, 0.015)

    def score(mean, sd):
        return Estimate(mean, sd, mean - 2 * sd, mean + 2 * sd, 500, (mean,), between)

    scores = {name: score(*numbers) for name, numbers in (("old", old), ("new", new), ("combined", both))}
    trainings = 1 if between is None else 3
    return Standing(label, trainings, scores, dict(effects), ())


def paper(**other):
    """The paper's first rows."""
    lost = Effect("forgetting", Estimate(0.0534, 0.02, 0.0123, 0.094, 500, (0.0534,), None), 0.0004)
    learned = Effect("transfer", Estimate(-0.0002, 0.02, -0.041, 0.04, 500, (-0.0002,), None), 0.9)
    return Comparison(
        "qa", "accuracy", "points", "Base", ("old", "new"), 0.95, 10_000, 0,
        (
            standing("Base", (0.543, 0.021), (0.131, 0.015)),
            standing("CPT", (0.117, 0.014), (0.17, 0.014)),
            standing("SRT", (0.49, 0.021), (0.2, 0.017), effects=[("old", lost), ("new", learned)], **other),
        ),
    )  # fmt: skip


def real(labels=("base", "cpt", "srt", "srt"), **options):
    """A comparison of answers, by chance."""
    rng = np.random.default_rng(0)
    targets = [(label, records(old=rng.random(50) < 0.6, new=rng.random(30) < 0.4)) for label in labels]
    return compare("qa", targets, base=labels[0], resamples=200, **options)


def test_the_terminal_shows_aligned_columns():
    assert terminal(paper()) == f"{TERMINAL}\n{NOTE}\n"


def test_latex_is_the_papers():
    r"""Booktabs, $54.3\pm2.1$, the best update in bold, and the base never."""
    assert latex(paper()) == f"% {NOTE}\n{LATEX}"


def test_markdown_is_githubs():
    assert markdown(paper()) == f"{MARKDOWN}\n{NOTE}\n"


def test_trainings_stand_in_brackets_and_in_the_note():
    with_trainings = paper(between=0.007)
    assert "49.0 ± 2.1 (± 0.7)" in terminal(with_trainings)
    assert r"\textbf{\boldmath $49.0\pm2.1\;(\pm0.7)$}" in latex(with_trainings)
    assert "in brackets, standard deviation between trainings (SRT 3)" in terminal(with_trainings)
    assert "(±" not in terminal(paper())


def test_the_best_are_equal_to_the_printed_digit():
    """Where two updates look alike both are bold; one update alone is not the best of anything."""
    comparison = paper()
    base, cpt, srt = comparison.standings
    tie = replace(comparison, standings=(base, replace(cpt, scores=srt.scores), srt))
    assert latex(tie).count(r"\textbf") == 6
    level = replace(comparison, standings=(replace(base, scores=srt.scores), cpt, srt))
    assert latex(level).count(r"\textbf") == 3
    assert latex(replace(comparison, standings=(base, srt))).count(r"\textbf") == 0
    assert latex(replace(comparison, base=None)).count(r"\textbf{\boldmath $54.3") == 1


def test_the_lowest_perplexity_is_the_best_and_is_shown_as_one():
    targets = [(label, records(changed=[nll, nll + 1])) for label, nll in (("base", 7.0), ("cpt", 8.0), ("srt", 7.2))]
    text = latex(compare("temporalwiki", targets, metric="nll", base="base", resamples=200))
    assert f"\\textbf{{\\boldmath ${np.exp(7.7):.0f}\\pm" in text
    assert f"cpt & ${np.exp(8.5):.0f}\\pm" in text
    assert "nats a token" in text
    assert "$-1.000$" in text


def test_many_splits_stand_in_rows():
    tasks = {f"task_{i}": [1, 0, 1] for i in range(9)}
    text = terminal(compare("broad", [("base", records(**tasks)), ("srt", records(**tasks))], resamples=100))
    assert re.search(r"^broad +base +srt$", text, re.MULTILINE)
    assert re.search(r"^task_8 +66\.7 ± \d\d\.\d +66\.7 ± \d\d\.\d$", text, re.MULTILINE)


def test_the_verdict_stands_below():
    comparison = real(max_forgetting=2.0)
    sentence = comparison.standings[1].verdicts[0].sentence
    assert f"cpt: {sentence}" in terminal(comparison)
    assert "cpt: " in markdown(comparison)


# --- whatever the labels ----------------------------------------------------------------------------------------------

LABELS = st.one_of(st.sampled_from(AWKWARD), st.text(max_size=12))


def columns(line):
    """How many cells a Markdown row has: bars that nothing escapes."""
    return len(re.findall(r"(?<!\\)(?:\\\\)*\|", line))


@given(LABELS)
def test_markdown_tables_stay_whole(label):
    for block in markdown(real(("base", "x" + label, "y"))).split("\n\n")[:2]:
        assert len({columns(line) for line in block.splitlines()}) == 1
        assert all(line.startswith("| ") and line.endswith(" |") for line in block.splitlines())


@given(LABELS)
def test_latex_tables_stay_whole(label):
    """As many columns in each row, braces that close, nothing commented out, and no math that a label opened."""
    for line in latex(real(("base", "x" + label, "y"))).splitlines()[1:]:
        bare = re.sub(r"\\.", "", line)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        assert not set("#%~") & set(bare)
        if line.endswith(r"\\"):
            assert bare.count("&") in (3, 5)


@given(LABELS)
def test_the_terminals_columns_stay_aligned(label):
    """A label brings no line break and no escape sequence; wide characters count as two."""
    table = tables._aligned(
        [[tables._Cell("x" + label), tables._Cell("1")], [tables._Cell("base"), tables._Cell("22")]]
    )
    assert "\x1b" not in table
    head, rule, body = table.splitlines()
    assert tables._width(head) == tables._width(body) == len(rule)


def test_wide_and_combining_characters_are_counted_as_they_are_shown():
    assert [tables._width(text) for text in ("ab", "日本", "é")] == [2, 4, 1]


# --- JSON -------------------------------------------------------------------------------------------------------------


def test_the_json_is_the_schema_in_the_docstring():
    """The same names at every level, read out of the docstring."""
    document = json.loads(to_json(real(max_forgetting=2.0)))
    keys = set()

    def walk(value, inside=None):
        if isinstance(value, dict):
            keys.update(() if inside in {"scores", "effects"} else value)
            for name, inner in value.items():
                walk(inner, name)
        elif isinstance(value, list):
            for inner in value:
                walk(inner, inside)

    walk(document)
    assert keys == set(re.findall(r'(?<!\| )"(\w+)":', tables.__doc__))
    assert list(document)[:4] == ["format", "version", "suite", "metric"]
    assert document["standings"][2]["effects"]["old"]["kind"] == "forgetting"
    assert len(document["standings"][2]["scores"]["old"]["runs"]) == 2


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_none_are_null(number):
    comparison = paper()
    srt = comparison.standings[2]
    broken = replace(srt, scores={**srt.scores, "old": replace(srt.scores["old"], sd=number)})
    text = to_json(replace(comparison, standings=(broken,)))
    assert "NaN" not in text
    assert "Infinity" not in text
    assert json.loads(text)["standings"][0]["scores"]["old"]["sd"] is None


def test_every_format_is_there_and_ends_its_last_line():
    assert list(FORMATS) == ["terminal", "markdown", "latex", "json"]
    for write in FORMATS.values():
        text = write(real())
        assert text.endswith("\n")
        assert "nan" not in text.lower()


NOTE = (
    "Accuracy in % ± bootstrap standard deviation over questions, 10,000 resamples. Questions: 500 old, 500 new. "
    "Differences are paired by question; p is that of a sign-flip test."
)
TERMINAL = """\
qa           Old         New    Combined
────────────────────────────────────────
Base  54.3 ± 2.1  13.1 ± 1.5  33.7 ± 1.5
CPT   11.7 ± 1.4  17.0 ± 1.4  14.4 ± 1.5
SRT   49.0 ± 2.1  20.0 ± 1.7  34.5 ± 1.5

against Base   on              points  95 % interval        p
─────────────────────────────────────────────────────────────
SRT           Old  forgetting    +5.3   +1.2 to +9.4  < 0.001
SRT           New    transfer     0.0   −4.1 to +4.0    0.900
"""
LATEX = r"""
\begin{tabular}{lrrr}
\toprule
qa & Old & New & Combined \\
\midrule
Base & $54.3\pm2.1$ & $13.1\pm1.5$ & $33.7\pm1.5$ \\
CPT & $11.7\pm1.4$ & $17.0\pm1.4$ & $14.4\pm1.5$ \\
SRT & \textbf{\boldmath $49.0\pm2.1$} & \textbf{\boldmath $20.0\pm1.7$} & \textbf{\boldmath $34.5\pm1.5$} \\
\bottomrule
\end{tabular}

\begin{tabular}{lrrrrr}
\toprule
against Base & on &  & points & 95 \% interval & p \\
\midrule
SRT & Old & forgetting & $+5.3$ & +1.2 to +9.4 & $<$ 0.001 \\
SRT & New & transfer & $0.0$ & $-$4.1 to +4.0 & 0.900 \\
\bottomrule
\end{tabular}
"""
MARKDOWN = r"""| qa | Old | New | Combined |
| --- | ---: | ---: | ---: |
| Base | 54.3 ± 2.1 | 13.1 ± 1.5 | 33.7 ± 1.5 |
| CPT | 11.7 ± 1.4 | 17.0 ± 1.4 | 14.4 ± 1.5 |
| SRT | **49.0 ± 2.1** | **20.0 ± 1.7** | **34.5 ± 1.5** |

| against Base | on |  | points | 95 % interval | p |
| --- | ---: | ---: | ---: | ---: | ---: |
| SRT | Old | forgetting | +5.3 | +1.2 to +9.4 | \< 0.001 |
| SRT | New | transfer | 0.0 | −4.1 to +4.0 | 0.900 |
"""
