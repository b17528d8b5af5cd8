"""Kernels of ours in C++ as candidates: the kernel as it is, in a text that says what of it may be otherwise.

What may be otherwise are the whole numbers that its sources name (``constexpr int64_t GRAIN = 32 << 10``: how much is
worth a thread, how many vectors are in flight, from how many bytes on the caches are passed by), the compiler's flags,
and the instruction set. A candidate is a file of the judge's format for ops, with those numbers as its constants and
its ``SPACE``; what compiles it (``compile_kernel``) runs in the candidate's own process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kernelworks.build import cpp
from kernelworks.build.constants import Constants, constants_of, named_in, write_variant
from kernelworks.build.sources import with_includes
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.registry import OP_PACKAGES
from kernelworks.judge.formats import op_packages
from kernelworks.judge.problem import Misread, Problem
from kernelworks.machine import environment
from kernelworks.search.space import space_in

__all__ = [
    "compile_kernel",
    "constants_in",
    "modules",
    "own_text_predicate",
    "precompiled_files",
    "text_of",
    "texts_of",
]

LARGE = 1 << 20  # bytes from which on something is done another way: tried far off too
FLAGS = ("", "-O2", "-funroll-loops", "-fno-tree-slp-vectorize")

TEXT = '''"""{op}: our kernel in C++, compiled with the constants below."""

from kernelworks.search.our_kernels_cpp import compile_kernel

TARGET = {target!r}
FLAGS = {flags!r}
{constants}
SPACE = {{
{space}
}}

_run = compile_kernel({op!r}, TARGET, FLAGS, {{
{given}
}})


def {op}(*arguments):
    return _run(*arguments)
'''


def _choices(number: int) -> list[int]:
    """Halves and doubles of a number."""
    factors = (1 / 8, 1 / 2, 1, 2, 8, 1024) if number >= LARGE else (1 / 4, 1 / 2, 1, 2, 4)
    return sorted({max(1, int(number * factor)) for factor in factors})


def text_of(name: str) -> str | None:
    """The candidate of an op's best kernel in C++ as it is, with its space; None if it has no such kernel here."""
    kernels = op_packages.runnable_cpp_kernels(OPS[name])
    if not kernels or kernels[0].source is None:
        return None
    kept = constants_of(kernels[0].source, kernels[0].name)  # it is compiled with already
    numbers = {
        file: {**its, **kept.numbers.get(file, {})} for file, its in named_in(kernels[0].source, cpp.SIMD).items()
    }  # fmt: skip
    flags = " ".join(kept.flags)
    constants = {_constant(file, of): value for file, its in numbers.items() for of, value in its.items()}
    space: dict[str, list[Any]] = {"TARGET": [r.name for r in kernels], "FLAGS": [*dict.fromkeys((flags, *FLAGS))]}
    space |= {constant: _choices(value) for constant, value in constants.items()}
    given = "\n".join(
        f"    {file!r}: {{{', '.join(f'{of!r}: {_constant(file, of)}' for of in its)}}},"
        for file, its in numbers.items()
    )
    return TEXT.format(
        op=name, target=kernels[0].name, flags=flags, given=given,
        constants="\n".join(f"{c} = {v}" for c, v in constants.items()),
        space="\n".join(f"    {c!r}: {v!r}," for c, v in space.items() if len(v) > 1),
    )  # fmt: skip


def constants_in(name: str, code: str) -> tuple[str, Constants] | None:
    """The kernel that a candidate's text is of, and what it has otherwise than the kernel's sources say; None if the
    text is another than ours with other constants."""
    own, space = space_in(text_of(name) or ""), space_in(code)
    if own is None or space is None or own.family != space.family:
        return None
    target = str(space.at.get("TARGET", op_packages.runnable_cpp_kernels(OPS[name])[0].name))
    source = OPS[name].kernel(target).source
    assert source is not None
    numbers: dict[str, dict[str, int]] = {}
    for file, its in named_in(source, cpp.SIMD).items():
        other = {of: value for of, was in its.items() if (value := int(space.at[_constant(file, of)])) != was}
        if other:
            numbers[file] = other
    return target, Constants(numbers, tuple(str(space.at["FLAGS"]).split()))


def texts_of(problem: Problem) -> list[str]:
    """The candidates of an op's kernels as they are: its best one in C++ for this CPU, or those on a GPU that the op
    package's table has something to choose for (``launches``). None of a problem that is no op of ours."""
    if problem.format != op_packages.NAME:
        return []
    if problem.device == "cuda":
        from kernelworks.search import our_kernels_gpu

        return our_kernels_gpu.texts_of(problem)
    found = text_of(problem.entry)
    return [] if found is None else [found]


def precompiled_files(problem: Problem) -> list[Path]:
    """Files that kernels of ours on a GPU find compiled, whatever their constants are."""
    if problem.format != op_packages.NAME or problem.device != "cuda":
        return []
    from kernelworks.search import our_kernels_gpu

    return our_kernels_gpu.precompiled_files(problem)


def modules(problem: Problem) -> list[str]:
    """What every candidate of a search on a CPU loads, or is silenced by, once for all of them."""
    if problem.device != "cpu":
        return []
    ours = [__name__, OP_PACKAGES[problem.entry], "tvm_ffi.libinfo"] if problem.format == op_packages.NAME else []
    return [*ours, "torch.utils.cpp_extension", "triton.runtime.interpreter", "triton.compiler"]


def own_text_predicate(problem: Problem) -> Callable[[str], bool]:
    """Whether a text is our kernel of the problem's op with constants out of our kernel's own space: such a one,
    whoever sent it, has not a word of its own."""
    if problem.format == op_packages.NAME and problem.device == "cuda":
        return functools.partial(_known_on_gpu, problem)
    source = text_of(problem.entry) if problem.format == op_packages.NAME else None
    own = None if source is None else space_in(source)

    def holds(code: str) -> bool:
        try:
            space = space_in(code)
        except Misread:
            return False
        if own is None or space is None or own.family != space.family or own.choices != space.choices:
            return False
        return all(space.at[name] in values for name, values in own.choices.items())

    return holds


def _known_on_gpu(problem: Problem, code: str) -> bool:
    from kernelworks.search import our_kernels_gpu

    try:
        return our_kernels_gpu.sets_in(problem, code) is not None
    except Misread:
        return False


def _constant(file: str, name: str) -> str:
    """What a file's number is called in a candidate's text."""
    stem = Path(file).stem if file.startswith("simd/") else f"own_{Path(file).stem}"
    return re.sub(r"\W", "_", f"{stem}_{name}").upper()


# ---------------------------------------------------------------- in the candidate's process


def compile_kernel(op: str, target: str, flags: str, constants: Mapping[str, Mapping[str, int]]) -> Callable[..., Any]:
    """The forward of an op's kernel, compiled with other numbers and further flags, in this process's cache.

    Raises ValueError if a file does not name such a number, BuildError.
    """
    found = OPS[op].kernel(target)
    assert found.source is not None
    changed = _copied(found.source, constants)
    cpp.stand_in(found.source, target, cpp.variant(changed, target, tuple(flags.split()), changed.parent / "simd"))
    return found.load("forward")


def _copied(source: Path, constants: Mapping[str, Mapping[str, int]]) -> Path:
    """A copy of the source and what it includes, with those numbers, in this process's cache; its path."""
    texts = [path.read_text(encoding="utf-8") for path in with_includes(source, cpp.SIMD)]
    said = json.dumps({file: dict(its) for file, its in constants.items()}, sort_keys=True)
    whole = hashlib.sha256("\0".join((*texts, said)).encode()).hexdigest()[:16]
    return write_variant(source, constants, cpp.SIMD, environment.cache_dir("build") / f"variant-{whole}")
