"""Ops that move elements or choose among them: they round nothing, and hand on what their operands carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.bounds.call import Call, Result, unit, words
from kernelworks.contract.bounds.error import Error, sum_errors
from kernelworks.contract.bounds.pointwise import rounding_error

__all__ = ["CHOICES", "MOVES", "choice", "conversion", "move"]


MOVES = words(
    """clone contiguous reshape flatten cat stack index index_select gather embedding repeat flip roll tril triu
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d slice_scatter select_scatter as_strided_scatter diagonal_scatter pixel_shuffle pixel_unshuffle
    channel_shuffle native_channel_shuffle im2col _unsafe_view _reshape_alias repeat_interleave masked_select take
    _unsafe_index scatter index_copy upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d diag_embed diag rot90 select_backward slice_backward
    lift_fresh alias lift masked_scatter max_unpool2d broadcast_to expand_copy view_copy permute_copy transpose_copy
    block_diag split_with_sizes_copy unfold_copy squeeze_copy unsqueeze_copy t_copy select_copy slice_copy
    diagonal_copy unbind_copy split_copy detach_copy resolve_conj resolve_neg _conj"""
)
FILL_ARGUMENTS = ("value", "fill_value")


def move(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """The same move of the values and of what they carry."""
    values = _listed(call.run())
    if not call.errors:
        errors: list[Error | None] = [None] * len(values)
    else:
        fills = _fills(call)
        parts = []
        for part in ("worst", "common", "spread"):
            others = {
                i: getattr(call.errors[i], part) if i in call.errors else torch.zeros_like(call.leaves[i])
                for i in call.floats
            }
            parts.append(_listed(call.run(others | fills)))
        shares = sum_errors([e.map_parts(lambda t: t.reshape(-1)[:1].sum()) for e in call.errors.values()]).shares
        errors = [Error(w, c, s, shares) for w, c, s in zip(*parts, strict=True)]
    if call.unsure:
        errors = [_anywhere(call, value, error) for value, error in zip(values, errors, strict=True)]
    return [
        Result(value if native.dtype.is_floating_point else None, error if native.dtype.is_floating_point else None)
        for value, error, native in zip(values, errors, outputs, strict=True)
    ]


def _listed(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _fills(call: Call) -> dict[int, Any]:
    """Numbers that fill places, which carry no error."""
    named = {a.name for a in call.func._schema.arguments} & {*FILL_ARGUMENTS}
    values = [call.argument(name) for name in named]
    return {
        i: 0.0 for i, leaf in enumerate(call.leaves)
        if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and any(leaf is v for v in values)
    }  # fmt: skip


def _anywhere(call: Call, value: Tensor, error: Error | None) -> Error:
    """What is read by an index that rounding decides may be any of the values there."""
    source = call.leaves[call.floats[0]]
    reach = (source.amax() - source.amin()).expand(value.shape) if source.numel() else torch.zeros_like(value)
    masks = [m for m in call.unsure.values() if m.shape == value.shape]
    anywhere = any(bool(m.any()) for m in call.unsure.values())
    off = torch.where(masks[0], reach, 0.0) if masks else reach * float(anywhere)
    found = Error(off, off, torch.zeros_like(off), {"an index that rounding decides": 1.0})
    return found if error is None else sum_errors([error, found])


def conversion(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """Another dtype: one rounding where it is narrower."""
    (native,) = outputs
    source = call.given[0]
    if not native.dtype.is_floating_point:
        if source.dtype.is_floating_point and call.errors:
            return [Result(None, None, _steps(call.leaves[0], next(iter(call.errors.values())).bound))]
        return [Result(None, None, next(iter(call.unsure.values()), None))]
    value = call.leaves[0].to(torch.float64)
    parts = [*call.errors.values()]
    for mask in call.unsure.values():
        off = mask.to(torch.float64) * (1.0 if source.dtype is torch.bool else torch.inf)
        parts.append(Error(off, off, torch.zeros_like(off), {"a comparison that rounding decides": 1.0}))
    narrower = source.dtype.is_floating_point and unit(native.dtype) > unit(source.dtype)
    if narrower or (not source.dtype.is_floating_point and source.dtype is not torch.bool):
        label, off = f"to {_short(native.dtype)}", (native.to(torch.float64) - value).abs()
        if narrower:
            parts.append(rounding_error(value, native.dtype, label))
        elif bool(off.any()):  # a whole number that is too large for the dtype
            parts.append(Error(off, off, torch.zeros_like(off), {label: 1.0}))
    return [Result(value, sum_errors(parts) if parts else None)]


def _steps(value: Tensor, off: Tensor) -> Tensor:
    return (value - off).trunc() != (value + off).trunc()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- the largest, the sorted

CHOICES = words(
    """amax amin max min argmax argmin max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices
    _adaptive_max_pool2d adaptive_max_pool2d adaptive_max_pool3d topk sort median kthvalue cummax cummin"""
)
FREE_OF_EQUALS = ("topk", "sort", "median", "kthvalue")  # of equal elements any may be named
POOLS = {name for name in CHOICES if "pool" in name}


def choice(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """The chosen value is off by no more than the most that one of those to choose from is; the place of it hangs on
    rounding where another one comes as near as both are off."""
    if len(call.floats) == 2:  # the larger of two, element by element, under the same name
        from kernelworks.contract.bounds.pointwise import pointwise

        return pointwise(call, outputs)
    found = _listed(call.run())
    error = next(iter(call.errors.values()), None)
    results = []
    spoiled = None if error is None else _most(call, error)
    for value, native in zip(found, outputs, strict=True):
        if native.dtype.is_floating_point:
            results.append(Result(value, None if spoiled is None else spoiled[0]))
        else:
            results.append(Result(None, None, _ties(call, native, spoiled)))
    return results


def _most(call: Call, error: Error) -> tuple[Error, Tensor]:
    """The largest error among those that each result is chosen from, and its bound."""
    error = error.alike()

    def largest(part: Tensor) -> Tensor:
        if call.name in POOLS:
            return _listed(call.run({call.floats[0]: part}))[0]
        dims = _dims(call, part)
        if call.name in ("topk", "sort", "cummax", "cummin"):
            most = part.amax(dims, keepdim=True)
            return most.expand(_listed(call.run())[0].shape)
        return part.amax(dims, keepdim=bool(call.argument("keepdim", False))) if dims else part.amax()

    found = error.map_parts(largest)
    return found, found.bound


def _dims(call: Call, x: Tensor) -> list[int]:
    names = {a.name for a in call.func._schema.arguments}
    dim = call.argument("dim") if "dim" in names else None
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(x.dim()))
    return [dim] if isinstance(dim, int) else list(dim)


def _ties(call: Call, places: Tensor, spoiled: tuple[Error, Tensor] | None) -> Tensor | None:
    """Where the place that was chosen may be another one."""
    x = call.leaves[call.floats[0]]
    if not x.numel():
        return None
    equal = _equals(call, x, places) if call.name in FREE_OF_EQUALS and not call.argument("stable", False) else None
    if spoiled is None:
        return equal
    near = _near(call, places, x, spoiled[1])
    return near if equal is None else equal if near is None else near | equal


def _equals(call: Call, x: Tensor, places: Tensor) -> Tensor | None:
    """Where the line has another element of the chosen value, and torch does not say which of them is named."""
    dim = _dims(call, x)[0] if x.dim() else 0
    if not x.dim() or not places.numel():
        return None
    chosen = places if places.dim() == x.dim() else places.unsqueeze(dim)
    line = x.nan_to_num(torch.inf, torch.inf, -torch.inf).movedim(dim, -1).contiguous()
    values = line.gather(-1, chosen.movedim(dim, -1))
    ordered = line.sort(-1).values
    count = torch.searchsorted(ordered, values, right=True) - torch.searchsorted(ordered, values)
    return (count > 1).movedim(-1, dim).reshape(places.shape)


def _near(call: Call, places: Tensor, x: Tensor, off: Tensor) -> Tensor | None:
    """Where another element comes as near as both are off."""
    if call.name in POOLS:
        return off > 0  # windows overlap: no more is known of what else was there
    dims = _dims(call, x)
    if len(dims) != 1:
        top = x.reshape(-1).topk(min(2, x.numel())).values if call.name in ("max", "argmax") else (
            -(-x).reshape(-1).topk(min(2, x.numel())).values
        )  # fmt: skip
        near = (top[0] - top[-1]).abs() <= (2 * off.max() if x.numel() > 1 else -1.0)  # one alone has no equal
        return near.expand(places.shape)
    dim = dims[0] if x.dim() else 0
    if x.dim() == 0 or x.shape[dim] < 2:
        return None
    ordered = x.sort(dim, descending=call.name in ("max", "argmax")).values
    if call.name in ("sort", "topk", "median", "kthvalue"):
        gaps = ordered.diff(dim=dim).abs()
        smallest = gaps.amin(dim, keepdim=True)
        near = smallest <= 2 * (off.amax(dim, keepdim=True) if off.shape[dim:] and off.dim() == x.dim() else off.max())
        return near.expand_as(places) if near.dim() == places.dim() else near.squeeze(dim).expand_as(places)
    gap = (ordered.select(dim, 0) - ordered.select(dim, 1)).abs()
    return (gap.reshape(places.shape) <= 2 * off.reshape(places.shape)) if off.numel() == places.numel() else None


Rule = Callable[[Call, Sequence[Tensor]], list[Result]]
