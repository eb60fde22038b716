"""What was drawn and what it cost, in words; what a log or metrics.jsonl lacks; and the seeds of a command line."""

import json

import pytest

from srt_peft import OptionError, ReviewLog
from srt_peft.errors import DamagedError, StateError
from srt_peft.evaluation.entries import seeds_of
from srt_peft.evaluation.exposure import compute_of, exposure_of, lacking, unequal


def spread(**means):
    return {name: {"mean": mean, "sd": None} for name, mean in means.items()}


def words(shares, tokens=None, rho=0.2, **passes):
    """The sentences of entries with these shares of old, these tokens, and these passes (tokens of each kind)."""
    nothing = {"first_look_tokens": 0, "reference_tokens": 0, "quiz_tokens": 0}
    exposure = {name: spread(realised_old_share=share) for name, share in shares.items()}
    compute = {
        name: spread(tokens_trained=(tokens or {}).get(name, 1000), **nothing | passes.get(name, {})) for name in shares
    }
    return list(unequal(exposure, compute, rho))


def test_a_share_of_nothing_is_told():
    """A schedule that drew no old at all differs the most."""
    apart, off = words({"cpt": 0.0, "uniform": 0.2, "srt": 0.0})
    assert apart.startswith("The share of old is not equal: 0.0 % with srt, 20.0 % with uniform.")
    assert apart.endswith("`match` would tell: it draws srt's counts without a schedule.")
    assert off == "The share of old is not ρ = 20 % with srt 0.0 %."


def test_match_would_tell_only_of_a_schedule_whose_share_differs():
    """Which is paper's, and not auto's: that draws as many old ones as uniform replay, and so its control is that."""
    shares = {"uniform-epoch": 0.2, "auto": 0.2}
    [apart, _] = words({**shares, "paper": 0.25})
    assert apart.endswith("`match` would tell: it draws paper's counts without a schedule.")
    [apart, _] = words({**shares, "srt": 0.25})
    assert apart.endswith("not of which examples were drawn.")


def test_shares_that_are_equal_and_not_rho_confound_nothing():
    assert words({"uniform": 0.3, "srt": 0.31}) == ["The share of old is not ρ = 20 % with uniform 30.0 %, srt 31.0 %."]


def test_match_is_named_only_where_it_could_take_part():
    """It follows a schedule; `leitner` is none that it knows, and where it is there it need not be named."""
    assert "`match`" not in words({"uniform": 0.2, "leitner": 0.4})[0]
    assert "`match`" not in words({"uniform": 0.2, "srt": 0.4, "match": 0.4})[0]
    assert "it draws paper's counts" in words({"uniform": 0.2, "paper": 0.4})[0]


def test_nothing_unequal_needs_no_words():
    assert words({"cpt": 0.0, "uniform": 0.2, "srt": 0.21}) == []
    assert words({"uniform": None, "srt": None}) == []


def test_each_pass_is_told_with_what_it_scored():
    """Not every pass scores every example, and a quiz is none."""
    [told] = words(
        {"uniform": 0.2, "ppl": 0.2, "auto": 0.2},
        ppl={"first_look_tokens": 500}, auto={"reference_tokens": 123, "quiz_tokens": 40},
    )  # fmt: skip
    assert told == (
        "Scored beside what was trained on, forward only, in % of the tokens trained: ppl a first look (50.0 %); auto "
        "a reference pass (12.3 %) and quizzes (4.0 %). The others scored nothing beside."
    )


def lines(path, *said):
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    return path


def test_what_is_scored_is_counted_by_its_kind(tmp_path):
    metrics = lines(
        tmp_path / "metrics.jsonl",
        {"step": -1, "pass": "reference", "examples": 3, "forward_only_tokens": 70, "seconds": 0.5},
        {"step": -1, "held_out_old_nll": 2.0},
        {"step": 0, "tokens": 100, "forward_only_tokens": 5, "seconds": 1.0},
        {"step": 1, "tokens": 90, "forward_only_tokens": 6, "seconds": 1.0},
    )
    assert compute_of(metrics) == {
        "steps": 2, "tokens_trained": 190, "forward_only_tokens": 81, "first_look_tokens": 0, "reference_tokens": 70,
        "quiz_tokens": 11, "seconds": 2.5,
    }  # fmt: skip


@pytest.mark.parametrize("torn", ['{"step": 1, "tok', "[]", '{"tokens": 5}', '{"step": 1, "tokens": "many"}', "1"])
def test_a_torn_line_is_named(torn, tmp_path):
    """It would be missed in every sum."""
    metrics = lines(tmp_path / "metrics.jsonl", {"step": 0, "tokens": 100})
    metrics.write_text(f"{metrics.read_text()}{torn}\n")
    with pytest.raises(DamagedError, match=r"metrics\.jsonl is damaged: its line 2 is not as a run writes it"):
        compute_of(metrics)


def test_metrics_that_are_gone(tmp_path):
    with pytest.raises(StateError, match=r"metrics\.jsonl cannot be read \(No such file or directory\)"):
        compute_of(tmp_path / "metrics.jsonl")


def test_a_log_that_lacks_steps_says_so(tmp_path):
    """Else what is drawn in a part would be told as the whole run's."""
    metrics = lines(tmp_path / "metrics.jsonl", *({"step": step, "tokens": 9} for step in range(6)))
    with ReviewLog(tmp_path / "log", "a") as log:
        for step in range(6):
            log.append(step, [0, 2], [1.0, 1.0], [5, 5], 2)
    assert lacking(tmp_path / "log", metrics) is None
    with ReviewLog(tmp_path / "log", "a") as log:
        log.truncate(4)
    assert lacking(tmp_path / "log", metrics) == (
        "its review log lacks 2 of 6 steps, from 4 to 5: what it drew is told of the others alone"
    )


def test_a_log_whose_steps_go_back_is_no_exposure(tmp_path):
    with ReviewLog(tmp_path / "log", "a") as log:
        for step in range(3):
            log.append(step, [0], [1.0], [5], 1)
    content = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(content + content[64:80])
    with pytest.raises(DamagedError, match="its steps go back"):
        exposure_of(tmp_path / "log", (1, 0))


@pytest.mark.parametrize("text", ["3000000000", "1001", "9" * 5000, " 2000 "])
def test_so_many_seeds_were_meant_as_one(text):
    with pytest.raises(OptionError, match=f"expected at most 1,000 trainings of each; .* '{text.strip()},'"):
        seeds_of(text)
    assert seeds_of("3000000000,") == [3_000_000_000]
    assert len(seeds_of("1000")) == 1000


def test_schedulers_and_seeds_are_told_together():
    with pytest.raises(OptionError) as error:
        seeds_of("two", ["unifrom"])
    assert len(error.value.faults) == 2
    assert error.value.faults[1].startswith("--seeds = 'two'")
    with pytest.raises(OptionError) as error:
        seeds_of("0", ["match"])
    assert [fault.partition(" ")[0] for fault in error.value.faults] == ["'match'", "seeds:"]
    assert seeds_of("2", ["srt"]) == [0, 1]
