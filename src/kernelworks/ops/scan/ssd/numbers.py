"""The gradients of ssd's numbers of a head and of a step, from those of gates and of what is written."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["NumberGradients"]


class NumberGradients:
    """Where gradients of x, dt, A, B, C, D and the first states go: those that are wanted of tensors that are given."""

    def __init__(self, made: Sequence[Tensor], needs: Sequence[bool], given: Sequence[Tensor | None]) -> None:
        wanted = [
            to if need and t is not None else None for to, need, t in zip(made, needs, given, strict=True)
        ]  # fmt: skip
        self.given = given
        self.d_x, self.d_dt, self.d_rates, d_b, d_c, self.d_skips, d_first = wanted
        self.tensors = (d_c, d_b, self.d_x, d_first)

    @property
    def wanted_numbers(self) -> tuple[bool, bool]:
        """Whether a kernel is to make the gradients of gates, and of factors."""
        return self.d_dt is not None or self.d_rates is not None, self.d_dt is not None

    def write(self, grad: Tensor, gate: Tensor | None, factor: Tensor | None) -> None:
        """``gate`` and ``factor`` [B, T, H]: what flows into ``A dt``, and into dt as what x is multiplied by."""
        x, dt, rates = self.given[:3]
        assert x is not None and dt is not None and rates is not None
        if self.d_dt is not None and gate is not None and factor is not None:
            self.d_dt.copy_(factor + rates.float() * gate)
        if self.d_rates is not None and gate is not None:
            self.d_rates.copy_((dt.float() * gate).sum((0, 1)))
        if self.d_skips is not None:
            self.d_skips.copy_((grad.float() * x.float()).sum((0, 1, 3)))
