"""The reference of one case: the inputs, the float64 outputs and gradients, and their bounds."""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import as_float64
from kernelworks.contract import Case, Contract
from kernelworks.contract.results import ChosenIndex, Relation
from kernelworks.dispatch.op import Op
from kernelworks.machine import has_gpu
from kernelworks.verify.compare import chosen_values

__all__ = [
    "Reference", "compute_reference", "copy_tensors", "device_of", "flat_outputs", "follow_choice", "output_bounds",
    "output_names", "relations_of", "to_device",
]  # fmt: skip


@dataclass(frozen=True)
class Reference:
    args: dict[str, Any]  # in the case's dtype
    outputs: tuple[Tensor, ...]  # float64, or integers
    bounds: tuple[Tensor, ...]
    grad_outputs: tuple[Tensor, ...]  # each in its output's dtype; empty where no gradients are compared
    gradients: dict[str, Tensor]
    gradient_bounds: dict[str, Tensor]
    dtypes: tuple[torch.dtype, ...] = ()  # of what a kernel returns; none where it works in place
    names: tuple[str, ...] = ()  # of the outputs, as the contract has them
    dtype: torch.dtype = torch.float32  # of the case
    relations: Mapping[str, Relation] = field(default_factory=dict)  # by output, of those that have one

    def label(self, place: int, output: Tensor) -> str:
        """What an output's share is kept under: its name, and its dtype where that is another than the case's."""
        own = "" if output.dtype == self.dtype else f" in {str(output.dtype).removeprefix('torch.')}"
        return (self.names[place] if place < len(self.names) else f"output {place}") + own

    def relation(self, place: int) -> Relation | None:
        """How an output is judged, where not by its bound alone."""
        return self.relations.get(self.names[place]) if place < len(self.names) else None

    def positional(self, op: Op) -> tuple[Any, ...]:
        return tuple(self.args.get(name) for name in op.passes["forward"].names)


def copy_tensors(value: Any) -> Any:
    """A copy of a tensor (or of a list of them); anything else as it is."""
    if isinstance(value, Tensor):
        return value.clone()
    return [copy_tensors(v) for v in value] if isinstance(value, (list, tuple)) else value


def flat_outputs(result: Any) -> tuple[Any, ...]:
    """A kernel's result as one flat tuple."""
    if isinstance(result, (tuple, list)):
        return tuple(leaf for item in result for leaf in flat_outputs(item))
    return (result,)


def device_of(op: Op, kernel: str) -> str:
    """Where a kernel's cases lie: on the GPU for its kernels, and on the CPU where those are interpreted."""
    return "cuda" if op.kernel(kernel).device == "cuda" and has_gpu() else "cpu"


def to_device(value: Any, device: str) -> Any:
    """A tensor (or a list of them) on a device; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device)
    return [to_device(v, device) for v in value] if isinstance(value, (list, tuple)) else value


def output_names(contract: Contract, made: Any) -> tuple[str, ...]:
    """The name of each output of a definition, those in lists too."""
    return tuple(n for n, part in zip(contract.outputs, made, strict=False) for _ in flat_outputs(part))


def relations_of(contract: Contract) -> dict[str, Relation]:
    """How outputs are judged, of those that are judged by more than their bounds."""
    return {name: result.relation for name, result in contract.results.items() if result.relation is not None}


def output_bounds(
    contract: Contract, args: Mapping[str, Any], exact: Mapping[str, Any], outputs: tuple[Tensor, ...],
    dtype: torch.dtype, **options: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The largest error of each output that a right kernel may make; ``args`` as the call takes them, ``exact`` the
    same in float64.

    A bound that takes ``given`` depends on the dtypes of single arguments (a float32 state beside 16-bit weights).
    """
    given = {"given": args} if "given" in inspect.signature(contract.bound).parameters else {}
    return flat_outputs(contract.bound(exact, outputs, dtype, **given, **options))


@functools.lru_cache(maxsize=3)  # of one case on several kernels; the largest take a hundred megabytes
def compute_reference(
    op: Op, case: Case, dtype: torch.dtype, seed: int = 0, device: str = "cpu", inner: str = "float32"
) -> Reference:  # fmt: skip
    """The reference of a case, computed on ``device``. The inputs follow from the op, case, dtype and ``seed``: every
    run and every device sees the same. ``inner``: for which kernels the bounds hold."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{op.name} {case.name} {dtype} {seed}".encode()))
    args = {name: to_device(value, device) for name, value in case.make(generator, dtype).items()}
    with torch.device(device):
        return _compute_reference(op, case, dtype, args, generator, {} if inner == "float32" else {"inner": inner})


def _compute_reference(
    op: Op, case: Case, dtype: torch.dtype, args: dict[str, Any], generator: torch.Generator,
    bound_options: dict[str, Any]
) -> Reference:  # fmt: skip
    contract = op.contract
    exact = {name: as_float64(value) for name, value in args.items()}
    with torch.no_grad():
        made = contract.reference(**exact)
        outputs = flat_outputs(made)
        names = output_names(contract, made)
        bounds = output_bounds(contract, args, exact, outputs, dtype, **bound_options)
        promised = op.forward_shapes(tuple(args.get(name) for name in op.passes["forward"].names))
    dtypes = () if promised is None else tuple(t.dtype for t in flat_outputs(promised))
    relations = relations_of(contract)
    if contract.gradient_bound is None or not case.gradients or not contract.differentiable:
        return Reference(args, outputs, bounds, (), {}, {}, dtypes, names, dtype, relations)
    differentiable = [n for n in contract.differentiable if isinstance(exact.get(n), Tensor)]
    with torch.enable_grad():
        for name in differentiable:
            exact[name] = exact[name].clone().requires_grad_()
        results = flat_outputs(contract.reference(**exact))
        own = dtypes or (dtype,) * len(results)
        drawn = [
            (torch.randn(o.shape, generator=generator, device="cpu"), its)
            for o, its in zip(results, own, strict=False)
            if o.requires_grad
        ]
        grads = tuple(
            (g if case.flow is None else torch.full_like(g, case.flow)).to(its).to(results[0].device)
            for g, its in drawn
        )
        used = [o for o in results if o.requires_grad]
        leaves = [exact[n] for n in differentiable]
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            used, leaves, [g.double() for g in grads], allow_unused=True
        )
    gradients = {
        n: torch.zeros_like(exact[n]) if g is None else g.detach() for n, g in zip(differentiable, found, strict=True)
    }
    plain = {n: v.detach() if isinstance(v, Tensor) else v for n, v in exact.items()}
    with torch.no_grad():
        limits = contract.gradient_bound(plain, tuple(g.double() for g in grads), gradients, dtype, **bound_options)
    return Reference(args, outputs, bounds, grads, gradients, limits, dtypes, names, dtype, relations)


def follow_choice(op: Op, expected: Reference, outputs: Mapping[str, Any]) -> Reference:
    """The reference with the gradients of the choice that a kernel made, where several are right: what flows into a
    value flows on to the element that its index names. ``outputs`` are the kernel's, by name."""
    chosen = {name: r for name, r in expected.relations.items() if isinstance(r, ChosenIndex)}
    if not chosen or not expected.gradients:
        return expected
    flows = [n for n, o in zip(expected.names, expected.outputs, strict=True) if o.is_floating_point()]
    flow = dict(zip(flows, expected.grad_outputs, strict=True))
    exact = {name: as_float64(value) for name, value in expected.args.items()}
    found = {name: torch.zeros_like(gradient) for name, gradient in expected.gradients.items()}
    for name, relation in chosen.items():
        with torch.enable_grad():
            leaf = exact[relation.of].detach().requires_grad_()
            values = chosen_values(relation, leaf, outputs[name].detach(), exact)
            (gradient,) = torch.autograd.grad(values, leaf, flow[relation.values].double())
        found[relation.of] = found[relation.of] + gradient
    assert op.contract.gradient_bound is not None
    flowing = tuple(g.double() for g in expected.grad_outputs)
    with torch.no_grad():
        bounds = op.contract.gradient_bound(exact, flowing, found, expected.dtype)
    return replace(expected, gradients=found, gradient_bounds=bounds)
