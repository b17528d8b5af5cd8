"""Optimizers that are entries of a table: one op package for all of them, whose C++ is formed of the entries when it is
built.

An entry (``step_entry.py``) says what only it knows. The table makes the op of it, its C++ text and its launches. What
type checkers and editors are to see, and Triton's functions, lie in two files beside the table, written by
``tools/optimizers.py``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from kernelworks.build.kernels import python_kernel, step_triton_kernel
from kernelworks.build.written_source import written_kernels
from kernelworks.contract import Kernel, Request
from kernelworks.contract.derived_numbers import derived_numbers
from kernelworks.contract.numbers import is_middle
from kernelworks.dispatch.op import Op
from kernelworks.templates.op_package import WrittenTable
from kernelworks.templates.optimizers.step_entry import Optimizer, mutants_of, template_of
from kernelworks.templates.step import launch_lists

__all__ = ["OptimizerTable", "cpp_text"]

TARGETS = ("avx512", "avx2", "scalar")
HEADER = "optimizers/step_table.hpp"


class OptimizerTable(WrittenTable[Optimizer]):
    """The ops of an op package, by their entries."""

    HEADER = HEADER

    def text_of(self, entry: Optimizer) -> str:
        return cpp_text(entry)

    def op(self, name: str) -> Op:
        """The op of an entry."""
        entry = self.entries[name]
        template = template_of(entry, self.op_package)
        torchs = python_kernel("torch", functools.partial(_torch, entry), guard=functools.partial(_one_dtype, entry))
        composite = functools.partial(_composite, entry)
        return template.op(
            template.contract, self._kernels(entry), torch_kernel=torchs, composite=composite,
            native=functools.partial(_native, entry), mutants=mutants_of(entry, template),
        )  # fmt: skip

    def _kernels(self, entry: Optimizer) -> list[Kernel]:
        launches = {"forward": functools.partial(_forward_of, entry)}
        ours = written_kernels(self.source, cpp_text(entry), TARGETS, launches, Path(self.op_package))
        guard = functools.partial(_decline_numbers, entry)
        return [step_triton_kernel(self.folder, entry.name.rstrip("_"), guard), *ours]


# ---------------------------------------------------------------- C++


def _cpp(text: str) -> str:
    """An expression in C++, of vectors or of numbers in float64."""
    return re.sub(r"(?<![\w.])(\d+\.\d+(?:e-?\d+)?)", r"constant<V>(\1)", text)


def cpp_text(entry: Optimizer) -> str:
    """An entry's step of an element."""
    values = ["p", *entry.states]
    said = "; ".join(f"{name} = {text}" for name, text in entry.constants.items())
    lines = [f"// {entry.name}: {entry.formula}", "namespace kw {", "namespace {", "template <class V, class N>"]
    lines.insert(3, f'[[maybe_unused]] constexpr char {entry.name}numbers[] = "{said}";')  # a kernel hangs on them, too
    lines.append(
        f"inline void {entry.name}element(V* place, [[maybe_unused]] V g, [[maybe_unused]] const N* number) {{"
    )
    lines += [f"    V {name} = place[{i}];" for i, name in enumerate(values)]
    lines += [f"    [[maybe_unused]] const N {name} = number[{i}];" for i, name in enumerate(entry.constants)]
    lines += [f"    {'' if n in values else 'const V '}{n} = {_cpp(text)};" for n, text in entry.steps.items()]
    lines += [f"    place[{i}] = {name};" for i, name in enumerate(values)]
    lines += ["}", "}", "}", f"KW_STEP_ENTRY({entry.name}, {len(entry.states)}, {len(entry.constants)})"]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- launches


def _parts(entry: Optimizer, args: Sequence[Any]) -> tuple[dict[str, Sequence[Tensor]], Sequence[Any]]:
    """An op's arguments: the lists by name, and the numbers."""
    count = len(entry.lists)
    return dict(zip(entry.lists, args[:count], strict=True)), args[count : len(entry.arguments)]


def _forward_of(entry: Optimizer, library: Any) -> Callable[..., None]:
    function = getattr(library, entry.name)

    def forward(*args: Any, out: Any = None) -> None:
        lists, numbers = _parts(entry, args)
        launch_lists(function, [lists[name] for name in (*entry.written_lists, "grads")], entry.constants_of(numbers))

    return forward


def _decline_numbers(entry: Optimizer, request: Request) -> str | None:
    """A GPU takes every number in float32."""
    made = derived_numbers(entry.constants, {name: request.args[name] for name in entry.numbers})
    beyond = [f"{name} = {number:g}" for name, number in made.items() if not is_middle(number)]
    return f"takes numbers of 0 or from 2^-100 to 2^15 in size, got {beyond[0]}" if beyond else None


# ---------------------------------------------------------------- torch's


def _are_alike(lists: Mapping[str, Sequence[Any]]) -> bool:
    """Whether all tensors of each place have one dtype: torch's steps take no others."""
    return all(len({t.dtype for t in place}) == 1 for place in zip(*lists.values(), strict=True))


def _one_dtype(entry: Optimizer, request: Request) -> str | None:
    lists = {name: request.args[name] for name in entry.lists}
    return None if entry.torch is None or _are_alike(lists) else "needs state of the gradients' dtype"


def _torch(entry: Optimizer, *args: Any, out: Any = None) -> None:
    """One tensor after another, as torch's optimizer steps them on a CPU."""
    _composite(entry, *args)


def _native(entry: Optimizer, *args: Any) -> None:
    """What torch's optimizer runs unless it is told otherwise: one tensor after the other, or many at once on a GPU."""
    lists, numbers = _parts(entry, args)
    if entry.torch is None or not lists["params"] or not _are_alike(lists):
        return _composite(entry, *args)
    entry.torch(*map(list, lists.values()), **dict(zip(entry.numbers, numbers, strict=True)), foreach=None)


def _composite(entry: Optimizer, *args: Any) -> None:
    """torch's step, or its formula where torch has none or refuses (16-bit parameters with float32 state)."""
    lists, numbers = _parts(entry, args)
    named = dict(zip(entry.numbers, numbers, strict=True))
    for place in zip(*lists.values(), strict=True):
        if entry.torch is not None and len({t.dtype for t in place}) == 1:
            entry.torch(*([t] for t in place), **named, foreach=False)
            continue
        written = (t for t, name in zip(place, lists, strict=True) if name != "grads")
        for target, value in zip(written, entry.definition(*(t.float() for t in place), **named), strict=True):
            target.copy_(value)
