"""What many updates come to, the slow way: a dictionary by text, and the equations of the paper, review by review."""

import math
from dataclasses import dataclass, field

from srt_peft import ReviewState
from srt_peft.review import ReviewLog


@dataclass
class Known:
    """One example, as the paper has it."""

    ease: float = 2.5
    repetitions: int = 0
    interval: int = 1
    due: int | None = None
    visits: int = 0
    signal: float | None = None
    reviews: list = field(default_factory=list)

    def review(self, step, quality, signal):
        self.ease = max(1.3, self.ease + 0.1 - (5 - quality) * (0.08 + (5 - quality) * 0.02))
        if quality < 3:
            self.repetitions, self.interval = 0, 1
        else:
            self.repetitions += 1
            hundredths = round(self.ease * 100)
            longer = -(-self.interval * hundredths // 100)
            self.interval = {1: 1, 2: 6}.get(self.repetitions, min(longer, 2**30))
        self.due = step + self.interval
        self.visits += 1
        self.signal = signal
        self.reviews.append((step, quality))


def replay(known, run, texts, first):
    """Go through a run's log; `texts[i]` is the text of its example i."""
    with ReviewLog(run / "review/log") as log:
        records = log.records()
    assert records["step"].min() == first
    for record in records:
        if record["id"] >= 0:
            known.setdefault(texts[record["id"]], Known()).review(
                int(record["step"]), int(record["quality"]), float(record["signal"])
            )
    return len(records)


def check(known, checkpoint, texts):
    """The state of a checkpoint is what the reviews make of it, example by example."""
    state = ReviewState.open(checkpoint / "srt_state")
    assert state.n == len(texts)
    for i, text in enumerate(texts):
        mine = known.get(text)
        if mine is None:
            assert state.visits[i] == 0
            continue
        told = (state.ease[i], state.repetitions[i], state.interval[i], state.due[i], state.visits[i])
        assert told == (round(mine.ease, 2), mine.repetitions, mine.interval, mine.due, mine.visits), text
        assert math.isclose(float(state.signal[i]), mine.signal, rel_tol=1e-6)
