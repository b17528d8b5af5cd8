"""Sums of many terms: reductions, products of matrices, convolutions, pools, scans.

Each is linear in every operand, so what an operand carries goes through the op itself, on absolute values; what is
independent goes through its squares. What a sum of K terms adds is ``roundings``' model: sqrt(K) unit roundoffs of its
partial sums, which are of the size of the result and of the root of the squares of the terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract.bounds.call import Call, Result, inner, unit
from kernelworks.contract.bounds.error import Error, sum_errors
from kernelworks.contract.bounds.pointwise import TINY, rounding_error
from kernelworks.contract.bounds.selection import MOVES, move
from kernelworks.contract.error_model import SUM_STDDEVS, sum_rounding_factor

__all__ = [
    "LANDINGS",
    "PRODUCTS",
    "SUMS",
    "added_error",
    "begun_error",
    "convolution_backward",
    "product",
    "scatter",
    "summation",
    "terms_of",
    "variance",
]

Terms = Callable[[Call, Tensor], int]
ADDITIONS = ("add", "sub", "rsub")


def _reduced(call: Call, result: Tensor) -> int:
    return max(1, call.leaves[call.floats[0]].numel() // max(1, result.numel()))


def _inner(call: Call, result: Tensor) -> int:
    return int(call.leaves[call.floats[0]].shape[-1])


def _convolved(call: Call, result: Tensor) -> int:
    weight = call.argument("weight")
    kernel = math.prod(weight.shape[2:])
    return int(weight.shape[0 if call.argument("transposed") else 1] * kernel)


def _pooled(call: Call, result: Tensor) -> int:
    kernel = call.argument("kernel_size")
    return int(math.prod(kernel) if len(kernel) > 1 else kernel[0] ** (result.dim() - 2))


def _scanned(call: Call, result: Tensor) -> int:
    x = call.leaves[call.floats[0]]
    return int(x.shape[call.argument("dim")]) if x.dim() else 1


def _scattered(call: Call, result: Tensor) -> int:
    """The most that land in one place."""
    index = call.argument("index")
    if not index.numel():
        return 1
    if index.dim() == 1:
        return int(index.bincount().max()) + 1
    return int(index.shape[call.argument("dim")]) + 1


def _few(call: Call, result: Tensor) -> int:
    return int(2 ** max(1, result.dim() - 2))


SUMS: dict[str, Terms] = {
    **dict.fromkeys(("sum", "nansum", "mean", "trace"), _reduced),
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), _inner),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution"), _convolved),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pooled),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d"), _reduced),
    "cumsum": _scanned,
    **dict.fromkeys(("index_add", "scatter_add"), _scattered),
    **dict.fromkeys(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), _few),
}
PRODUCT_SUMS = ("mm", "bmm", "mv", "dot", "vdot", "convolution", "_convolution", "mkldnn_convolution")
MEANS = {"mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d"}


def root_of(terms: int) -> float:
    """The standard deviation of a sum's rounding, in unit roundoffs of its partial sums."""
    return sum_rounding_factor(terms) / SUM_STDDEVS


def summation(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    (native,) = outputs
    added = _apart(call)  # a bias is added to the sum, and multiplied with nothing
    terms = SUMS[call.name](call, native)
    value = call.run(added)
    scale = 1 / terms if call.name in MEANS else 1.0  # of the squares of the terms' weights against the weights

    def through(changes: dict[int, Tensor], change: Callable[[Tensor], Tensor]) -> Tensor:
        others = {i: changes[i] if i in changes else change(call.leaves[i]) for i in call.floats if i not in added}
        result: Tensor = call.run(others | added)
        return result

    def squares(changes: dict[int, Tensor]) -> Tensor:
        return (scale * through(changes, torch.square)).clamp(min=0).sqrt()

    parts = []
    for i, error in call.errors.items():
        if i in added:
            continue
        parts.append(
            Error(
                through({i: error.worst}, torch.abs), through({i: error.common}, torch.abs),
                squares({i: error.spread.square()}), error.shares,
            )
        )  # fmt: skip
    # Kernels begin the sum with the bias, or end it so: then each partial sum has it.
    first = sum(_shaped(call.leaves[i], value).abs() for i in added)
    parts.append(_own(call, value, through({}, torch.abs), squares({}), terms, native.dtype, first=first))
    for i in added:
        bias = _shaped(call.leaves[i], value)
        value = value + bias
        if i in call.errors:
            parts.append(call.errors[i].map_parts(lambda t: _shaped(t, native).expand_as(native)).alike())
        parts.append(rounding_error(value, native.dtype, call.label(terms)))
    return [Result(value, sum_errors(parts))]


def begun_error(first: Tensor, terms: int, dtype: torch.dtype, label: str) -> Error:
    """What a sum of so many terms rounds more if it begins with a number of this size: each partial sum has it. A
    mask's infinity is the result in any order."""
    u, first = inner(dtype), torch.where(first.isfinite(), first, 0.0)
    return Error(u * terms * first, torch.zeros_like(first), u * root_of(terms) * first, {label: 1.0})


def terms_of(call: Call, native: Tensor) -> int:
    """Of how many products each element is the sum, with what was added to that since; 0 where it is none."""
    if call.name in PRODUCT_SUMS:
        return SUMS[call.name](call, native)
    if call.name in ADDITIONS:
        return max(call.terms.values(), default=0)
    moved = call.name in MOVES and len(call.floats) == 1 and call.leaves[call.floats[0]].numel() == native.numel()
    return call.terms.get(call.floats[0], 0) if moved else 0


def added_error(call: Call, native: Tensor) -> Error | None:
    """Of an addition to a sum of products: what the sum rounds more if a kernel begins it with what is added. None
    where nothing is. Of two sums either may begin with the other."""
    operands = [*call.args[:2]]
    if call.name not in ADDITIONS or not call.terms or abs(call.argument("alpha", 1)) != 1:
        return None
    found = []
    for i, terms in call.terms.items():
        other = operands[1 if call.leaves[i] is operands[0] else 0]
        first = torch.as_tensor(other, dtype=torch.float64, device=native.device).abs().expand(native.shape)
        found.append(begun_error(first, terms, native.dtype, call.label(terms)))
    worst, common, spread = (
        torch.stack([getattr(one, part) for one in found]).amax(0) for part in ("worst", "common", "spread")
    )
    return Error(worst, common, spread, found[0].shares)


def convolution_backward(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """The gradients of a convolution: of its input, its weight and its bias, each a sum of products with what flows
    back, or of that alone."""
    flow, x, weight = call.floats
    given, sent = (call.leaves[i].numel() // call.leaves[i].shape[1] for i in (x, flow))  # places of each channel
    of_input = call.leaves[weight].numel() // call.leaves[x].shape[1]
    every = (of_input, given if call.argument("transposed") else sent, sent)

    def through(changes: dict[int, Tensor], change: Callable[[Tensor], Tensor]) -> Any:
        return call.run({i: changes[i] if i in changes else change(call.leaves[i]) for i in call.floats})

    values, sizes, squares = call.run(), through({}, torch.abs), through({}, torch.square)
    carried = {
        i: (
            through({i: error.worst}, torch.abs), through({i: error.common}, torch.abs),
            through({i: error.spread.square()}, torch.square), error.shares,
        )
        for i, error in call.errors.items()
    }  # fmt: skip
    largest = _summed_images(call, values, flow, x)
    results, left = [], iter(outputs)
    for k, operands in enumerate(((flow, weight), (flow, x), (flow,))):
        if values[k] is None:
            continue
        root, alike = squares[k].clamp(min=0).sqrt(), _alike(call.leaves[flow]) if k == 2 else None
        parts = [_own(call, values[k], sizes[k], root, max(1, every[k]), next(left).dtype, largest[k], alike)]
        for i in operands:
            if i in carried:
                worst, common, spread, shares = carried[i]
                parts.append(Error(worst[k], common[k], spread[k].clamp(min=0).sqrt(), shares))
        results.append(Result(values[k], sum_errors(parts)))
    return results


def _summed_images(call: Call, values: Sequence[Any], flow: int, x: int) -> list[Any]:
    """The largest partial sums of a weight's and a bias' gradient, from the first image or from the last: each image
    may add what the next takes away, and the sum over places rounds at the size that it has between them."""
    if values[1] is None and values[2] is None:
        return [None, None, None]
    without_input = {len(call.leaves) - 3: False}  # the mask of what is asked for comes last
    images = zip(call.leaves[flow].chunk(PARTS), call.leaves[x].chunk(PARTS), strict=True)
    made = [call.run({flow: a, x: b} | without_input) for a, b in images]
    return [None, *(None if values[k] is None else _running(values[k], (part[k] for part in made)) for k in (1, 2))]


def _alike(flow: Tensor) -> Tensor:
    """How many terms of a bias' gradient round alike, by channel: of a mean what flows back is one number in each
    image, of a mean of largest ones that number or zero, and a zero rounds nothing. None, 0, of channels whose images
    have several numbers."""
    lines = flow.flatten(2)
    terms = (lines != 0).sum(-1)
    even = lines.abs().sum(-1) >= ALIKE * (terms * lines.square().sum(-1)).sqrt()
    return torch.where(even.all(0), terms.sum(0), 0)


def _apart(call: Call) -> dict[int, Any]:
    """The places of operands that are only added, each replaced by none."""
    if "convolution" not in call.name or not isinstance(call.argument("bias"), Tensor):
        return {}
    bias = call.argument("bias")
    return {next(i for i in call.floats if call.leaves[i] is bias): None}


def _shaped(bias: Tensor, result: Tensor) -> Tensor:
    return bias.view(-1, *[1] * (result.dim() - 2))


def _own(
    call: Call, value: Tensor, absolute: Tensor, root: Tensor, terms: int, dtype: torch.dtype,
    largest: Tensor | None = None, alike: Tensor | None = None, first: Tensor | float = 0.0,
) -> Error:  # fmt: skip
    """What the sum itself rounds. ``largest`` are its largest partial sums, where whoever calls knows them; ``alike``
    is how many of its terms are known to round alike, ``first`` the size of what the sum may begin with."""
    u, tiny = inner(dtype), TINY.get(dtype, 2.0**-126)
    size = (_partial(call, value) if largest is None else largest) + first
    more = 2.0 if call.name in MEANS else 0.0  # a product with the rounded 1/K
    worst = u * (terms * (absolute + first) + more * size) + tiny * terms
    count = torch.where(absolute > ALIKE * math.sqrt(terms) * root, terms / SUM_STDDEVS, root_of(terms))
    if alike is not None:
        count = torch.maximum(count, alike / SUM_STDDEVS)
    spread = u * (count * (size + root) + more * size)
    own = Error(worst, torch.full_like(worst, tiny * terms), spread, {call.label(terms): 1.0})
    return sum_errors([own, rounding_error(value, dtype, call.label(terms))]) if unit(dtype) > u else own


# Terms of one size: the sum of their absolute values is nearly what the root of their squares allows. Adding one number
# again and again rounds the same way again and again.
ALIKE = 0.99
PARTS = 8  # of the terms, whose sums are looked at


def _partial(call: Call, value: Tensor) -> Tensor:
    """The largest of some partial sums, from either end: where the terms' signs follow their order, a partial sum is
    larger than the result and the root of the squares say."""
    size = value.abs()
    x = call.leaves[call.floats[0]]
    if call.name == "cumsum" and value.dim():
        return size.cummax(call.argument("dim")).values  # its partial sums are its results
    if call.name in ("mm", "bmm"):
        pieces = zip(x.chunk(PARTS, -1), call.leaves[call.floats[1]].chunk(PARTS, -2), strict=True)
        sums = (a @ b for a, b in pieces)
    elif call.name in ("sum", "mean") and x.dim():
        dims = call.argument("dim") if len(call.args) > 1 else None
        along = max(dims or range(x.dim()), key=lambda d: x.shape[d])
        scale = (lambda part: part.shape[along] / x.shape[along]) if call.name == "mean" else (lambda part: 1.0)
        sums = (scale(part) * call.run({call.floats[0]: part}) for part in x.chunk(PARTS, along))
    else:
        return size
    return _running(value, sums)


def _running(value: Tensor, sums: Iterable[Tensor]) -> Tensor:
    """The largest sum of the first or the last of some parts, whose sum the value is."""
    size, running = value.abs(), torch.zeros_like(value)
    for part in sums:
        running = running + part
        size = torch.maximum(size, torch.maximum(running.abs(), (value - running).abs()))
    return size


LANDINGS = ("index_put", "_index_put_impl", "_unsafe_index_put", "col2im")


def scatter(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """Elements that are put, or added up, where an index or a window says: how many land in each place the op itself
    says, of ones."""
    if call.name != "col2im" and not call.argument("accumulate"):
        return move(call, outputs)
    (native,) = outputs
    value = call.run()

    def through(change: Callable[[Tensor], Tensor], changes: dict[int, Tensor] | None = None) -> Tensor:
        result: Tensor = call.run({i: change(call.leaves[i]) for i in call.floats} | (changes or {}))
        return result

    count = through(torch.ones_like)
    size, root, u = through(torch.abs), through(torch.square).sqrt(), inner(native.dtype)
    several = (count > 1).to(torch.float64)
    own = u * several * count.sqrt() * (value.abs() + root)
    parts = [Error(u * several * count * size, torch.zeros_like(value), own, {call.label(int(count.max())): 1.0})]
    for i, error in call.errors.items():
        rest = {k: torch.zeros_like(call.leaves[k]) for k in call.floats if k != i}
        worst, common = (through(torch.abs, rest | {i: part}) for part in (error.worst, error.common))
        spread = through(torch.abs, rest | {i: error.spread.square()}).sqrt()
        parts.append(Error(worst, common, spread, error.shares))
    if unit(native.dtype) > u:
        parts.append(rounding_error(value, native.dtype, call.label()))
    return [Result(value, sum_errors(parts))]


PRODUCTS = ("prod", "cumprod")


def product(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """A product of K factors rounds K times, and is off by the sum of what its factors are off, all relative."""
    (native,) = outputs
    value, x = call.run(), call.leaves[call.floats[0]]
    terms = _scanned(call, value) if call.name == "cumprod" else _reduced(call, value)
    parts = [rounding_error(value, native.dtype, call.label(terms), terms * value.abs())]
    for error in call.errors.values():
        total = torch.ops.aten.cumsum if call.name == "cumprod" else torch.ops.aten.sum

        def relative(part: Tensor, total: Any = total) -> Tensor:
            share = torch.where(part > 0, part / x.abs(), torch.zeros_like(part))
            args, kwargs = call.with_({call.floats[0]: share})
            return torch.where(value.isfinite(), total(*_dims_of(args), **kwargs).expm1() * value.abs(), 0.0)

        parts.append(error.map_parts(relative))
    return [Result(value, sum_errors(parts))]


def _dims_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """A product takes one dimension, a sum a list of them."""
    return (args[0], [args[1]], *args[2:]) if len(args) > 2 else args


# Up to a mean whose square is so many variances, the mean of squares less the squared mean is an honest variance.
MOST_OF_MEAN = 16.0


def variance(call: Call, outputs: Sequence[Tensor]) -> list[Result]:
    """``var`` and ``var_mean``, also as mean of squares less squared mean where that does not eat the result."""
    native = outputs[0]
    x = call.leaves[call.floats[0]]
    dims = call.argument("dim")
    dims = list(range(x.dim())) if not dims else [d % x.dim() for d in dims] if x.dim() else []
    found = call.run()
    value = found[0] if isinstance(found, tuple) else found
    terms = max(1, x.numel() // max(1, value.numel()))
    correction = call.argument("correction")
    rest = terms - (1.0 if correction is None else float(correction))
    mean = x.mean(dims, keepdim=True)
    away = (x - mean).abs()
    u, label = inner(native.dtype), call.label(terms)
    parts = []
    if rest > 0:
        center = mean.square().reshape(value.shape)
        size = (value + torch.minimum(center, MOST_OF_MEAN * value)) * terms / rest
        own = u * (root_of(terms) + 4) * 2 * size
        parts.append(Error(u * (terms + 6) * 2 * size, torch.zeros_like(own), own, {label: 1.0}))
        for error in call.errors.values():
            parts.append(
                error.map_parts(
                    lambda e: (2 * away * e + e * e).sum(dims).reshape(value.shape) / rest,
                    lambda s: (2 * away * s).square().sum(dims).sqrt().reshape(value.shape) / rest,
                )
            )
    parts.append(rounding_error(value, native.dtype, label))
    results = [Result(value, sum_errors(parts))]
    if len(outputs) > 1:
        results.append(_mean(call, mean.reshape(value.shape), dims, terms, outputs[1].dtype))
    return results


def _mean(call: Call, value: Tensor, dims: list[int], terms: int, dtype: torch.dtype) -> Result:
    x = call.leaves[call.floats[0]]
    shape = value.shape
    absolute, root = x.abs().mean(dims).reshape(shape), x.square().sum(dims).sqrt().reshape(shape) / terms
    u = inner(dtype)
    parts = [
        Error(
            u * (terms + 2) * absolute, torch.zeros_like(absolute), u * (root_of(terms) + 2) * (value.abs() + root),
            {call.label(terms): 1.0},
        )
    ]  # fmt: skip
    for error in call.errors.values():
        parts.append(
            error.map_parts(
                lambda e: e.mean(dims).reshape(shape), lambda s: s.square().sum(dims).sqrt().reshape(shape) / terms
            )
        )
    return Result(value, sum_errors([*parts, rounding_error(value, dtype, call.label(terms))]))
