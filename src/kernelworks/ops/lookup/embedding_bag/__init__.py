"""Sums, means and maxima of the rows of a table that bags of ids look up."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, in_float64, into, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import ABSENT, Array, TorchSignature, two_names
from kernelworks.ops.lookup.embedding_bag.contract import ARGUMENTS, CONTRACT, MODES, bag_of_each, reference
from kernelworks.ops.lookup.embedding_bag.mutants import MUTANTS

__all__ = ["OP", "check_bags", "embedding_bag", "places_of", "rows_of"]

NANOSECONDS = 0.2  # about what an element of a row takes one thread


@overload
def embedding_bag(
    ids: Array, weight: Array, offsets: Array, *, mode: str = "mean", per_sample_weights: Array | None = None,
    padding_idx: int | None = None, out: Array | None = None, kernel: str | None = None,
) -> Array: ...  # fmt: skip
@overload
def embedding_bag(
    input: Array, weight: Array, offsets: Array | None = None, max_norm: float | None = None, norm_type: float = 2.0,
    scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False, per_sample_weights: Array | None = None,
    include_last_offset: bool = False, padding_idx: int | None = None, *, out: Array | None = None,
    kernel: str | None = None,
) -> Array: ...  # fmt: skip
@two_names
def embedding_bag(
    ids: Any = ABSENT, weight: Any = ABSENT, offsets: Any = None, *rest: Any, mode: Any = "mean",
    per_sample_weights: Any = None, padding_idx: Any = None, out: Any = None, kernel: str | None = None, **torchs: Any,
) -> Any:  # fmt: skip
    """The sum, the mean or the maximum of the rows of a table that each bag of ids looks up.

    ``output[b] = sum_i per_sample_weights[i] weight[ids[i]]`` over the places i from ``offsets[b]`` to before
    ``offsets[b + 1]``, of the last bag to the end; over their count with ``"mean"``, the largest with ``"max"``.

    Args:
        ids: [N], int64 or int32, each in [0, V); any strides. As ``F.embedding_bag`` it may be [B, n], without offsets.
        weight: [V, D], float32, bfloat16 or float16; rows may lie any distance apart.
        offsets: [B], int64 or int32: where each bag begins. The first is 0, and they rise to at most N.
        mode: ``"mean"``, ``"sum"`` or ``"max"``.
        per_sample_weights: [N] of weight's dtype, what each row is multiplied by, with ``"sum"`` alone.
        padding_idx: an id in [0, V) that is in no bag: it adds nothing, counts for nothing and takes no gradient.
        out: where to write: a contiguous tensor [B, D] of weight's dtype.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns:
        ``output`` [B, D] of weight's dtype; zeros for a bag without ids. Of equal elements the first is the largest.

    Error bound: ``u |output| + (n + 1) 2^-24 sum |terms|`` for a bag of n ids, u the dtype's unit roundoff; a maximum
    is exact. A row's gradient the same with the places that looked it up; a weight's with D. Sums are kept in float32,
    in an order that follows from the ids alone: the same bits for any number of threads.
    Cost: N D flop, twice that with weights; reads ids and the rows that they look up once and writes output once.
    Raises: IndexError for an id outside [0, V) and for offsets that fall, before anything is written; on a GPU, where
    no call waits for that answer, by the next call. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: torch.nn.functional.embedding_bag.
    """
    if torchs or rest or (offsets is None and getattr(ids, "ndim", 1) == 2):
        named = {"mode": mode, "per_sample_weights": per_sample_weights, "padding_idx": padding_idx}
        return TORCH_SIGNATURE((ids, weight, offsets, *rest), torchs, named, out, kernel)
    return OP.call(ids, weight, offsets, mode, per_sample_weights, padding_idx, out, kernel)


# ---------------------------------------------------------------- what holds on every device


def rows_of(weight: Tensor) -> Tensor:
    """The table, or a copy whose rows are lines of memory."""
    return weight if weight.stride(1) == 1 or weight.shape[1] <= 1 else weight.contiguous()


def check_bags(ids: Tensor, offsets: Tensor, V: int) -> None:
    """Raises IndexError unless all ids are in the table and offsets rise from 0 within the ids. Waits for a GPU."""
    if ids.is_meta:
        return
    outside = (ids < 0) | (ids >= V)
    n, begins = ids.numel(), offsets.long()
    wrong = begins.new_zeros(1, dtype=torch.bool)
    if begins.numel():
        wrong = (begins[:1] != 0) | (begins[-1:] > n) | (begins[1:] < begins[:-1]).any()
    if not bool(outside.any() | wrong):
        return
    if bool(wrong):
        raise IndexError(f"offsets must rise from 0 to at most {n}, the ids; got {offsets.tolist()[:8]}")
    position = int(outside.nonzero()[0])
    raise IndexError(f"ids must be in [0, {V}), weight's rows; got {int(ids[position])} at position {position}")


def places_of(
    ids: Tensor, offsets: Tensor, mode: str, per_sample_weights: Tensor | None, padding_idx: int | None
) -> tuple[Tensor, Tensor]:
    """The bag of each place, -1 of padding, and what flows into its row is multiplied by, in float32."""
    bag = bag_of_each(ids, offsets) if offsets.numel() else torch.full_like(ids, -1, dtype=torch.int64)
    if padding_idx is not None:
        bag = torch.where(ids == padding_idx, -1, bag)
    if per_sample_weights is not None:
        return bag, per_sample_weights.float().contiguous()
    scale = torch.ones(ids.shape, dtype=torch.float32, device=ids.device)
    if mode == "mean" and offsets.numel():
        count = scale.new_zeros(offsets.numel()).index_add(0, bag.clamp(min=0), (bag >= 0).float())
        scale = 1.0 / count.clamp(min=1.0)[bag.clamp(min=0)]
    return bag, scale


# ---------------------------------------------------------------- launches


def _forward(
    lib: Any, ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Tensor | None, padding: int | None,
    out: Any = None,
) -> Tensor:  # fmt: skip
    check_bags(ids, offsets, weight.shape[0])
    output: Tensor = weight.new_empty((offsets.numel(), weight.shape[1])) if out is None else out
    run, threads = choose_threads(lib.embedding_bag, NANOSECONDS * ids.numel() * weight.shape[1])
    given = (ids.contiguous(), rows_of(weight), offsets.contiguous(), MODES.index(mode))
    run(output, *given, None if scales is None else scales.contiguous(), -1 if padding is None else padding, threads)
    return output


def _backward(
    lib: Any, grad: Tensor, ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Tensor | None,
    padding: int | None, needs: list[bool], out: Any = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    of_weight, of_scales = _empty_gradients(weight, scales, needs) if out is None else out
    bag, factor = places_of(ids, offsets, mode, scales, padding)
    flow, named, table = grad.contiguous(), ids.contiguous(), rows_of(weight)
    work = NANOSECONDS * ids.numel() * weight.shape[1]
    if needs[0]:
        chosen = None
        if mode == "max":
            chosen = torch.empty(grad.shape, dtype=torch.int64)
            run, threads = choose_threads(lib.embedding_bag_chosen, 4 * work)
            run(chosen, named, table, offsets.contiguous(), -1 if padding is None else padding, threads)
        sorted_ids, places = torch.sort(named.long(), stable=True)
        run, threads = choose_threads(lib.embedding_bag_grad_weight, work + NANOSECONDS * weight.numel())
        run(of_weight, flow, sorted_ids, places, bag, factor, chosen, threads)
    if needs[1]:
        run, threads = choose_threads(lib.embedding_bag_grad_scales, work)
        run(of_scales, flow, named, table, bag, threads)
    return of_weight, of_scales


def _empty_gradients(weight: Tensor, scales: Tensor | None, needs: list[bool]) -> tuple[Tensor, Tensor]:
    of_scales = weight.new_empty(0) if scales is None or not needs[1] else scales.new_empty(scales.shape)
    return weight.new_empty(weight.shape if needs[0] else 0), of_scales


# ---------------------------------------------------------------- torch's own functions


def _composite(
    ids: Tensor, weight: Tensor, offsets: Tensor, mode: str = "mean", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None,
) -> Tensor:  # fmt: skip
    if not offsets.numel() or not weight.shape[1]:  # of which torch reads past the ends, or refuses them
        return reference(ids, weight, offsets, mode, per_sample_weights, padding_idx)[0]
    return F.embedding_bag(
        ids, weight, offsets.to(ids.dtype), mode=mode, per_sample_weights=per_sample_weights, padding_idx=padding_idx
    )


def _torch(ids: Tensor, weight: Tensor, offsets: Tensor, *rest: Any, out: Any = None) -> Any:
    """In float32, where torch adds up 16 bits in 16 bits."""
    check_bags(ids, offsets, weight.shape[0])
    if weight.dtype == torch.float32:
        return into(_composite(ids, weight, offsets, *rest), out)
    mode, scales, padding = rest
    made = reference(ids, weight.float(), offsets, mode, None if scales is None else scales.float(), padding)
    return into(made[0].to(weight.dtype), out)


def _reference(*args: Any, out: Any = None) -> Any:
    check_bags(args[0], args[2], args[1].shape[0])
    return in_float64(reference, CONTRACT.results_in_order)(*args, out=out)


def _torch_backward(
    grad: Tensor, ids: Tensor, weight: Tensor, offsets: Tensor, mode: str, scales: Tensor | None, padding: int | None,
    needs: list[bool], out: Any = None, compute: torch.dtype = torch.float32,
) -> Any:  # fmt: skip
    """Of functions that are differentiable again."""
    bag, factor = places_of(ids, offsets, mode, scales, padding)
    kept = (bag >= 0).nonzero().reshape(-1)
    named, flow = ids.long()[kept], grad.to(compute)[bag[kept]]
    of_weight, of_scales = grad.new_empty(0), grad.new_empty(0)
    if needs[0]:
        if mode == "max":
            flow = flow * _is_largest(bag[kept], weight.to(compute)[named])
        factor = scales.to(compute) if scales is not None else _exact_factor(bag, factor, mode, compute)
        terms = flow * factor[kept].unsqueeze(1)
        of_weight = flow.new_zeros(weight.shape).index_add(0, named, terms).to(weight.dtype)
    if needs[1]:
        dots = (flow * weight.to(compute)[named]).sum(1)
        of_scales = flow.new_zeros(ids.shape).index_add(0, kept, dots).to(weight.dtype)
    return into((of_weight, of_scales), out)


def _exact_factor(bag: Tensor, factor: Tensor, mode: str, compute: torch.dtype) -> Tensor:
    return 1.0 / (1.0 / factor).round().to(compute) if mode == "mean" else factor.to(compute)


def _is_largest(bag: Tensor, terms: Tensor) -> Tensor:
    """Whether a place's element is the first of the largest of its bag."""
    found = torch.zeros_like(terms)
    for b in bag.unique():
        of = (bag == b).nonzero().reshape(-1)
        found[of[terms[of].max(0).indices], torch.arange(terms.shape[1], device=terms.device)] = 1.0
    return found


PACKAGE = Path(__file__).parent
OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE),
        *cpp_kernels(PACKAGE, forward=_forward, backward=_backward),
        python_kernel("torch", _torch, _torch_backward),
        python_kernel("reference", _reference, functools.partial(_torch_backward, compute=torch.float64)),
    ],
    op_package=__file__,
    forward=Pass(
        f"embedding_bag({schema_of(ARGUMENTS)}, str? op_kernel=None) -> Tensor",
        lambda ids, weight, offsets, *rest: weight.new_empty((offsets.shape[0], weight.shape[1])),
    ),
    backward=Pass(
        f"embedding_bag_backward(Tensor grad_output, {schema_of(ARGUMENTS)}, bool[] needs, "
        "str? op_kernel=None) -> (Tensor, Tensor)",
        lambda grad, ids, weight, offsets, mode, scales, padding, needs: _empty_gradients(weight, scales, needs),
        returns=("weight", "per_sample_weights"),
    ),
    composite=_composite,
    mutants=MUTANTS,
)  # fmt: skip


def _ours(
    input: Tensor, weight: Tensor, offsets: Tensor | None = None, max_norm: float | None = None,
    norm_type: float = 2.0, scale_grad_by_freq: bool = False, mode: str = "mean", sparse: bool = False,
    per_sample_weights: Tensor | None = None, include_last_offset: bool = False, padding_idx: int | None = None,
) -> tuple[Any, ...] | str:  # fmt: skip
    if max_norm is not None:
        return "max_norm scales rows of the weight in place"
    if scale_grad_by_freq or sparse:
        return "scale_grad_by_freq and sparse ask for another gradient"
    if include_last_offset:
        return "include_last_offset says twice where the last bag ends"
    if per_sample_weights is not None and getattr(per_sample_weights, "shape", None) != input.shape:
        return "per_sample_weights are no tensor of input's shape"
    if padding_idx is not None and padding_idx < 0:
        padding_idx += weight.shape[0]
    if input.dim() == 2 and offsets is None:  # a bag is a row
        rows, n = input.shape
        offsets = torch.arange(rows, device=input.device, dtype=input.dtype) * n
        input = input.reshape(-1)
        if per_sample_weights is not None:
            per_sample_weights = per_sample_weights.reshape(-1)
    return input, weight, offsets, mode, per_sample_weights, padding_idx


TORCH_SIGNATURE = TorchSignature(OP, F.embedding_bag, _ours, {"input": "ids"})
