r"""Elastic weight consolidation: what mattered for the old classes is held where it was.

    F_i = mean over old examples of (∂ log p(y | x) / ∂θ_i)²        the diagonal of the Fisher information
    L   = L_new + λ/2 · Σ_i F_i (θ_i − θ*_i)²                       so its gradient adds λ F_i (θ_i − θ*_i)

at θ*, the base, and with the examples' own labels y (the empirical Fisher information). ½ belongs to the penalty, as in
the paper: whoever writes λ Σ F(θ − θ*)² has twice our λ.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

Named = Mapping[str, Tensor]
CHUNK = 50
"""So many examples' gradients are held at once."""


def fisher(network: nn.Module, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The mean of the squared gradients of single examples, a tensor a parameter."""
    parameters = {name: value.detach() for name, value in network.named_parameters()}

    def loss(at: Named, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(network, dict(at), (x[None],)), y[None])

    network.eval()  # dropout is no part of what is known
    each = vmap(grad(loss), in_dims=(None, 0, 0))
    total = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for x, y in zip(torch.split(features, CHUNK), torch.split(labels, CHUNK), strict=True):
        for name, value in each(parameters, x, y).items():
            total[name] += value.square().sum(0)
    return {name: value / len(labels) for name, value in total.items()}


def penalty(network: nn.Module, information: Named, anchor: Named, strength: float) -> Tensor:
    """λ/2 · Σ F (θ − θ*)²."""
    parts = [(information[name] * (value - anchor[name]).square()).sum() for name, value in network.named_parameters()]
    return strength / 2 * torch.stack(parts).sum()
