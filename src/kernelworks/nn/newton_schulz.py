"""What Muon makes of an update: nearly its nearest orthogonal matrix, by products alone."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["orthogonalize_update", "rate_ratio"]


def orthogonalize_update(
    update: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float, *,
    dtype: torch.dtype = torch.bfloat16,
) -> Tensor:  # fmt: skip
    """About ``U V^T`` of ``update = U S V^T``: ``steps`` of ``X <- a X + (b X X^T + c (X X^T)^2) X`` from
    ``update / max(|update|, eps)``, the Frobenius norm.

    Args:
        update: [M, N]. coefficients: a, b, c. steps: their number. eps: the least that is divided by. dtype: what
            it is computed in; torch.optim.Muon takes bfloat16.

    Returns [M, N] in ``dtype``. The products are torch's.

    Cost: 2 K^2 (2 max(M, N) + K) flop a step, K = min(M, N).
    Source: Jordan et al. 2024, Muon; Bernstein and Newhouse 2024, arXiv:2409.20325; torch.optim.Muon.
    """
    a, b, c = coefficients
    x = update.to(dtype)
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def rate_ratio(way: str | None, shape: torch.Size) -> float:
    """What a matrix' learning rate is multiplied by."""
    rows, columns = shape
    if way == "match_rms_adamw":
        return float(0.2 * max(rows, columns) ** 0.5)
    return float(max(1.0, rows / max(columns, 1)) ** 0.5)
