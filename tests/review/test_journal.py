"""The log in one pass, against the same numbers taken the slow way."""

import collections

import numpy as np
import pytest

from srt_peft import DamagedError, ReviewLog
from srt_peft.review.journal import MOST_WINDOWS, Windows, read_journal

STEPS, OLD, EXAMPLES = 600, 30, 50


@pytest.fixture
def log(tmp_path):
    """600 steps, some of them empty, some signals not finite; the steps begin at 100."""
    chance = np.random.default_rng(0)
    with ReviewLog(tmp_path / "log", "a") as log:
        for step in range(100, 100 + STEPS):
            ids = np.sort(chance.choice(EXAMPLES - 1, chance.integers(0, 5), replace=False))  # the last is never drawn
            signal = chance.gamma(2.0, 2.0, ids.size)
            signal[chance.random(ids.size) < 0.02] = np.inf
            asked_only = int(ids.size > 1 and step % 2)  # a quiz's, last in their step
            log.append(step, ids, signal, chance.integers(0, 6, ids.size), OLD, untrained=asked_only)
    return tmp_path / "log"


@pytest.mark.parametrize("most", [1 << 20, 97, 1])
def test_one_pass_finds_what_a_slow_look_finds(log, most):
    """However the log is cut into parts, in the middle of a step, too."""
    found = read_journal(log, examples=EXAMPLES, most=most)
    width = -(-STEPS // MOST_WINDOWS)
    assert (found.windows.width, found.windows.count) == (width, STEPS // width)
    quality, first, lapses = np.zeros_like(found.quality), np.zeros_like(found.first), np.zeros(EXAMPLES, int)
    nll, signals, changes, last = (collections.defaultdict(list) for _ in range(4))
    with ReviewLog(log) as opened:
        records = opened.records()
    for step, i, signal, q, pool, untrained, _ in records[records["id"] >= 0].tolist():
        window = (step - 100) // width
        quality[window, pool, q] += 1
        lapses[i] += q < 3
        nll[window, pool] += [signal] if np.isfinite(signal) and not untrained else []
        if i in last:
            before, then = last[i]
            lag = (pool, (step - then).bit_length() - 1)
            signals[lag].append(signal)
            changes[lag].append(signal - before)
        else:
            first[window, pool] += 1
        last[i] = (signal, step)
    np.testing.assert_array_equal(found.quality, quality)
    np.testing.assert_array_equal(found.reviews, quality.sum(axis=2))
    np.testing.assert_array_equal(found.first, first)
    np.testing.assert_array_equal(found.lapses, lapses)
    assert found.untrained == np.count_nonzero(records["untrained"]) > 0
    for at, values in nll.items():
        assert found.nll[at] == pytest.approx(np.mean(values) if values else np.nan, nan_ok=True)
    for (pool, k), values in signals.items():
        finite = np.array(values)[np.isfinite(values)]
        assert found.lag[pool, k] == finite.size
        assert found.signal[0, pool, k] == pytest.approx(finite.mean())
        assert found.signal[1, pool, k] == pytest.approx(finite.std(ddof=1) / finite.size**0.5, nan_ok=True)
        changed = np.array(changes[pool, k])
        assert found.change[0, pool, k] == pytest.approx(changed[np.isfinite(changed)].mean())
    assert found.lag.sum() == sum(np.isfinite(v).sum() for v in signals.values())


def test_an_empty_log_says_nothing(tmp_path):
    ReviewLog(tmp_path / "log", "a").close()
    assert read_journal(tmp_path / "log", examples=5) is None


def test_steps_without_a_draw_are_steps(tmp_path):
    with ReviewLog(tmp_path / "log", "a") as log:
        for step in range(4):
            log.append(step, [], [], [], 2)
    found = read_journal(tmp_path / "log", examples=3)
    assert found.windows.count == 4
    assert found.quality.sum() == 0
    assert np.isnan(found.nll).all()


def test_another_runs_log_is_refused(log):
    """Its ids are beyond the examples that there are."""
    with pytest.raises(DamagedError, match="is no log of this run"):
        read_journal(log, examples=EXAMPLES - 10)


@pytest.mark.parametrize("last", [0, 238, 239, 240, 241, 99_999, 10**9])
def test_windows_cover_all_steps_and_are_few(last):
    windows = Windows(0, last)
    assert windows.of([0, last]).tolist() == [0, windows.count - 1]
    assert windows.count <= MOST_WINDOWS
    assert windows.middle.size == windows.steps.size == windows.count
    assert windows.steps.sum() == last + 1
    assert windows.steps.min() > 0
    assert 0 <= windows.middle[0] <= windows.middle[-1] <= last
