"""The same call in other arithmetic: all of it in float64, or with every op's result moved by a rounding or two.

The first is the reference. If a program cannot be run in it (an op without float64 kernels, an assertion about dtypes),
the second says how far the program's own rounding carries its answers: what Monte Carlo arithmetic measures.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.contract.error_model import SUM_STDDEVS, sum_rounding_factor
from kernelworks.diagnose.snapshot import NARROW, map_tensors, wide
from kernelworks.diagnose.verify.checkpoints import newer_checkpoints

__all__ = ["ROUNDINGS", "THREEFOLD", "InFloat64", "PerturbedRounding"]

TO_DOUBLE = {Tensor.float, Tensor.half, Tensor.bfloat16}
CHECKPOINT = "_CheckpointFrame"  # torch makes one of each checkpoint, with the function that computes again
ROUNDINGS = 2.0  # a result is moved by at most so many roundings
THREEFOLD = 3.0  # float32 may be off by so many times what one rounding of each result carries


class _Recomputing(TorchFunctionMode):
    """A mode that also holds where a checkpoint computes its activations again, within a backward: torch calls a
    backward without the modes that it is asked under, and what is then saved would be others than at first."""

    def __enter__(self) -> Any:
        self._frames = getattr(checkpoint, CHECKPOINT, None)
        self._older = newer_checkpoints()  # whose frames are torch's older ones' too
        self._older.__enter__()
        if self._frames is not None:
            setattr(checkpoint, CHECKPOINT, functools.partial(self._frame, self._frames))
        return TorchFunctionMode.__enter__(self)

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        TorchFunctionMode.__exit__(self, kind, value, trace)
        if self._frames is not None:
            setattr(checkpoint, CHECKPOINT, self._frames)
        self._older.__exit__(None, None, None)

    def _frame(self, plain: Callable[..., Any], recompute: Callable[..., Any], *more: Any, **kw: Any) -> Any:
        def again(*args: Any) -> Any:
            TorchFunctionMode.__enter__(self)  # not what a subclass sets beside it: that is set, or is another's by now
            try:
                return recompute(*args)
            finally:
                TorchFunctionMode.__exit__(self, None, None, None)

        return plain(again, *more, **kw)


class InFloat64(_Recomputing):
    """Whatever Python asks of torch is done in float64: narrower tensors made on the way are widened, and so are the
    dtypes that the program names."""

    def __enter__(self) -> Any:
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        torch.set_default_dtype(self._default)
        super().__exit__(kind, value, trace)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name in ("__get__", "__set__", "set_default_dtype", "finfo"):
            return func(*args, **kwargs)
        if func in TO_DOUBLE:
            return Tensor.double(args[0])
        written = name.endswith("_") and not name.endswith("__")
        args = tuple(a if written and not i else _widened(a) for i, a in enumerate(args))
        kwargs = {key: a if key == "out" else _widened(a) for key, a in kwargs.items()}
        if name in ("grouped_mm", "_grouped_mm") and args[0].dtype is torch.float64:
            return _grouped_mm(*args, **kwargs)
        return func(*args, **kwargs)


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(wide(value.dtype)) if value.dtype in NARROW else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value in NARROW else value
    if type(value) in (list, tuple):
        return type(value)(_widened(item) for item in value)
    return value


def _grouped_mm(a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Any = None, out_dtype: Any = None) -> Tensor:
    """``torch.nn.functional.grouped_mm``, which has no kernel for float64: rows up to ``offs[i]`` by ``b[i]``."""
    if a.dim() == 3 or b.dim() == 2 or offs is None or bias is not None:
        raise TypeError("grouped_mm in float64 of these shapes")
    ends = offs.tolist()
    parts = [a[start:end] @ b[i] for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
    rest = a.shape[0] - (ends[-1] if ends else 0)
    return torch.cat([*parts, a.new_zeros(rest, b.shape[-1])])


class _Sum(NamedTuple):
    """How many terms each element of a result is a sum of, and along which dimension its features lie, of which the
    errors are alike; None if each element has its own. ``partial``: the size of all that is rounded on the way to
    each element, if it is known."""

    terms: int = 1
    feature: int | None = -1
    partial: Tensor | None = None

    @classmethod
    def of(cls, name: str, args: Any, kwargs: Any, result: Any) -> _Sum:
        """Of an op by its name; one term for what sums nothing, or not in a known way."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        if first is None or not first.dim():
            return cls()
        if name in PRODUCTS:
            left = weight if name in ("addmm", "baddbmm", "addbmm") and isinstance(weight, Tensor) else first
            return cls(int(left.shape[-1]))
        if name.startswith("conv") and isinstance(weight, Tensor) and weight.dim() > 2:
            return cls(weight[0].numel(), 1 - weight.dim())
        if name == "batch_norm" and first.dim() > 1:
            return cls(first.numel() // max(1, first.shape[1]), 1 - first.dim())
        if (name in REDUCTIONS or name.endswith(LOSSES)) and isinstance(result, Tensor):
            terms = max(1, first.numel() // max(1, result.numel()))
            return cls(terms, None, _partial_sums(name, args, kwargs, result) if name in SUMS and terms > 1 else None)
        return cls()


def _partial_sums(name: str, args: Any, kwargs: Any, result: Tensor) -> Tensor | None:
    """The 2-norm of the partial sums on the way to each element of a result: each is rounded once, and if terms
    cancel they are far larger than what comes of them. In the order in which the terms lie, or in any, whichever is
    more. None if it is not known what is summed."""
    x: Tensor = args[0].detach()
    dims = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    asked = dims if isinstance(dims, (list, tuple)) else () if dims is None else (dims,)
    plain = x.is_floating_point() and x.layout is torch.strided and not x.is_nested
    if not plain or not all(isinstance(dim, int) for dim in asked):
        return None
    along = sorted({dim % x.dim() for dim in asked or range(x.dim())})
    kept = [dim for dim in range(x.dim()) if dim not in along]
    terms = x.permute(*kept, *along).reshape(*(x.shape[dim] for dim in kept), -1)
    terms = terms.nan_to_num() if name.startswith("nan") else terms
    k, wide = float(terms.shape[-1]), torch.float64  # an int cubed is too large for a tensor from 2.6 million terms on
    mean = terms.mean(-1, dtype=wide)
    spread = (terms.square().mean(-1, dtype=wide) - mean.square()).clamp_min(0.0)
    found = (k**3 * mean.square() / 3 + k**2 * spread / 6).sqrt()
    if terms.numel() <= IN_ORDER:
        found = torch.maximum(found, terms.cumsum(-1, dtype=wide).norm(dim=-1))
    found = found.nan_to_num(0.0, 0.0) / (k if name.endswith("mean") else 1)
    return found.reshape(result.shape).to(result.dtype) if found.numel() == result.numel() else None


PRODUCTS = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm"}
# Kernels sum these in orders of their own, too: over nine million elements a norm of torch's is off by 3e-4, and one of
# inductor's by 2e-7.
REDUCTIONS = {
    "sum", "mean", "nansum", "nanmean", "norm", "vector_norm", "matrix_norm", "linalg_norm", "linalg_vector_norm",
    "logsumexp", "var", "std", "cosine_similarity", "pairwise_distance", "kl_div", "binary_cross_entropy_with_logits",
}  # fmt: skip
IN_ORDER = 1 << 24  # the sums of more elements are taken for those in any order
SUMS = {"sum", "mean", "nansum", "nanmean"}  # the terms of these sums can be looked at
COUNTS = 0.25  # of the numbers from which on a dtype has whole ones alone
LOSSES = ("_loss", "entropy")  # the names of other sums end so


def _holds_counts(tensor: Tensor) -> bool:
    """Whether it holds whole numbers alone, below those where its dtype has no others: indices, counts and masks, which
    no kernel rounds. How many tokens an expert has is such a count, and moved it would name rows that nobody wrote."""
    return torch.equal(tensor, tensor.round()) and float(tensor.abs().max()) * UNIT_ROUNDOFF[tensor.dtype] < COUNTS


class PerturbedRounding(_Recomputing):
    """Every result of an op is moved by up to so many ``roundings`` of its dtype, at random, as another kernel might
    move it. Whole numbers stay as they are.

    A product of K terms in float32 is moved by ``sum_rounding_factor`` of them, as another algorithm might (16-bit
    dtypes are summed in float32), and alike for all rows or pixels of a feature, since the errors of one algorithm do
    not average out; so is the gradient that flows back to it. A plain sum has no other algorithm than another order: it
    is moved by what its own partial sums lose, so that what a verification lets pass is no more than SUMMED standard
    deviations of that. Of views and of what is written in place nothing is moved, but the statistics that a batch norm
    keeps.
    """

    def __init__(self, seed: int, roundings: float = ROUNDINGS) -> None:
        super().__init__()
        self._seed, self._roundings = seed, roundings
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name.endswith("_") or "out" in (kwargs or {}):  # __get__ as well
            return result
        given = {_storage(a) for a in (*args, *(kwargs or {}).values()) if isinstance(a, Tensor)}
        with torch._C.DisableTorchFunction():
            summed = _Sum.of(name, args, kwargs or {}, result)
            if name == "batch_norm" and summed.terms > 1:
                self._move_statistics(summed, *args, **(kwargs or {}))
        return _mapped(result, lambda t: t if _storage(t) in given else self._moved_sum(t, summed))

    def _moved_sum(self, tensor: Tensor, summed: _Sum) -> Tensor:
        """The sum of so many terms, and its gradient."""
        wide = tensor.dtype in (torch.float32, torch.float64) and (tensor.dim() or summed.feature is None)
        if summed.terms == 1 or not wide:
            return self.perturb(tensor)
        if summed.partial is not None:
            return self._moved_by(tensor, summed.partial)
        made = self.perturb(tensor, summed)
        if made is not tensor and made.requires_grad and summed.feature is not None:
            made.register_hook(lambda gradient: self.perturb(gradient, summed))
        return made

    def _moved_by(self, tensor: Tensor, partial: Tensor) -> Tensor:
        """Each element by what its partial sums, of that size in all, may have lost."""
        with torch._C.DisableTorchFunction(), torch.no_grad():
            share = self._roundings * (SUM_STDDEVS / THREEFOLD) * UNIT_ROUNDOFF[tensor.dtype]
            lost = share * partial * (2 * self._noise(partial.shape, tensor) - 1)
        with torch._C.DisableTorchFunction():
            return tensor + lost

    def _noise(self, shape: Sequence[int], like: Tensor) -> Tensor:
        """Numbers from 0 to 1."""
        generator = self._generators.get(like.device)
        if generator is None:
            generator = self._generators[like.device] = torch.Generator(like.device).manual_seed(self._seed)
        wanted = torch.promote_types(like.dtype, torch.float32)
        return torch.rand(shape, generator=generator, device=like.device, dtype=wanted)

    def _move_statistics(
        self, summed: _Sum, x: Tensor, mean: Tensor | None = None, var: Tensor | None = None, weight: Any = None,
        bias: Any = None, training: bool = False, momentum: float = 0.1, *rest: Any, **more: Any,
    ) -> None:  # fmt: skip
        """What a batch norm has written down: its mean is a sum of terms that may be far larger than it."""
        if not training or mean is None or var is None:
            return
        with torch.no_grad():
            channels = x.detach().transpose(0, 1).flatten(1)
            for held, size in ((mean, channels.abs().mean(1)), (var, channels.var(1))):
                # as the norm itself writes them: its backward asks how often they were written
                held.data += momentum * (self.perturb(size, _Sum(summed.terms)) - size)

    def arguments(self, value: Any) -> Any:
        """A copy of arguments, their tensors moved too."""
        return map_tensors(value, lambda t: self.perturb(t) if t.is_floating_point() else t)

    def perturb(self, tensor: Tensor, summed: _Sum | None = None) -> Tensor:
        times = 1.0 if summed is None else sum_rounding_factor(summed.terms)
        step = times * UNIT_ROUNDOFF.get(tensor.dtype, 0.0)
        if not step or not tensor.numel() or tensor.layout is not torch.strided or tensor.is_quantized:
            return tensor
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if _holds_counts(tensor):
                return tensor
            alike = list(tensor.shape)
            if summed is not None and summed.feature is not None:
                alike = [1] * tensor.dim()
                alike[summed.feature] = tensor.shape[summed.feature]
            moved = 1 + (2 * self._noise(alike, tensor) - 1) * (self._roundings * step)
        with torch._C.DisableTorchFunction():
            return (tensor * moved).to(tensor.dtype)


def _storage(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunction(), contextlib.suppress(Exception):
        return tensor.untyped_storage().data_ptr()
    return 0


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_mapped(item, change) for item in value)
    return value
