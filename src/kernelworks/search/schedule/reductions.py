"""Rules for operators that gather: sums, extremes, variances, products of matrices, convolutions, pools, padding."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernelworks.search.schedule.nest import Access, Apply, Expr, Index, Number
from kernelworks.search.schedule.values import Builder, Lazy, NotDerivable, Place, Value

__all__ = ["RULES"]

Bound = Mapping[str, Any]  # an operator's arguments by their names
Rule = Callable[[Builder, str, Bound, torch.fx.Node], Any]


def _dims(value: Value, said: Any) -> list[int]:
    count = len(value.shape) if isinstance(value, (Place, Lazy)) else 0
    if said is None or said == []:
        return list(range(count))
    return sorted({d % count for d in ([said] if isinstance(said, int) else said)}) if count else []


def reduce_axes(
    builder: Builder, name: str, value: Value, dims: Sequence[int], monoid: str, *, keep: bool
) -> Place:  # fmt: skip
    """A stage that gathers a value along some of its axes."""
    lazy = builder.lazy(value)
    if lazy.decides:
        lazy = Lazy(lazy.shape, lazy.axes, Apply("select", (lazy.value, Number(1.0), Number(0.0))))
    axes = [builder.new_dim(n) if d is None and n > 1 else d for d, n in zip(lazy.axes, lazy.shape, strict=True)]
    left = [d for i, d in enumerate(axes) if i not in dims and d]
    gone = [d for i, d in enumerate(axes) if i in dims and d]
    shape = [1 if i in dims else n for i, n in enumerate(lazy.shape) if keep or i not in dims]
    return builder.stage(name, shape, left, lazy.value, gone, monoid if gone else "")


def _extreme(monoid: str) -> Rule:
    def rule(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Place:
        dims = _dims(bound["self"], bound.get("dim"))
        return reduce_axes(builder, name, bound["self"], dims, monoid, keep=bool(bound.get("keepdim")))

    return rule


def _largest(monoid: str) -> Rule:
    """torch's max and min, which are three operators: of all, along a dimension with places, and of two tensors."""

    def rule(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Any:
        if "other" in bound:
            shape = tuple(node.meta["val"].shape)
            axes, operands = builder.align_operands(shape, [bound["self"], bound["other"]], f"{name}_from")
            return Lazy(shape, tuple(axes), Apply(monoid, tuple(operands)))
        return (_of_pair(_extreme(monoid)) if "dim" in bound else _extreme(monoid))(builder, name, bound, node)

    return rule


def _of_pair(rule: Rule) -> Rule:
    """The values of what has places too, where nobody reads those."""

    def made(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Any:
        if any(user.args[1] != 0 and user.users for user in node.users):
            raise NotDerivable(f"aten::{node.target.overloadpacket.__name__} whose places are read")  # type: ignore[union-attr]
        return [rule(builder, name, bound, node), None]

    return made


def _truth(monoid: str) -> Rule:
    """Whether all, or any, of some booleans hold."""

    def rule(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Lazy:
        dims = _dims(bound["self"], bound.get("dim"))
        place = reduce_axes(builder, name, bound["self"], dims, monoid, keep=bool(bound.get("keepdim")))
        lazy = builder.lazy(place)
        return Lazy(lazy.shape, lazy.axes, Apply("not_equal", (lazy.value, Number(0.0))), True)

    return rule


def _mean(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Lazy:
    value, dims = bound["self"], _dims(bound["self"], bound.get("dim"))
    count = math.prod(value.shape[d] for d in dims)
    total = reduce_axes(builder, f"{name}_sum", value, dims, "sum", keep=bool(bound.get("keepdim")))
    return _over(builder, total, count)


def _over(builder: Builder, total: Place, count: float) -> Lazy:
    lazy = builder.lazy(total)
    return Lazy(lazy.shape, lazy.axes, Apply("div", (lazy.value, Number(float(count)))))


def _variance(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Any:
    """Of the distances from the mean, which is found first."""
    value, dims = bound["self"], _dims(bound["self"], bound.get("dim"))
    count = math.prod(value.shape[d] for d in dims)
    correction = bound.get("correction", 1 if bound.get("unbiased", True) else 0)
    rest = count - (1 if correction is None else correction)
    if rest <= 0:
        raise NotDerivable("a variance of fewer elements than are taken off")
    place = builder.materialize(value, f"{name}_of")
    total = reduce_axes(builder, f"{name}_sum", place, dims, "sum", keep=True)
    mean = builder.materialize(_over(builder, total, count), f"{name}_mean")
    axes, (x, middle) = builder.align_operands(place.shape, [place, mean], name)
    away = Lazy(place.shape, tuple(axes), Apply("square", (Apply("sub", (x, middle)),)))
    keep = bool(bound.get("keepdim"))
    found = _over(builder, reduce_axes(builder, f"{name}_squares", away, dims, "sum", keep=keep), rest)
    if node.target.overloadpacket.__name__ == "var":  # type: ignore[union-attr]
        return found
    return [found, mean if keep else Place(mean.buffer, _without(mean, dims))]


def _without(place: Place, dims: Sequence[int]) -> torch.Tensor:
    meta = place.meta
    for dim in reversed(dims):
        meta = meta.squeeze(dim)
    return meta


# ---------------------------------------------------------------- products


def _product(builder: Builder, name: str, a: Value, b: Value) -> Place:
    """Over the last axis of one and the last but one of the other; what is before that they have in common."""
    left, right = builder.materialize(a, f"{name}_left"), builder.materialize(b, f"{name}_right")
    before = len(left.shape) - 2
    one, two = builder.suggest_axes(left), builder.suggest_axes(right)
    dims: list[str | None] = []
    for axis in range(before):
        dims.append(_joined(builder, one[axis], two[axis], dims))
    rows, inner = _apart(builder, one[-2], dims), one[-1]
    inner = _apart(builder, inner, [*dims, rows])
    columns = two[-1]
    if inner and two[-2]:
        builder.unify(inner, two[-2], [*dims, rows])
    columns = _apart(builder, columns, [*dims, rows, inner])
    value = Apply(
        "mul", (builder.read(left, [*dims, rows, inner]), builder.read(right, [*dims, inner, columns]))
    )  # fmt: skip
    shape = (*left.shape[:-1], right.shape[-1])
    written = [d for d in (*dims, rows, columns) if d]
    return builder.stage(name, shape, written, value, [inner] if inner else [], "sum" if inner else "")


def _joined(builder: Builder, a: str | None, b: str | None, taken: Sequence[str | None]) -> str | None:
    a = _apart(builder, a, taken)
    if a and b:
        builder.unify(a, b, taken)
    return a


def _apart(builder: Builder, dim: str | None, taken: Sequence[str | None]) -> str | None:
    """The dimension, or another of its size where the stage has it already."""
    if dim is None or builder.root(dim) not in {builder.root(d) for d in taken if d}:
        return dim
    return builder.new_dim(builder.sizes[builder.root(dim)])


def _matrices(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Place:
    return _product(builder, name, bound["self"], bound["mat2"])


def _added(second: str, third: str) -> Rule:
    def rule(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Lazy:
        total = _product(builder, f"{name}_product", bound[second], bound[third])
        return _plus(builder, name, total, bound["self"], bound.get("beta", 1), bound.get("alpha", 1))

    return rule


def _plus(builder: Builder, name: str, total: Place, other: Value, beta: float = 1, alpha: float = 1) -> Lazy:
    axes, (a, b) = builder.align_operands(total.shape, [total, other], f"{name}_from")
    a = a if alpha == 1 else Apply("mul", (a, Number(float(alpha))))
    b = b if beta == 1 else Apply("mul", (b, Number(float(beta))))
    return Lazy(total.shape, tuple(axes), Apply("add", (a, b)))


# ---------------------------------------------------------------- windows


def _wrapped(builder: Builder, name: str, value: Value, padding: Sequence[int]) -> Place:
    """With zeros around its last axes."""
    place = builder.materialize(value, f"{name}_of")
    if not any(padding):
        return place
    shape = list(place.shape)
    low = [0] * len(shape)
    for axis, more in zip(range(len(shape) - len(padding), len(shape)), padding, strict=True):
        shape[axis] += 2 * more
        low[axis] = more
    return builder.pad_place(f"{name}_padded", place, low, shape)


def _window(
    builder: Builder, place: Place, out: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int],
) -> tuple[list[str | None], list[str | None], list[tuple[str, int]]]:  # fmt: skip
    """Dimensions of a result's last axes and of a window's, and the strides with which they move over a tensor."""
    steps = place.meta.stride()[-len(out) :]
    written = [builder.new_dim(n) if n > 1 else None for n in out]
    taps = [builder.new_dim(n) if n > 1 else None for n in kernel]
    strides = [(d, s * m) for d, s, m in zip(written, steps, stride, strict=True) if d]
    strides += [(d, s * m) for d, s, m in zip(taps, steps, dilation, strict=True) if d]
    return written, taps, strides


def _convolution(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Value:
    """Over groups g, channels o and c inside one, and a window: sum over c and the window."""
    if bound["transposed"]:
        raise NotDerivable("aten::convolution that is transposed")
    weight = builder.materialize(bound["weight"], f"{name}_weight")
    spatial = len(weight.shape) - 2
    each = [list(bound[k]) * (spatial if len(bound[k]) == 1 else 1) for k in ("stride", "padding", "dilation")]
    stride, padding, dilation = each
    place = _wrapped(builder, name, bound["input"], padding)
    shape, groups = tuple(node.meta["val"].shape), int(bound["groups"])
    outs, ins = shape[1] // groups, weight.shape[1]
    written, taps, moves = _window(builder, place, shape[2:], weight.shape[2:], stride, dilation)
    n = builder.suggest_axes(place)[0]
    g, o, c = (builder.new_dim(s) if s > 1 else None for s in (groups, outs, ins))
    xs, ws = place.meta.stride(), weight.meta.stride()
    x = [(n, xs[0]), (g, xs[1] * ins), (c, xs[1]), *moves]
    w = [(g, ws[0] * outs), (o, ws[0]), (c, ws[1]), *zip(taps, ws[2:], strict=True)]
    value = Apply("mul", (_read(place, x), _read(weight, w)))
    dims = [d for d in (n, g, o, *written) if d]
    total = builder.stage(name, shape, dims, value, [d for d in (c, *taps) if d], "sum")
    if bound.get("bias") is None:
        return total
    bias = builder.materialize(bound["bias"], f"{name}_bias")
    along = Place(bias.buffer, bias.meta.view(-1, *[1] * spatial))
    return _plus(builder, name, total, along)


def _read(place: Place, strides: Sequence[tuple[str | None, int]]) -> Access:
    return Access(place.buffer, tuple((d, s) for d, s in strides if d and s), int(place.meta.storage_offset()))


def _pool(monoid: str) -> Rule:
    def rule(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Value:
        result = node.meta["val"]
        shape = tuple((result[0] if isinstance(result, (list, tuple)) else result).shape)
        value: Value = bound["self"]
        spatial = int(node.target.overloadpacket.__name__.split("d_with")[0].rstrip("d")[-1])  # type: ignore[union-attr]
        kernel, stride, padding = (_each(bound.get(k), spatial) for k in ("kernel_size", "stride", "padding"))
        stride = stride if bound.get("stride") else kernel
        whole = bound.get("count_include_pad", True) and bound.get("divisor_override") is None
        if bound.get("ceil_mode") or (any(padding) and (monoid != "sum" or not whole)):
            raise NotDerivable(f"aten::{node.target.overloadpacket.__name__} with such padding")  # type: ignore[union-attr]
        place = _wrapped(builder, name, value, padding)
        written, taps, moves = _window(builder, place, shape[-spatial:], kernel, stride, _each(1, spatial))
        before = builder.suggest_axes(place)[:-spatial]
        x = [*zip(before, place.meta.stride(), strict=False), *moves]
        dims, gone = [d for d in (*before, *written) if d], [d for d in taps if d]
        total = builder.stage(name, shape, dims, _read(place, x), gone, monoid if gone else "")
        divisor = bound.get("divisor_override") or math.prod(kernel)
        return total if monoid != "sum" else _over(builder, total, divisor)

    return rule


def _each(said: Any, count: int) -> list[int]:
    values = [said] if isinstance(said, int) else list(said or [0])
    return values * (count if len(values) == 1 else 1)


def _adaptive(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Lazy:
    value, shape = bound["self"], tuple(node.meta["val"].shape)
    place = builder.materialize(value, f"{name}_of")
    sizes = list(zip(place.shape, shape, strict=True))
    if any(a % b for a, b in sizes):
        raise NotDerivable("aten::_adaptive_avg_pool2d whose windows differ")
    kernel = [a // b for a, b in sizes[-2:]]
    written, taps, moves = _window(builder, place, shape[-2:], kernel, kernel, [1, 1])
    before = builder.suggest_axes(place)[:-2]
    x = [*zip(before, place.meta.stride(), strict=False), *moves]
    dims, gone = [d for d in (*before, *written) if d], [d for d in taps if d]
    total = builder.stage(name, shape, dims, _read(place, x), gone, "sum" if gone else "")
    return _over(builder, total, math.prod(kernel))


def _pad(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Place:
    place, pad = builder.materialize(bound["self"], f"{name}_of"), list(bound["pad"])
    if float(bound.get("value") or 0.0) != 0.0 or any(n < 0 for n in pad):
        raise NotDerivable("aten::constant_pad_nd that crops, or pads with anything but zeros")
    low = [0] * len(place.shape)
    for at in range(len(pad) // 2):
        low[len(low) - 1 - at] = pad[2 * at]
    return builder.pad_place(name, place, low, node.meta["val"].shape)


def _gathered(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Value:
    """One element of each line: the sum of those whose place it is, of which there is one."""
    value, index = builder.lazy(bound["self"]), bound["index"]
    dim = bound["dim"] % len(value.shape)
    shape = tuple(node.meta["val"].shape)
    expected = tuple(1 if i == dim else n for i, n in enumerate(value.shape))
    if shape != expected or value.axes[dim] is None:
        raise NotDerivable("aten::gather of more than one element of each line")
    axes, (x, at) = builder.align_operands(value.shape, [value, index], f"{name}_from")
    along = axes[dim]
    assert along is not None
    chosen: Expr = Apply("select", (Apply("equal", (Index(((along, 1),)), at)), x, Number(0.0)))
    return reduce_axes(builder, name, Lazy(value.shape, tuple(axes), chosen), [dim], "sum", keep=True)


def _summed(builder: Builder, name: str, bound: Bound, node: torch.fx.Node) -> Place:
    dims = _dims(bound["self"], bound.get("dim"))
    return reduce_axes(builder, name, bound["self"], dims, "sum", keep=bool(bound.get("keepdim")))


RULES: dict[str, Rule] = {
    "sum": _summed, "mean": _mean, "amax": _extreme("max"), "amin": _extreme("min"),
    "all": _truth("min"), "any": _truth("max"), "max": _largest("max"), "min": _largest("min"),
    "var": _variance, "var_mean": _variance,
    "mm": _matrices, "bmm": _matrices, "addmm": _added("mat1", "mat2"), "baddbmm": _added("batch1", "batch2"),
    "convolution": _convolution, "avg_pool2d": _pool("sum"), "avg_pool3d": _pool("sum"), "avg_pool1d": _pool("sum"),
    "max_pool2d_with_indices": _of_pair(_pool("max")), "max_pool3d_with_indices": _of_pair(_pool("max")),
    "_adaptive_avg_pool2d": _adaptive, "constant_pad_nd": _pad, "gather": _gathered,
}  # fmt: skip
