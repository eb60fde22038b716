"""Examples that wait until they fall due: a list that is sorted only where somebody looks.

The ids lie in piles. Each pile holds a range of due steps, later piles later ones, and inside a pile there is no
order at all. Only the front pile is looked at, and it is kept small: when it runs out, the next one is cut in
half at its median, and the front half of that again, until a small pile stands in front.

    due from      12        15         31             210                    5,000
    ids        [ 8 2 5 ] [ 7 1 9 ] [ 3 0 4 6 ] [ 11 14 10 12 13 ] [ 21 15 20 17 16 18 19 ]

An id is moved about log2(n / FRONT) times in all, by whole-array operations: the cost of a step, averaged, grows
with neither the examples nor the steps. The exception proves it: when a pile of a million comes to the front, that
one step takes milliseconds longer. An id costs four bytes, with an eighth for growth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from srt_peft.review.chance import Ids, by_due, untag
from srt_peft.review.column import Column

FRONT = 2048


class Waiting:
    """Ids by the step at which they fall due, which is read from the state's column."""

    def __init__(self, due: NDArray[np.int32], seed: int, ids: Ids) -> None:
        """The column of due steps, the seed by which ties are broken, and who waits at the start."""
        self.due = due
        self.seed = seed
        self.count = ids.size
        # Pile i holds starts[i] <= due < starts[i + 1]. The front pile starts before all steps.
        self.starts = [-1]
        self.piles = [Column(ids)]
        while len(self.piles[0]) > FRONT and self._halve_front():
            pass

    def put(self, ids: Ids) -> None:
        """Let more ids wait."""
        pile = np.searchsorted(self.starts, self.due[ids], side="right") - 1
        for i in np.unique(pile).tolist():
            self.piles[i].append(ids[pile == i])
        self.count += ids.size

    def fall_due(self, step: int) -> Ids:
        """Take out all that is due at `step`, in no particular order."""
        taken = [_NOBODY]
        while len(self.starts) > 1 and self.starts[1] <= step + 1:
            taken.append(self._pop_front())
        while len(self.piles[0]) > FRONT and self._halve_front():
            if self.starts[1] <= step + 1:
                taken.append(self._pop_front())
        front = self.piles[0].view()
        due = self.due[front] <= step
        if due.any():
            taken.append(self._leave(front[~due], front[due]))
        return np.concatenate(taken)

    def soonest(self, k: int) -> Ids:
        """Take out the k that fall due first, in the order (due, tag); fewer where there are fewer."""
        taken, k = [_NOBODY], min(k, self.count)
        while k and len(self.piles[0]) <= k:
            taken.append(self._pop_front())
            k -= taken[-1].size
        while k and len(self.piles[0]) > FRONT and self._halve_front():
            if len(self.piles[0]) <= k:
                taken.append(self._pop_front())
                k -= taken[-1].size
        if k:
            front = untag(np.sort(by_due(self.piles[0].view().astype(np.int64), self.due, self.seed)), self.seed)
            taken.append(self._leave(front[k:], front[:k]))
        return untag(np.sort(by_due(np.concatenate(taken), self.due, self.seed)), self.seed)

    def _halve_front(self) -> bool:
        """Cut the front pile at its median step; False where it holds one step only."""
        front = self.piles[0].view()
        due = self.due[front]
        middle = int(np.partition(due, due.size // 2)[due.size // 2])
        sooner = due < max(middle, int(due.min()) + 1)
        if sooner.all():
            return False
        self.piles[:1] = [Column(front[sooner]), Column(front[~sooner])]
        self.starts.insert(1, max(middle, int(due.min()) + 1))
        return True

    def _pop_front(self) -> Ids:
        front = self.piles[0].view().astype(np.int64)
        if len(self.piles) > 1:
            del self.piles[0], self.starts[1]
        else:
            self.piles[0] = Column()
        self.count -= front.size
        return front

    def _leave(self, left: NDArray[np.integer], taken: NDArray[np.integer]) -> Ids:
        self.piles[0] = Column(left)
        self.count -= taken.size
        return taken.astype(np.int64)

    def members(self) -> Ids:
        """Everyone who waits, in no particular order."""
        return np.concatenate([pile.view() for pile in self.piles]).astype(np.int64)

    def check_valid(self) -> None:
        """Assert that each id lies in the pile of its due step, once."""
        ends = [*self.starts[1:], 2**31]
        for start, end, pile in zip(self.starts, ends, self.piles, strict=True):
            due = self.due[pile.view()]
            assert np.all((due >= start) & (due < end)), "an id lies in the wrong pile"
        ids = self.members()
        assert ids.size == self.count == np.unique(ids).size, "the count disagrees with the piles, or an id is twice"


_NOBODY: Ids = np.empty(0, dtype=np.int64)
