"""Continual LoRA updates that do not forget: a spaced-repetition schedule for training examples.

    from srt_peft import make_scheduler

    s = make_scheduler("srt", old=31_729, new=31_729, batch_size=512)
    draw = s.draw()                  # the ids of one optimiser step's global batch
    s.review(draw.ids, nll)          # how well each was known, read off the training forward pass

Every public name is listed here and loaded on first use, so that `import srt_peft` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srt_peft.errors import (
        DamagedError as DamagedError,
        LockedError as LockedError,
        OptionError as OptionError,
        ProtocolError as ProtocolError,
        SRTError as SRTError,
        StateError as StateError,
        VersionError as VersionError,
    )
    from srt_peft.review import (
        Draw as Draw,
        Review as Review,
        ReviewLog as ReviewLog,
        ReviewState as ReviewState,
        Scheduler as Scheduler,
        load_scheduler as load_scheduler,
        make_scheduler as make_scheduler,
    )

__version__ = "0.1.0"

_HOME = {
    "make_scheduler": "srt_peft.review",
    "load_scheduler": "srt_peft.review",
    "Scheduler": "srt_peft.review",
    "Draw": "srt_peft.review",
    "Review": "srt_peft.review",
    "ReviewState": "srt_peft.review",
    "ReviewLog": "srt_peft.review",
    "SRTError": "srt_peft.errors",
    "OptionError": "srt_peft.errors",
    "ProtocolError": "srt_peft.errors",
    "StateError": "srt_peft.errors",
    "DamagedError": "srt_peft.errors",
    "VersionError": "srt_peft.errors",
    "LockedError": "srt_peft.errors",
}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604 - the table above is the list


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'srt_peft' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
