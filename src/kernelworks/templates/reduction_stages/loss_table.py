"""Losses that are entries of a table, as reductions are (``op_table.py``)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.build.written_source import written_kernels
from kernelworks.contract import Kernel
from kernelworks.contract.arguments import schema_of
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.op_package import WrittenTable
from kernelworks.templates.reduction_stages.entry import Stage
from kernelworks.templates.reduction_stages.launches import LossArguments, loss_call
from kernelworks.templates.reduction_stages.loss import LossEntry, LossVariant, contract_of_loss, mutants_of_loss
from kernelworks.templates.reduction_stages.op_table import HEADER, TARGETS, cpp_kind
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["LossTable", "gradients_of", "stage_of"]


def stage_of(variant: LossVariant) -> Stage:
    """All of a loss's forward."""
    return Stage("output", variant.term, finish="s / divisor")


def gradients_of(variant: LossVariant) -> tuple[str, ...]:
    """Both gradients, with what flows in."""
    return tuple(f"coefficient * ({text})" for text in variant.gradients)


def cpp_text_of_loss(entry: LossEntry) -> str:
    """An entry's kinds, forward and backward."""
    text, numbers = f"// {entry.name}: {entry.formula}\n", (*entry.numbers, "divisor")
    for chosen, variant in entry.variants.items():
        name = f"{entry.name}_{chosen}" if chosen else entry.name
        text += cpp_kind(name, variant.operands, (stage_of(variant),), numbers)
        text += cpp_kind(f"{name}_backward", variant.operands, (), numbers, "grad / divisor", gradients_of(variant))
    return text


def _forward_of(name: str, nanoseconds: float, said: LossArguments, library: Any) -> Callable[..., Tensor]:
    def forward(*args: Any, out: Tensor | None = None) -> Tensor:
        call = loss_call(said, args)
        output = torch.empty(call.shape, dtype=args[0].dtype) if out is None else out
        if not args[0].numel():
            return output.fill_(call.empty)
        kernel = getattr(library, f"{name}_{call.variant}" if call.variant else name)
        run, threads = choose_threads(kernel, nanoseconds * args[0].numel())
        run(output, *call.operands, *call.lines, *call.numbers, call.divisor, threads)
        return output

    return forward


def _backward_of(name: str, nanoseconds: float, said: LossArguments, library: Any) -> Callable[..., Any]:
    def backward(grad: Tensor, *rest: Any, out: Any = None) -> Any:
        *args, needs = rest
        call = loss_call(said, tuple(args))
        made = tuple(torch.empty_like(call.operands[i]) for i in range(2)) if out is None else tuple(out)
        if args[0].numel():
            kernel = getattr(library, f"{name}_{call.variant}_backward" if call.variant else f"{name}_backward")
            run, threads = choose_threads(kernel, 2 * nanoseconds * args[0].numel())
            wanted = [m if need or out is not None else None for m, need in zip(made, needs, strict=True)]
            run(*wanted, grad.contiguous(), *call.operands, *call.lines, *call.numbers, call.divisor, threads)
        return made

    return backward


class LossTable(WrittenTable[LossEntry]):
    """The losses of an op package, by their entries."""

    HEADER = HEADER

    def text_of(self, entry: LossEntry) -> str:
        return cpp_text_of_loss(entry)

    def op(self, name: str) -> Op:
        """The op of an entry, with torch's way to write it."""
        entry = self.entries[name]
        contract, schema = contract_of_loss(entry, self.folder.parent.name), schema_of(entry.arguments)
        place = tuple(entry.arguments).index("reduction")
        forward = Pass(
            f"{name}({schema}, str? op_kernel=None) -> Tensor",
            lambda x, *rest: x.new_empty(x.shape if rest[place - 1] == "none" else ()),
        )
        backward = Pass(
            f"{name}_backward(Tensor grad_output, {schema}, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
            lambda grad, x, target, *rest: (x.new_empty(x.shape), target.new_empty(target.shape)),
            returns=("x", "target"),
        )
        kernels = [
            *self.kernels(entry), *python_kernels(contract, forward, backward, entry.composite, lambda: op)
        ]  # fmt: skip
        op = Op(
            contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            mutants=mutants_of_loss(entry), composite=entry.composite, aten=entry.operator,
        )  # fmt: skip
        op.template = LossDescription(entry)
        TorchSignature(op, entry.function, entry.torchs, {"input": "x"})
        return op

    def kernels(self, entry: LossEntry) -> list[Kernel]:
        said = entry.launch_arguments
        launches = {
            "forward": functools.partial(_forward_of, entry.name, entry.nanoseconds, said),
            "backward": functools.partial(_backward_of, entry.name, entry.nanoseconds, said),
        }
        ours = written_kernels(self.source, cpp_text_of_loss(entry), TARGETS, launches, Path(self.op_package))
        return [table_triton_kernel(self.folder, entry.name), *ours]


@dataclass(frozen=True)
class LossDescription:
    """What ``kernelworks map OP`` tells of an entry."""

    loss: LossEntry

    @functools.cached_property
    def contract(self) -> Any:
        return contract_of_loss(self.loss, "reduction")

    @property
    def arguments(self) -> Any:
        return self.loss.arguments

    def template_parts(self, op: Op) -> dict[str, str]:
        made: dict[str, str] = {}
        for chosen, variant in self.loss.variants.items():
            made[f"{chosen} term".strip()] = variant.term
            made[f"{chosen} gradients".strip()] = "; ".join(variant.gradients)
        return {**made, "kernels": "formed of these expressions, in float64"}
