"""Reductions that are entries of a table: one op package for all of them, whose C++ is formed of the entries when it is
built.

An entry (``entry.py``) says what only it knows. The table makes the op of it, its C++ text on
``simd/stage_reduction.hpp``, and torch's way to write it. What type checkers are to see, and Triton's functions, lie in
two files beside the table, written by ``tools/reductions.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.build.kernels import into, table_triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.build.written_source import written_kernels
from kernelworks.contract import Kernel
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.reduced_dims import declines_rows, reduced_lines, reduced_shape
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.dispatch.signature import TorchSignature
from kernelworks.templates.activation_table import rename_calls
from kernelworks.templates.op_package import WrittenTable
from kernelworks.templates.reduction_stages.entry import ReductionEntry, Stage, contract_of, mutants_of
from kernelworks.templates.reduction_stages.launches import align_dims, as_float32, spread_view
from kernelworks.templates.torch_kernels import python_kernels

__all__ = ["ReductionTable", "cpp_kind"]

TARGETS = ("avx512", "avx2", "scalar")
HEADER = "stage_reduction.hpp"
CPP = {"exp": "exponential", "log": "logarithm", "log1p": "log_one_more", "abs": "absolute", "sqrt": "root"}
COMBINES = {"sum": "Combine::SUM", "max": "Combine::MAX", "min": "Combine::MIN"}


# ---------------------------------------------------------------- C++


def _body(operands: Sequence[str], stages: Sequence[Stage], numbers: Sequence[str], *, line: bool) -> list[str]:
    """The names that an expression reads: of an element in vectors, or of a ``line`` in single numbers."""
    kind = "double" if line else "W"
    given = [] if line else [f"operand[{i}]" for i in range(len(operands))]
    made = [f"[[maybe_unused]] const {kind} {n} = {at};" for n, at in zip(operands, given, strict=False)]
    made += [f"[[maybe_unused]] const {kind} {stage.name} = found[{i}];" for i, stage in enumerate(stages)]
    return made + [f"[[maybe_unused]] const {kind} {n} = number[{i}];" for i, n in enumerate(numbers)]


def _expression(text: str) -> str:
    return rename_calls(text, CPP)


def cpp_kind(
    name: str, operands: Sequence[str], stages: Sequence[Stage], numbers: Sequence[str], coefficient: str = "",
    gradients: Sequence[str] = (),
) -> str:  # fmt: skip
    """A kind of ``simd/stage_reduction.hpp`` and its export: a forward, or with ``gradients`` a backward."""
    vectors = "[[maybe_unused]] const W* operand, [[maybe_unused]] const W* found, [[maybe_unused]] W n"
    single = "[[maybe_unused]] const double* found, [[maybe_unused]] double n, [[maybe_unused]] const double* number"
    lines = ["namespace kw {", "namespace {", f"struct {name}_stages {{"]
    for what, count in (("OPERANDS", len(operands)), ("STAGES", len(stages)), ("NUMBERS", len(numbers)),
                        ("RESULTS", len(gradients))):  # fmt: skip
        lines.append(f"static constexpr int {what} = {count};")
    combines = ", ".join(COMBINES[stage.combine] for stage in stages) or "Combine::SUM"
    lines.append(f"static constexpr Combine COMBINES[] = {{{combines}}};")
    lines.append(f"template <int S> static W term({vectors}, [[maybe_unused]] const W* number) {{")
    for i, stage in enumerate(stages):
        said = " ".join(_body(operands, stages[:i], numbers, line=False))
        lines.append(f"if constexpr (S == {i}) {{ {said} return {_expression(stage.term)}; }}")
    lines += ["}", f"template <int S> static double finish([[maybe_unused]] double s, {single}) {{"]
    for i, stage in enumerate(stages):
        said = " ".join(_body((), stages[:i], numbers, line=True))
        lines.append(f"if constexpr (S == {i}) {{ {said} return {_expression(stage.finish)}; }}")
    lines.append("}")
    if gradients:
        said = " ".join(_body((), stages, numbers, line=True))
        lines.append(f"static double coefficient([[maybe_unused]] double grad, {single}) {{")
        lines += [said, f"return {_expression(coefficient)};", "}"]
        lines.append(f"static void elements(W* result, {vectors}, W coefficient, [[maybe_unused]] const W* number) {{")
        lines += _body(operands, stages, numbers, line=False)
        lines += [f"result[{i}] = wide({_expression(text)});" for i, text in enumerate(gradients)]
        lines.append("}")
    lines += ["};", "}", "}", f"KW_EXPORT({name}) {{ kw::run_stages<kw::{name}_stages>(args); }}"]
    return "\n".join(lines) + "\n"


def cpp_text(entry: ReductionEntry) -> str:
    """An entry's kinds, forward and backward."""
    text = f"// {entry.name}: {entry.formula}\n"
    for chosen, variant in entry.variants.items():
        name = f"{entry.name}_{chosen}" if chosen else entry.name
        text += cpp_kind(name, ("x",), variant.stages, tuple(entry.numbers))
        if variant.gradient:
            gradients = (variant.gradient,)
            text += cpp_kind(
                f"{name}_backward", ("x",), variant.back, tuple(entry.numbers), variant.coefficient, gradients
            )
    return text


# ---------------------------------------------------------------- launches


def _forward_of(entry: ReductionEntry, library: Any) -> Callable[..., Tensor]:
    def forward(x: Tensor, dim: Any, keepdim: bool, *numbers: Any, out: Tensor | None = None) -> Tensor:
        shape = reduced_shape(tuple(x.shape), dim, keepdim)
        output = torch.empty(shape, dtype=x.dtype) if out is None else out
        if not x.numel():
            return output.fill_(0.0 if entry.empty is None else entry.empty)
        kernel = getattr(library, entry.variant(numbers)[0])
        run, threads = choose_threads(kernel, entry.nanoseconds * x.numel())
        run(output, *reduced_lines(x, dim), *map(as_float32, numbers), threads)
        return output

    return forward


def _backward_of(entry: ReductionEntry, library: Any) -> Callable[..., Any]:
    def backward(grad: Tensor, x: Tensor, dim: Any, keepdim: bool, *numbers: Any, out: Any = None) -> Any:
        name, variant = entry.variant(numbers)
        if not variant.gradient:
            return spread_view(grad, x, dim, keepdim, out)
        given, dims, back = align_dims(x, dim)
        made = torch.empty(given.shape, dtype=x.dtype) if out is None or back else out
        if x.numel():
            run, threads = choose_threads(getattr(library, f"{name}_backward"), 2 * entry.nanoseconds * x.numel())
            where = reduced_lines(given, dims, ordered=True)
            run(made, grad.contiguous(), *where, *map(as_float32, numbers), threads)
        return into(back(made), out) if back else made

    return backward


# ---------------------------------------------------------------- the table


class ReductionTable(WrittenTable[ReductionEntry]):
    """The ops of an op package, by their entries."""

    HEADER = HEADER

    def text_of(self, entry: ReductionEntry) -> str:
        return cpp_text(entry)

    def op(self, name: str) -> Op:
        """The op of an entry, with torch's way to write it."""
        entry = self.entries[name]
        contract, schema = contract_of(entry, self.folder.parent.name), schema_of(entry.arguments)
        forward = Pass(
            f"{name}({schema}, str? op_kernel=None) -> Tensor",
            lambda x, dim, keepdim, *numbers: x.new_empty(reduced_shape(tuple(x.shape), dim, keepdim)),
        )
        backward = Pass(
            f"{name}_backward(Tensor grad_output, {schema}, str? op_kernel=None) -> Tensor",
            lambda grad, x, *rest: x.new_empty(x.shape), returns=("x",),
        )  # fmt: skip
        kernels = [
            *self.kernels(entry), *python_kernels(contract, forward, backward, entry.composite, lambda: op)
        ]  # fmt: skip
        op = Op(
            contract, kernels, op_package=self.op_package, forward=forward, backward=backward,
            mutants=mutants_of(entry), composite=entry.composite, aten=entry.operator,
            passthrough=Passthrough(
                entry.call, ("x",), ("(dim is None or dim.__class__ is int)", "keepdim.__class__ is bool",
                *(c for n, number in entry.numbers.items() for c in number.conditions(n))),
                {"function": entry.function},
            ),
        )  # fmt: skip
        op.template = EntryDescription(entry)
        TorchSignature(op, entry.written or entry.function, entry.torchs, {"input": "x"}, operator=entry.torch_operator)
        return op

    def kernels(self, entry: ReductionEntry) -> list[Kernel]:
        launches = {
            "forward": functools.partial(_forward_of, entry), "backward": functools.partial(_backward_of, entry)
        }  # fmt: skip
        ours = written_kernels(self.source, cpp_text(entry), TARGETS, launches, Path(self.op_package))
        columns = [
            table_triton_kernel(
                self.folder, entry.name, passes=("forward",), name="triton_columns", module="triton_columns",
                guard=declines_rows,
            )
            for variant in entry.variants.values() if len(variant.stages) == 1 and not entry.numbers
        ]  # fmt: skip
        return [*columns, table_triton_kernel(self.folder, entry.name), *ours]


@dataclass(frozen=True)
class EntryDescription:
    """What ``kernelworks map OP`` tells of an entry."""

    entry: ReductionEntry

    @functools.cached_property
    def contract(self) -> Any:
        return contract_of(self.entry, "reduction")

    @property
    def arguments(self) -> Any:
        return self.entry.arguments

    @property
    def unlaunched_kernels(self) -> tuple[str, ...]:
        """The GPU kernels of the table that this op never launches: a gradient that is a view needs none."""
        return () if any(variant.gradient for variant in self.entry.variants.values()) else ("elements",)

    def template_parts(self, op: Op) -> dict[str, str]:
        made: dict[str, str] = {}
        for chosen, variant in self.entry.variants.items():
            for stage in variant.stages:
                made[f"{chosen} {stage.name}".strip()] = f"{stage.combine} of {stage.term}; {stage.finish}"
            made[f"{chosen} gradient".strip()] = (
                f"{variant.gradient or 'coefficient'}, coefficient = {variant.coefficient}"
            )
        return {**made, "kernels": "formed of these expressions, in float64"}
