"""Records of several models become scores, forgetting and transfer; what cannot be compared is refused."""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from srt_peft.errors import OptionError
from srt_peft.evaluation.bootstrap import Sample, estimate, paired_p
from srt_peft.evaluation.compare import compare
from srt_peft.evaluation.verdict import FORGOT, KEPT, UNDECIDED, exit_code


def records(weight=1.0, **values):
    """A record a value, by splits; keys are their places."""
    return [
        {"key": f"{i:016x}", "split": split, "value": float(value), "weight": weight}
        for split, of in values.items()
        for i, value in enumerate(of)
    ]


BASE = records(old=[1, 1, 1, 0, 1, 0, 1, 1], new=[0, 0, 1, 0])
CPT = records(old=[0, 1, 0, 0, 1, 1, 0, 1], new=[1, 1, 1, 0])
PAIR = [("base", BASE), ("cpt", CPT)]


def test_scores_forgetting_and_transfer_are_those_worked_out_by_hand():
    base, cpt = compare("qa", PAIR, base="base").standings
    assert {name: score.mean for name, score in base.scores.items()} == {"old": 0.75, "new": 0.25, "combined": 0.5}
    assert {name: score.mean for name, score in cpt.scores.items()} == {"old": 0.5, "new": 0.75, "combined": 0.625}
    assert base.effects == {}
    assert {name: (e.kind, e.difference.mean) for name, e in cpt.effects.items()} == {
        "old": ("forgetting", 0.25),
        "new": ("transfer", 0.5),
        "combined": ("change", 0.125),
    }
    # three lost and one gained: 2·(1 + 4)/2⁴; two gained and none lost: 2/2²
    assert cpt.effects["old"].p == pytest.approx(0.625)
    assert cpt.effects["new"].p == pytest.approx(0.5)


def test_the_numbers_are_the_bootstraps():
    """Scores by themselves, effects from the differences, in the order of the keys."""
    _, cpt = compare("qa", PAIR, base="base", seed=9, level=0.9).standings
    lost = Sample([1, 0, 1, 0, 0, -1, 1, 0])
    assert cpt.effects["old"].difference == estimate(lost, seed=9, level=0.9)
    assert cpt.effects["old"].p == paired_p(lost)
    assert cpt.scores["new"] == estimate(Sample([1, 1, 1, 0]), seed=9, level=0.9)


def test_in_perplexity_worse_is_more():
    """Forgetting is the rise of the NLL, and its perplexities are averaged on request."""
    before, after = records(unchanged=[1.0, 2.0], changed=[3.0, 3.0]), records(unchanged=[1.5, 2.1], changed=[2.0, 2.0])
    _, nll = compare("temporalwiki", [("base", before), ("srt", after)], metric="nll", base="base").standings
    assert list(nll.scores) == ["changed", "unchanged", "combined"]
    assert nll.effects["unchanged"].difference.mean == pytest.approx(0.3)
    assert nll.effects["changed"].difference.mean == pytest.approx(1.0)
    assert nll.effects["changed"].kind == "transfer"
    ppl, _ = compare("temporalwiki", [("base", before), ("srt", after)], metric="perplexity", base="base").standings
    assert ppl.scores["unchanged"].mean == pytest.approx((np.e + np.e**2) / 2)


def test_tokens_weigh():
    long, short = records(4.0, old=[1.0]), records(1.0, new=[2.0])
    both = [{**long[0], "split": "text"}, {**short[0], "split": "text", "key": "b"}]
    assert compare("perplexity", [("base", both)], metric="nll").standings[0].scores["text"].mean == pytest.approx(1.2)


def test_any_other_split_is_something_to_forget():
    """Each broad task by itself, and no combined of tasks."""
    tasks = [(label, records(mmlu=[1, 0, 1], gsm8k=[1, 1, value])) for label, value in (("base", 1), ("srt", 0))]
    comparison = compare("broad", tasks, base="base", max_forgetting=2.0)
    assert comparison.splits == ("mmlu", "gsm8k")
    srt = comparison.standings[1]
    assert {name: effect.kind for name, effect in srt.effects.items()} == {"mmlu": "forgetting", "gsm8k": "forgetting"}
    assert [(v.split, v.level) for v in srt.verdicts] == [("mmlu", 0.975), ("gsm8k", 0.975)]


def test_equal_labels_are_trainings_of_one_condition():
    runs = [records(old=values) for values in ([1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0])]
    comparison = compare("qa", [("base", records(old=[1, 1, 1, 1])), *(("srt", run) for run in runs)], base="base")
    base, srt = comparison.standings
    assert (base.trainings, srt.trainings) == (1, 3)
    assert srt.scores["old"].runs == pytest.approx((0.75, 0.25, 0.5))
    assert srt.scores["old"].between == pytest.approx(0.25)
    assert srt.effects["old"].difference.runs == pytest.approx((0.25, 0.75, 0.5))
    assert base.scores["old"].between is None


def test_the_verdict_follows_the_loss_on_old_alone():
    """A model that forgot, one that did not, one that only failed to learn; the base is not judged."""
    rng = np.random.default_rng(0)
    old, new = rng.random(600) < 0.8, rng.random(600) < 0.3
    targets = [
        ("base", records(old=old, new=new)),
        ("forgetful", records(old=old & (rng.random(600) < 0.7), new=new)),
        ("same", records(old=old, new=new)),
        ("unteachable", records(old=old, new=new * 0)),
    ]
    standings = compare("qa", targets, base="base", max_forgetting=2.0).standings
    outcomes = {s.label: [v.outcome for v in s.verdicts] for s in standings}
    assert outcomes == {"base": [], "forgetful": [FORGOT], "same": [KEPT], "unteachable": [KEPT]}
    assert exit_code(v for s in standings for v in s.verdicts) == 3
    few = compare("qa", [(label, r[:20]) for label, r in targets[::2]], base="base", max_forgetting=2.0)
    assert few.standings[1].verdicts[0].outcome == UNDECIDED


def test_without_a_base_there_are_scores_alone():
    comparison = compare("qa", [("mine", BASE)])
    assert comparison.base is None
    assert comparison.standings[0].effects == {}
    assert comparison.standings[0].scores["old"].mean == 0.75


def test_it_is_plain_data():
    document = asdict(compare("qa", PAIR, base="base", max_forgetting=2.0))
    assert json.loads(json.dumps(document, allow_nan=False))["standings"][1]["effects"]["old"]["p"] == 0.625


@settings(max_examples=30)
@given(chance=st.randoms(use_true_random=False), real=st.booleans())
def test_the_order_of_records_does_not_matter(chance, real):
    """Nor does another target beside: a number depends on its own records, the base's and the seed."""
    rng = np.random.default_rng(1)
    tables = [records(old=rng.random(30) if real else rng.random(30) < 0.5, new=rng.random(20) < 0.5) for _ in range(3)]
    metric = "nll" if real else "accuracy"
    shuffled = [list(table) for table in tables]
    for table in shuffled:
        chance.shuffle(table)
    few = {"base": "a", "metric": metric, "resamples": 300}
    there = compare("qa", zip("abc", tables, strict=True), **few).standings
    back = compare("qa", zip("ac", shuffled[::2], strict=True), **few).standings
    assert [back[0], back[1]] == [there[0], there[2]]


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("targets", "options", "fault"),
    [
        (
            [("base", BASE), ("cpt", CPT[2:])],
            {},
            "(first: 0000000000000000 of old): expected the same questions. Evaluate both on the same files, with",
        ),
        (
            [("base", BASE), ("cpt", CPT[2:])],
            {},
            "cpt lacks 2 of the 12 questions that base answered, and has 0 that it did not (first: ",
        ),
        (
            [("cpt", CPT), ("base", BASE[1:]), ("cpt", CPT[1:])],
            {"base": "base"},
            "cpt (training 1) lacks 0 of the 11 questions that base answered, and has 1 that it did not",
        ),
        (
            [("base", BASE), ("cpt", records(2.0, old=[1] * 8, new=[1] * 4))],
            {},
            "cpt weighs 12 of 12 questions otherwise than base: expected the same tokens. Different tokenizers'",
        ),
        (PAIR, {"base": "bse"}, "base = bse: expected one of base, cpt (did you mean 'base'?)"),
        ([*PAIR, ("base", BASE)], {"base": "base"}, "base = base: 2 targets have this label, expected one."),
        ([("base", BASE + BASE[:3])], {}, "base answered 3 questions more than once: expected one record a question."),
        ([("base", [])], {}, "qa has no records: expected one a question. Evaluate a model first."),
        ([], {}, "qa has no records"),
        (
            [("base", records(old=[0.5, 2.0]))],
            {},
            "base has records that are no accuracy: 1 (first: 0000000000000001 of old, value = 2, weight = 1)",
        ),
        ([("base", records(old=[float("nan")]))], {"metric": "nll"}, "expected a number"),
        (
            [("base", records(0.0, old=[1.0]))],
            {"metric": "nll"},
            "weight = 0): expected a number, and a weight above 0",
        ),
        (PAIR, {"max_forgetting": 2.0}, "max-forgetting = 2: there is no base. Give one, or drop it."),
        (
            [(label, records(new=[1, 0])) for label in ("base", "cpt")],
            {"max_forgetting": 2.0, "base": "base"},
            "max-forgetting = 2: qa has nothing to forget on, but new. Give one, or drop it.",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(targets, options, fault):
    with pytest.raises(OptionError) as caught:
        compare("qa", targets, **options)
    assert fault in str(caught.value)
    assert caught.value.exit_code == 2


def test_all_faults_are_told_at_once():
    targets = [("base", BASE), ("cpt", CPT[:-1]), ("srt", CPT[1:])]
    with pytest.raises(OptionError, match="3 faults in the comparison"):
        compare("qa", targets, base="bass")


@pytest.mark.parametrize("module", ["bootstrap", "verdict", "compare", "tables"])
def test_the_statistics_leave_torch_alone(module):
    heavy = ["torch", "transformers", "scipy"]
    code = f"import sys, srt_peft.evaluation.{module}; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
