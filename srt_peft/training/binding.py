"""Does scheduling bind? What an update's figures mean, in plain words.

What each sentence means, and what to do about it, is explained in docs/plan.md. They are what was measured about the
method: most of all that an example's own state cannot help where it is visited less than once, that intervals decide
nothing where far more is due than can be drawn, and that qualities which are all alike tell nothing apart.
"""

from __future__ import annotations

from collections.abc import Iterator

from srt_peft.review.decks import FEW
from srt_peft.review.kinds import SCHEDULERS
from srt_peft.training.figures import Figures, Side

SELDOM, OFTEN = 0.5, 3.0
"""Visits an example below which its own state cannot help, and from which on intervals can be followed."""
EQUAL = 0.9
THIN = 50
"""A deck that gets less than a slot in so many steps is hardly measured."""
PERPLEXITY = 20.0
"""That a rehearsal assumes of every text, as of one that the model knows."""


def shown(f: Figures) -> Iterator[str]:
    """The figures themselves, a line a pool and one of all that only looked."""
    for name, side in (("old", f.old), ("new", f.new)):
        if not side.examples:
            yield f"{name}: no examples."
            continue
        never = "" if side.never is None else f" ({_percent(side.never)} never)"
        due = "" if side.backlog is None else " → ".join(map(_number, side.backlog))
        yield (
            f"{name}: {side.examples:,} examples, {_number(side.slots)} slots a step; visits an example "
            f"{_number(side.visits)}{never}"
            + (f"; due over slots {due} (beginning, median, end)" if due else "")
            + (
                f"; q = {side.quality} for {_percent(side.equal)}, lapses {_percent(side.lapses)}"
                if _told(f, side)
                else ""
            )
            + "."
        )
    for made in f.passes:
        yield (
            f"{made.name}: {made.examples:,} examples scored forward only, {made.tokens:,} tokens, beside "
            f"{f.trained_tokens:,} trained on: {_percent(f.cost(made.name))} more compute, an estimate (a forward pass "
            "counts as a third of a training step)."
        )


def _told(f: Figures, side: Side) -> bool:
    return f.measured and side.quality is not None


def said(f: Figures) -> Iterator[str]:
    """What a person who knows the evidence would say; what should not stay as it is begins with `Warning:`."""
    if not f.steps or not f.known:
        yield "There is no step in this update: nothing is drawn."
        return
    for say in _SAYINGS:
        line = say(f)
        if line:
            yield line


def _number(value: float) -> str:
    """Two digits at least, and no exponents."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}" if value >= 10 else f"{value:.2g}"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def _replays(f: Figures) -> str | None:
    if f.old.slots:
        return None
    why = "there is no old text" if not f.old.examples else "not one slot is an old example's"
    return f"Nothing is replayed, since {why}: what this update makes the model forget stays forgotten."


def _unscheduled(f: Figures) -> str | None:
    if f.scheduled:
        return None
    ppl = " It chases what is perplexing, and did worse than uniform replay wherever it was measured."
    return (
        f"The scheduler {f.scheduler!r} draws by no schedule, so none can bind: the review state is kept for the "
        f"record.{ppl if f.scheduler == 'ppl' else ''}"
    )


def _visits(f: Figures) -> str | None:
    if not f.scheduled or not f.old.slots:
        return None
    visits = _number(f.old.visits)
    if f.old.visits < SELDOM:
        return (
            f"Most old examples are not visited (visits an example: {visits}): their own review state cannot help. "
            "What can are decks, the quiz, and an order that repeats nobody (rounds, epoch)."
        )
    if f.old.visits < OFTEN:
        return (
            f"Old examples are visited {visits} times: enough for the order to matter, and for a fresh signal (the "
            "quiz), but hardly for intervals."
        )
    told = f"Old examples are visited {visits} times: often enough for their own review state to matter"
    return f"{told}, were it asked." if f.options.orders[0] == "rounds" else f"{told}."


def _backlog(f: Figures) -> str | None:
    if f.old.backlog is None or not f.old.slots:
        return None
    b, order = f.old.backlog[1], f.options.orders[0]
    if order == "rounds":
        who = "" if f.options.decks == "off" else " within each deck"
        return f"Old examples come in shuffled epochs (rounds){who}: the intervals are kept, and not asked."
    if b > 2:
        plain = " With order: uniform that is uniform replay." if order == "uniform" else ""
        return f"The backlog is {_number(b)} batches: the order decides, not the intervals.{plain}"
    if b >= 1:
        return f"The backlog is {_number(b)} batches: the intervals begin to bind."
    ahead = f.options.underfull == "ahead"
    rest = "the soonest due fill the rest" if ahead else "the rest is left to new ones, or to nobody"
    return f"The intervals bind: what is due fills {_percent(b)} of the old slots in the median, and {rest}."


def _idle(f: Figures) -> str | None:
    if f.options.underfull == "short" and f.short and f.scheduled:
        return (
            f"Warning: too little is due: {f.short:,} of {f.known:,} steps draw less than a batch, {f.empty:,} of them "
            "nothing. Less is learned so; review.underfull: ahead fills the slots with the soonest due."
        )
    if f.old.slots and f.old.idle > 0.1:
        return f"Nothing old is due in {_percent(f.old.idle)} of the steps: what they draw comes before its time."
    return None


def _small(f: Figures) -> str | None:
    there, batch = f.old.examples + f.new.examples, f.options.batch_size
    if not f.short or there >= batch:
        return None
    return f"Warning: a batch has {batch:,} slots, and there are {there:,} examples: lower training.batch_size."


def _equal(f: Figures) -> str | None:
    q, absolute = f.old.quality, f.options.recall == "absolute"
    if not f.scheduled or q is None or f.old.equal <= EQUAL:
        return None
    remedy = "review.recall: relative tells examples apart by what each has lost."
    if not f.measured:
        return (
            f"Warning: expect more than 90 % of old reviews to score the same, q = {q}: the thresholds are of absolute "
            f"perplexity, and a model that knows its text stays on one side of them. {remedy}"
            if absolute
            else None
        )
    lost = "hardly anything was lost when it was asked" if q == 5 else "the thresholds lie to one side of them"
    why = f"the thresholds tell no two examples apart. {remedy}" if absolute else f"{lost}."
    return f"Warning: {_percent(f.old.equal)} of the old reviews score the same, q = {q}: {why}"


def _release(f: Figures) -> str | None:
    share, asked = f.old_share, f.options.old_fraction
    if not f.scheduled or not f.old.slots or share - asked <= 0.05 or _small(f):
        return None
    return (
        f"Warning: {_percent(share)} of all that is drawn is old, where review.old_fraction asks for "
        f"{_percent(asked)}: new ones that are not due leave their slots. Whatever this run gains may be that: hold it "
        "against review.scheduler: match, which draws the same counts by no schedule."
    )


def _new(f: Figures) -> str | None:
    if f.options.orders[1] == "intake" and f.scheduled:
        return "Warning: new examples are taken in slowly (intake): on real text that learned far less of them."
    if f.new.never is None or f.new.never <= 0.05:
        return None
    remedy = "To see all: more training.steps, or training.steps: one_pass"
    if "epoch" not in SCHEDULERS[f.scheduler].agendas:
        remedy = "The same ones are drawn again and again"
    elif f.new.visits > 0.9 and f.options.orders[1] == "uniform":
        remedy = "To see all: review.new.order: epoch, which takes each once before any twice"
    return f"{_percent(f.new.never)} of the new examples are never trained on. {remedy}."


def _sources(f: Figures) -> str | None:
    knows = "decks" in SCHEDULERS[f.scheduler].extras
    if not knows or not f.old.slots or f.options.decks != "off":
        return None
    if len(f.decks) > 1:
        return (
            f"data.old has {len(f.decks):,} decks, and review.decks is off: slots go by size. `auto` shares them by "
            "what each deck has lost, which helped the mean and the worst of them."
        )
    return (
        "data.old is one source, so there are no decks among which slots could be shared. Several named sources, "
        "data.source_column or data.clusters make some."
    )


def _aim(f: Figures) -> str | None:
    if f.options.decks != "auto" or len(f.decks) < 2:
        return None
    reviews = f.old.slots * f.steps / len(f.decks) * max(f.options.quiz, 1)
    if reviews < FEW:
        return (
            f"Warning: {len(f.decks):,} decks have {_number(reviews)} reviews each in this update: too few to tell "
            f"what each has lost (it takes {FEW}). Give sources that belong together one name, or set data.clusters."
        )
    return "Decks help the mean and the worst deck, and not the mean example: a large deck that holds gets less."


def _thin(f: Figures) -> str | None:
    thin = [deck for deck in f.decks if deck.even * THIN < 1]
    if f.options.decks == "off" or not thin or len(f.decks) < 2:
        return None
    names = ", ".join(deck.name for deck in thin[:3]) + (", …" if len(thin) > 3 else "")
    return (
        f"By size, {len(thin):,} of {len(f.decks):,} decks would get less than a slot in {THIN} steps ({names}): they "
        "are seldom seen, and what they lose is hardly known."
    )


def _namesakes(f: Figures) -> str | None:
    if not f.namesakes or not f.old.slots:
        return None
    are = "document of data.new is" if f.namesakes == 1 else "documents of data.new are"
    return (
        f"Warning: {f.namesakes:,} {are} called as one of data.old, with another text. If the newer replaces the "
        "older, set data.supersedes: old texts that no longer hold look forgotten, and are drilled against the update."
    )


def _quiz(f: Figures) -> str | None:
    cost = f.cost("quiz")
    if not cost:
        return None
    always = f.options.quiz_every == 1
    less = " review.old.quiz_every: 2 kept nine tenths of its gain for half of that." if always else ""
    return (
        f"The quiz costs {_percent(cost)} more compute than training alone, an estimate. With as much compute, uniform "
        "replay for more steps learned more of new and kept less of old: a quiz pays where retention is the aim, or "
        f"steps are few.{less}"
    )


def _reference(f: Figures) -> str | None:
    cost = f.cost("reference") + f.cost("first look")
    if cost < 0.1:
        return None
    what = "Warning: what" if cost > 0.5 else "What"
    less = ""
    if f.cost("reference"):
        free = f.options.decks == "auto" and not f.options.quiz
        less = " review.decks: sqrt needs none, and kept most of what measured decks keep;" if free else ""
        less += " review.reference_sample bounds it, to so many examples a deck (30 were too few on text)."
    told = f"{what} the base scores before the first step costs {_percent(cost)} of the update's compute, an estimate."
    return told + less


def _assumed(f: Figures) -> str | None:
    if f.measured or not f.scheduled:
        return None
    part = f"the first {f.known:,} of {f.steps:,} steps" if f.known < f.steps else "all steps"
    q = f.new.quality if f.old.quality is None else f.old.quality
    assumed = f"a perplexity of {PERPLEXITY:.0f}, " if f.options.recall == "absolute" else ""
    return (
        f"Rehearsed: {part}, as if everything were recalled as its reference ({assumed}q = {q}), and all decks forgot "
        "alike. What is lost, training shows."
    )


_SAYINGS = (
    _replays, _unscheduled, _visits, _backlog, _idle, _small, _equal, _release, _new, _sources, _aim, _thin,
    _namesakes, _quiz, _reference, _assumed,
)  # fmt: skip
