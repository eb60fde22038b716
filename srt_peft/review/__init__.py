"""WHEN an example returns: the review state, its rule, and the schedulers. NumPy only.

sm2         the rule of a review
recall      a signal from the model -> a quality 0..5
options     what may be set
state       the memory-mapped columns, a row an example     (files: how they lie on disk)
agenda      who is due, and who comes first                 (idset, waiting, peaks: its indexes; chance)
schedulers  draw() and review()
log         what was asked, when, and how well it was recalled
journal     the log in one pass                             (census: the state in one)
"""

from srt_peft.review.kinds import SCHEDULERS as SCHEDULERS
from srt_peft.review.log import ReviewLog as ReviewLog
from srt_peft.review.making import load_scheduler as load_scheduler, make_scheduler as make_scheduler
from srt_peft.review.schedulers import Draw as Draw, Review as Review, Scheduler as Scheduler
from srt_peft.review.state import ReviewState as ReviewState
