"""What the loss costs at a large vocabulary: peak memory and time, whole logits against chunks.

    python eval/speed/loss_head.py                                    # the CPU: 4,096 tokens × 512 features; minutes
    python eval/speed/loss_head.py --device cuda --tokens 16384 --features 4096 --dtype bfloat16
    python eval/speed/loss_head.py --frozen                           # the head does not train: LoRA, QLoRA

From hidden states and head to each token's NLL, and back to the gradients of both (with --frozen, of the hidden
states alone). Each row is measured in a process of its own: on the CPU its peak RSS (Linux), on a GPU torch's peak of
allocated memory, in both cases less what was there before the loss began.

logits   cross_entropy(linear(hidden, weight).float()), as transformers computes it
ours     srt_peft.training.nll.linear_nll
torch    torch.nn.functional.linear_cross_entropy in chunks, as torch chooses them (torch >= 2.13)

`of logits` is the peak as a share of the logits path's. `NLL` and `gradients` are the largest differences from the
logits path, the gradients' relative to its largest entry.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its name everywhere

from srt_peft.training.nll import linear_nll

PATHS = ("logits", "ours", "torch")


def nll_of(path: str, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    if path == "ours":
        return linear_nll(hidden, weight, target)
    if path == "torch":
        options = torch.nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(hidden, weight, target, reduction="none", options=options)
    return F.cross_entropy(F.linear(hidden, weight).float(), target, reduction="none")


def peak(device: str) -> int:
    """Bytes at the highest, so far."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def present(device: str) -> int:
    """Bytes now."""
    if device == "cuda":
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def back(nll: Tensor) -> None:
    torch.autograd.backward(nll.sum())


def measure(args: argparse.Namespace, vocabulary: int, path: str, out: Path) -> None:
    """One row, in this process: its figures to stdout, its values and gradients to `out`."""
    torch.manual_seed(0)
    kind = {"device": args.device, "dtype": getattr(torch, args.dtype)}
    # What a first call allocates once and for all (kernels, thread pools) is not the loss's.
    few = [torch.randn(n, 64, **kind).requires_grad_() for n in (256, 1000)]
    back(nll_of(path, few[0], few[1], torch.arange(256, device=args.device)))
    hidden = torch.randn(args.tokens, args.features, **kind).requires_grad_()
    weight = torch.randn(vocabulary, args.features, **kind).mul_(args.features**-0.5)
    weight.requires_grad_(not args.frozen)
    target = torch.randint(vocabulary, (args.tokens,), device=args.device)
    if args.device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = present(args.device)
    start = time.perf_counter()
    nll = nll_of(path, hidden, weight, target)
    back(nll)
    if args.device == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "bytes": peak(args.device) - before, "type": str(nll.dtype)[6:]}))
    found = {"nll": nll.detach(), "hidden": hidden.grad, "weight": weight.grad}
    torch.save({k: v.float().cpu() for k, v in found.items() if v is not None}, out)


def differences(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> tuple[float, float]:
    gradients = [(mine[k] - theirs[k]).abs().max() / theirs[k].abs().max() for k in mine if k != "nll"]
    return float((mine["nll"] - theirs["nll"]).abs().max()), float(torch.stack(gradients).max())


def in_a_process(args: argparse.Namespace, vocabulary: int, path: str, out: Path) -> dict[str, Any] | None:
    """The figures of one row, or None where it could not be had."""
    command = [sys.executable, __file__, *sys.argv[1:], "--one", str(vocabulary), path, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    if done.returncode:
        print(f"{vocabulary:>10,}  {path:<7} failed: {(done.stderr.strip().splitlines() or ['killed'])[-1]}")
        return None
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def table(args: argparse.Namespace) -> None:
    what = "frozen head" if args.frozen else "head that trains"
    size = f"{args.tokens:,} tokens × {args.features:,} features"
    print(f"{size}, {args.dtype}, {what}, on {args.device}, torch {torch.__version__}")
    print(f"vocabulary  path     peak MiB of logits  seconds   {'NLL is':<9} {'NLL':>7} gradients")
    paths = [path for path in PATHS if path != "torch" or hasattr(F, "linear_cross_entropy")]
    with tempfile.TemporaryDirectory() as folder:
        for vocabulary in args.vocabulary:
            plain: dict[str, Any] | None = None
            for path in paths:
                out = Path(folder) / f"{path}.pt"
                figures = in_a_process(args, vocabulary, path, out)
                if figures is None:
                    continue
                plain = figures if path == "logits" else plain
                share, agreement = "", ""
                if plain is not None:
                    share = f"{figures['bytes'] / plain['bytes']:.3f}"
                    theirs = torch.load(Path(folder) / "logits.pt", weights_only=True)
                    nll, gradients = differences(torch.load(out, weights_only=True), theirs)
                    agreement = f"{nll:7.0e} {gradients:9.0e}"
                cost = f"{figures['bytes'] / 2**20:9.0f} {share:>9} {figures['seconds']:8.2f}"
                print(f"{vocabulary:>10,}  {path:<7} {cost}   {figures['type']:<9} {agreement}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--features", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[32_000, 128_256])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--frozen", action="store_true", help="the head does not train, as with LoRA")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that one row may take")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        measure(args, int(args.one[0]), args.one[1], Path(args.one[2]))
    else:
        table(args)


if __name__ == "__main__":
    main()
