"""``kw.dropout``: which elements are kept follows from a seed, an offset and each element's place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.philox import keep_mask
from kernelworks.fuse.fused_function import FusedFunction

__all__ = ["dropout"]

_LIBRARY = torch.library.Library("kernelworks", "FRAGMENT")
_LIBRARY.define("seeded_dropout(Tensor x, Scalar p, SymInt seed, SymInt offset) -> Tensor")


def _operator(x: Tensor, p: float, seed: int, offset: int) -> Tensor:
    made: Tensor = torch.ops.kernelworks.seeded_dropout(x, p, seed, offset)
    return made


_operator.__name__ = "dropout"
_FUSED = FusedFunction(_operator, races=False)  # the operator has no other kernel


def dropout(x: Tensor, p: float, seed: int, offset: int = 0) -> Tensor:
    """Dropout by a counter-based stream: ``output = x / (1 - p)`` where an element is kept, else 0.

    Element i, counted in the order of x's dimensions, is kept where the upper 31 of its random bits are not below
    ``round(p 2^31)``. The bits are those of Philox4x32-10 for (seed, offset, i): the same for any number of threads,
    strides and instruction set. The backward draws them again, so no mask is stored. Inside ``kw.fuse`` it is part of
    the kernel.

    Args:
        x: float32, bfloat16 or float16, any strides.
        p: the share to drop, from 0 to 1.
        seed, offset: 64-bit integers. Streams of different seeds or offsets are independent; steps of a training count
            the offset up.

    Returns:
        A tensor like x. Its gradient is the same function of the gradient that flows in.

    Error bound: two roundings in float32 and one to the dtype; the choice of elements is exact.
    Raises: TypeError, ValueError naming the argument.
    Source: Srivastava et al., JMLR 2014; Salmon et al., SC 2011.
    """
    _check(x, p, seed, offset)
    found: Tensor = (_operator if torch.compiler.is_compiling() else _FUSED)(x, p, seed, offset)
    return found


def _check(x: Any, p: Any, seed: Any, offset: Any) -> None:
    if type(p) in (int, float) and not 0.0 <= p <= 1.0:
        raise ValueError(f"p must be in [0, 1], got {p}")
    for name, value in (("seed", seed), ("offset", offset)):
        if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
            raise TypeError(f"{name} must be an int, got {type(value).__name__}")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError(f"{name} must fit into 64 bits, got {value}")
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"x must be a tensor of floats, got {x.dtype if isinstance(x, Tensor) else type(x).__name__}")


def _on_tensors(x: Tensor, p: Any, seed: int, offset: int) -> Tensor:
    """The operator outside a kernel: of tensors that a kernel takes by one, else by torch's integers."""
    if _FUSED.takes(x, p, seed, offset):
        with torch.no_grad():
            found: Tensor = _FUSED(x, p, seed, offset)
        return found
    keep = keep_mask(x.shape, float(p), seed, offset).to(x.device)
    scaled = x.float() * (1.0 / (1.0 - float(p))) if p < 1 else torch.zeros_like(x)
    return torch.where(keep, scaled, 0.0).to(x.dtype)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.stream = inputs[1:]


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return torch.ops.kernelworks.seeded_dropout(grad, *ctx.stream), None, None, None


_LIBRARY.impl("seeded_dropout", _on_tensors, "CompositeExplicitAutograd")
torch.library.register_fake("kernelworks::seeded_dropout", lambda x, *_: torch.empty_like(x), lib=_LIBRARY)
torch.library.register_autograd("kernelworks::seeded_dropout", _backward, setup_context=_setup_context, lib=_LIBRARY)
