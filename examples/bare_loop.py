"""A bare PyTorch loop with a schedule: any data that can be indexed, any model that gives a loss an example.

python examples/bare_loop.py          # again: goes on where it was

Here a small classifier, whose signal is the cross-entropy of each example, recalled by its confidence.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from srt_peft import load_scheduler, make_scheduler  # ←

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default="runs/example-bare")
parser.add_argument("--steps", type=int, default=60)
given = parser.parse_args()

torch.manual_seed(0)
n_old, n_new, batch = 300, 500, 32
features = torch.randn(n_old + n_new, 16)  # the old examples come first
labels = (features @ torch.randn(16, 4)).argmax(1)

model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
saved = given.out / "training.pt"
if saved.exists():
    s = load_scheduler(given.out / "srt_state")  # ←
    mine = torch.load(saved, weights_only=True)
    model.load_state_dict(mine["model"])
    optimizer.load_state_dict(mine["optimizer"])
else:
    s = make_scheduler("srt", old=n_old, new=n_new, batch_size=batch, old_fraction=0.25, recall="confidence")  # ←

for _ in range(given.steps):
    draw = s.draw()  # ← in place of next(iter(loader))
    if draw.ids.size:  # nobody may be due: then there is nothing to learn at this step
        ids = torch.from_numpy(draw.ids.copy())
        nll = nn.functional.cross_entropy(model(features[ids]), labels[ids], reduction="none")
        nll.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        review = s.review(draw.ids, nll.detach().numpy())  # ← from the same forward pass
    else:
        review = s.review(draw.ids, [])
    if draw.step % 20 == 0:
        print(f"step {draw.step}: {draw.n_old} old of {draw.ids.size}, {review.lapses} lapses")

given.out.mkdir(parents=True, exist_ok=True)
s.save(given.out / "srt_state")  # ←
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
accuracy = (model(features).argmax(1) == labels).float()
print(f"after step {s.state.step}: {accuracy[:n_old].mean():.0%} of old and {accuracy[n_old:].mean():.0%} of new right")
