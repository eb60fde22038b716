"""`srt-peft env`: what a bug report needs."""
# ruff: noqa: PLC0415 - a look loads what it looks at, and nothing else does

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import srt_peft
from srt_peft.commands.command import Arguments, Command, say

PACKAGES = ("numpy", "torch", "transformers", "peft", "accelerate", "datasets", "bitsandbytes", "tokenizers")


def _env(_args: Arguments) -> None:
    for name, look in _probes():
        try:
            found = look()
        except Exception as error:  # noqa: BLE001 - a report of what is broken must not break on it
            found = f"not found ({type(error).__name__}: {' '.join(str(error).split())[:160]})"
        say(f"{name:20} {found}")


def _probes() -> Iterator[tuple[str, Callable[[], object]]]:
    """Names, and how to look. A look may fail; it is told then."""
    import platform
    from importlib.metadata import version

    yield "srt-peft", lambda: f"{srt_peft.__version__} ({Path(srt_peft.__file__).parent})"
    yield "python", lambda: f"{platform.python_version()} ({sys.executable})"
    for package in PACKAGES:
        yield package, partial(version, package)
    yield "bitsandbytes import", _bitsandbytes
    yield "CUDA", _cuda
    yield "GPUs", _gpus
    yield "OS", platform.platform
    yield "CPU cores", lambda: f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}"
    yield "RAM", lambda: _gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    yield "SRT_PEFT_HOME", lambda: f"{_home()} ({_free(_home())})"
    yield "current directory", lambda: f"{Path.cwd()} ({_free(Path.cwd())})"


def _bitsandbytes() -> str:
    import contextlib
    import io
    import warnings

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        import bitsandbytes
    return f"works ({Path(bitsandbytes.__file__).parent})"


def _cuda() -> str:
    import torch

    return f"{torch.version.cuda or torch.version.hip or 'not in this build of torch'}"


def _gpus() -> str:
    import torch

    found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return "; ".join(f"{gpu.name}, {_gib(gpu.total_memory)}, sm_{gpu.major}{gpu.minor}" for gpu in found) or "none"


def _home() -> Path:
    return Path(os.environ.get("SRT_PEFT_HOME") or "~/.cache/srt-peft").expanduser()


def _free(folder: Path) -> str:
    import shutil

    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    return f"{_gib(shutil.disk_usage(there).free)} free"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


COMMAND = Command(_env, "print what a bug report needs", "srt-peft env")
