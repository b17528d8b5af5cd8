"""Elements picked along a dimension by an index, and elements added where an index says, by Triton.

What is added is sorted by where it goes (stable), so that one thread adds it up in the order of the index: no
atomics, the same bits every time. An index that is none picks NaN and adds nothing; its position is left in memory
that the CPU sees, too, and the next call raises.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernelworks.build.kernels import into
from kernelworks.build.triton import Configs, Kernel, configs, kernel
from kernelworks.contract.index_argument import picked_shape


@kernel
def _picked(
    out, x, index, fault, total, inner, picked, N, index_outer, index_dim, index_inner, x_outer, x_dim, x_inner,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out [outer, picked, inner], in order; x and index of any strides."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    column, line = place % inner, place // inner
    m, outer = line % picked, line // picked
    at = tl.load(index + outer * index_outer + m * index_dim + column * index_inner, mask=there, other=0).to(tl.int64)
    known = there & (at >= 0) & (at < N)
    value = tl.load(x + outer * x_outer + at * x_dim + column * x_inner, mask=known, other=float("nan"))
    tl.store(out + place, value, mask=there)
    if fault is not None:
        tl.store(fault + tl.zeros([BLOCK], tl.int32), (outer * picked + m) * inner + column + 1, mask=there & ~known)
        tl.store(fault + 1 + tl.zeros([BLOCK], tl.int32), N, mask=there & ~known)


@kernel
def _keys(keys, index, fault, total, picked, N, V, BLOCK: tl.constexpr):
    """Where each element goes, of V places; V for one whose index is none."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    there = place < total
    at = tl.load(index + place, mask=there, other=0).to(tl.int64)
    known = (at >= 0) & (at < N)
    tl.store(keys + place, tl.where(known, place // picked * N + at, V), mask=there)
    if fault is not None:
        tl.store(fault + tl.zeros([BLOCK], tl.int32), place + 1, mask=there & ~known)
        tl.store(fault + 1 + tl.zeros([BLOCK], tl.int32), N, mask=there & ~known)


@kernel
def _added(
    out, base, source, keys, places, V, D, count, STEPS, alpha, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """out [V, D] = base + alpha times the rows of source [count, D] whose key it is, found by bisection."""
    v = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    low = tl.zeros([ROWS], tl.int64)
    high = low + count
    first, last = low, high
    for _ in range(STEPS):
        middle = (low + high) // 2
        less = tl.load(keys + middle, mask=low < high, other=0) < v
        low, high = tl.where((low < high) & less, middle + 1, low), tl.where(less, high, middle)
        middle = (first + last) // 2
        upto = tl.load(keys + middle, mask=first < last, other=0) <= v
        first, last = tl.where((first < last) & upto, middle + 1, first), tl.where(upto, last, middle)
    inside = (v < V)[:, None] & (column < D)[None, :]
    to = v[:, None] * D + column[None, :]
    total = tl.load(base + to, mask=inside, other=0.0).to(tl.float32)
    many = tl.where(v < V, first - low, 0)
    for i in range(tl.max(many)):
        some = i < many
        place = tl.load(places + low + i, mask=some, other=0)
        where = source + place[:, None] * D + column[None, :]
        more = tl.load(where, mask=some[:, None] & (column < D)[None, :], other=0.0).to(tl.float32)
        total += alpha * more
    tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)


PICKED, KEYS, ADDED = Kernel(_picked), Kernel(_keys), Kernel(_added)


@functools.cache
def _faults(device: str) -> tuple[Tensor, Any]:
    """Two numbers that GPU and CPU both see: 1 + the position of an index that is none, and how many there are."""
    kept = torch.zeros(2, dtype=torch.int64, pin_memory=device == "cuda")
    return kept, (ctypes.c_int64 * 2).from_address(kept.data_ptr())


class IndexLaunches:
    """Launches both functions, with the configurations ``pick``, ``keys`` and ``add``."""

    def __init__(self, configs: Configs) -> None:
        self.configs = configs

    def refuse_late(self, which: str = "an earlier call", device: str = "cuda") -> None:
        """Raises IndexError for an index of an earlier call that is none."""
        _, words = _faults(device if torch.cuda.is_available() else "cpu")
        if words[0]:
            position, size = words[0] - 1, words[1]
            words[0] = 0
            raise IndexError(f"index must be in [0, {size}); {which} had another at position {position}")

    def _fault(self, x: Tensor, checked: bool) -> Tensor | None:
        if not checked:
            return None
        return (
            _faults("cuda" if torch.cuda.is_available() else "cpu")[0]
            if not x.is_meta
            else x.new_empty(2, dtype=torch.int64)
        )

    def pick(
        self, x: Tensor, dim: int, index: Tensor, shape: tuple[int, ...], rows: bool, checked: bool = False
    ) -> Tensor:
        """What the index picks from x, of a shape."""
        out = x.new_empty(shape)
        total = out.numel()
        if not total:
            return out
        if not x.dim():
            x, index, dim = x.reshape(1), index.reshape(1), 0
            shape = (1,)
        dim %= x.dim()
        if not rows:
            for d, n in enumerate(shape):
                x = x if d == dim else x.narrow(d, 0, n)
        N, outer, inner = x.shape[dim], math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
        x = x.reshape(outer, N, inner)
        index = index if rows else index.reshape(outer, shape[dim], inner)
        strides = (0, index.stride(0), 0) if rows else index.stride()
        chosen = self.configs.pick("pick", dtype=x.dtype)
        PICKED.at(**chosen)(
            (triton.cdiv(total, chosen["BLOCK"]), 1, 1), out, x, index, self._fault(x, checked), total, inner,
            shape[dim], N, *strides, *x.stride(),
        )  # fmt: skip
        if checked and not x.is_cuda and not x.is_meta:
            self.refuse_late("this call")
        return out

    def add(
        self, x: Tensor, source: Tensor, dim: int, index: Tensor, rows: bool, alpha: float, checked: bool = False
    ) -> Tensor:
        """x, and alpha times what goes where the index says."""
        out = x.clone(memory_format=torch.contiguous_format)
        if not source.numel():
            return out
        if not x.dim():
            made = self.add(x.reshape(1), source.reshape(1), 0, index.reshape(1), rows, alpha, checked)
            return made.reshape(())
        dim %= x.dim()
        if rows:
            base, lines = out.movedim(dim, 0), source.movedim(dim, 0)
            V, count, picked, N = base.shape[0], index.numel(), index.numel(), base.shape[0]
        else:
            base = out
            for d, n in enumerate(source.shape):
                base = base if d == dim else base.narrow(d, 0, n)
            base, lines, index = base.movedim(dim, -1), source.movedim(dim, -1), index.movedim(dim, -1)
            V, count, picked, N = base.numel(), source.numel(), index.shape[-1], base.shape[-1]
        D = lines.numel() // count
        keys = torch.empty(count, dtype=torch.int64, device=x.device)
        block = self.configs.pick("keys", dtype=x.dtype)
        KEYS.at(**block)(
            (triton.cdiv(count, block["BLOCK"]), 1, 1), keys, index.contiguous(), self._fault(x, checked), count,
            picked, N, V,
        )  # fmt: skip
        keys, places = torch.sort(keys, stable=True)
        summed = torch.empty(base.shape, dtype=x.dtype, device=x.device)
        chosen = dict(self.configs.pick("add", dtype=x.dtype))
        columns = min(chosen["COLUMNS"], triton.next_power_of_2(D))
        height = max(1, chosen.pop("ELEMENTS") // columns)
        ADDED.at(**chosen | {"ROWS": height, "COLUMNS": columns})(
            (triton.cdiv(V, height), triton.cdiv(D, columns), 1), summed, base.contiguous(), lines.contiguous(), keys,
            places, V, D, count, count.bit_length(), float(alpha),
        )  # fmt: skip
        base.copy_(summed)
        if checked and not x.is_cuda and not x.is_meta:
            self.refuse_late("this call")
        return out


def triton_functions(names: str, *, rows: bool, launches: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The forward and the backward of an op of these arguments on a GPU. Where the fourth is there, it is added; with
    ``rows`` an index picks whole rows."""
    arguments = tuple(names.split())
    source_name = arguments[3] if len(arguments) > 3 else ""

    def forward(*args: Any, out: Any = None) -> Any:
        call = dict(zip(arguments, args, strict=True))
        x, dim, index = call["x"], call["dim"], call["index"]
        launches.refuse_late()
        if source_name:
            alpha = call.get("alpha", 1.0)
            made = launches.add(x, call[source_name], dim, index, rows, alpha, checked=True)
        else:
            made = launches.pick(x, dim, index, picked_shape(x, dim, index, rows), rows, checked=True)
        return into(made, out)

    def backward(grad: Tensor, *args: Any, out: Any = None) -> Any:
        if not source_name:
            x, dim, index = args
            zeros = torch.zeros(x.shape, dtype=grad.dtype, device=grad.device)
            return into(launches.add(zeros, grad, dim, index, rows, 1.0), out)
        dim, index, source, *alpha, needs = args
        of_source = grad.new_empty(0)
        if needs[1]:
            of_source = launches.pick(grad, dim, index, tuple(source.shape), rows)
            if alpha and alpha[0] != 1.0:
                of_source = (of_source.float() * alpha[0]).to(grad.dtype)
        return into((grad.clone() if needs[0] else grad.new_empty(0), of_source), out)

    return forward, backward


LAUNCHES = IndexLaunches(configs(__file__))
gather_forward, gather_backward = triton_functions("x dim index", rows=False, launches=LAUNCHES)
index_select_forward, index_select_backward = triton_functions("x dim index", rows=True, launches=LAUNCHES)
scatter_add_forward, scatter_add_backward = triton_functions("x dim index src", rows=False, launches=LAUNCHES)
index_add_forward, index_add_backward = triton_functions("x dim index source alpha", rows=True, launches=LAUNCHES)
