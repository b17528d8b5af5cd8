"""A learner's Triton file compiled for sm_90, without a GPU: what the interpreter lets pass and the compiler does not.

``python -m kernelworks.learn.triton_compiling FD`` reads ``{"attempts": [[folder, path]]}`` and calls the
learner's function on meta tensors, which have a shape and no memory; each launch compiles its kernel. It answers with
``{"compiled": [[kernel, registers, shared bytes, local bytes]]}`` or ``{"refused": {"line": n, "text": words}}``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.compiler.errors import CompilationError

from kernelworks.build.triton import Kernel, compiling
from kernelworks.learn.case import Columns, Output, Rows, State, load_reference
from kernelworks.learn.exercise import Exercise, load_exercise
from kernelworks.learn.triton_autotuning import configured_by_inputs
from kernelworks.learn.triton_worker import RefusedFile, file_line, function_of

__all__ = ["compile_file"]

CAPABILITY = (9, 0)
LAUNCH_OPTIONS = {"num_warps", "num_stages", "num_ctas", "maxnreg"}


def _meta(value: Any) -> Any:
    """An argument of a case as a tensor without memory; a scalar as it is."""
    if isinstance(value, Output):
        shape = (value.shape,) if isinstance(value.shape, int) else value.shape
        return torch.empty(shape, dtype=_dtype(value.dtype), device="meta")
    if isinstance(value, Columns):
        rows, columns = value.array.shape
        return torch.empty_strided(
            (rows, columns), (1, rows + value.gap), dtype=_dtype(value.array.dtype), device="meta"
        )
    if isinstance(value, (Rows, State)):
        shape = value.array.shape
        steps = (shape[-1] + value.gap, 1) if len(shape) == 2 else value.array.strides
        return torch.empty_strided(shape, steps, dtype=_dtype(value.array.dtype), device="meta")
    if isinstance(value, np.ndarray):
        return torch.empty(value.shape, dtype=_dtype(value.dtype), device="meta")
    return value


def _dtype(name: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, name)).dtype


def _compile_launch(kernel: Any, *given: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """Stands for a launch: compiles the kernel for arguments like these."""
    names = [p.name for p in kernel.params]
    bound = dict(zip(names, given, strict=False)) | named
    missing = [p.name for p in kernel.params if p.name not in bound and not p.has_default]
    unknown = [name for name in bound if name not in names and name not in LAUNCH_OPTIONS]
    if missing or unknown:
        what = f"lacks {missing[0]}" if missing else f"has no parameter {unknown[0]}"
        raise TypeError(f"{kernel.__name__} {'is launched and ' if missing else ''}{what}")
    defaults = {p.name: p.default for p in kernel.params if p.has_default}
    bound = defaults | bound
    constants = {p.name: bound[p.name] for p in kernel.params if p.is_constexpr}
    options = {name: bound[name] for name in LAUNCH_OPTIONS & set(bound) - set(names)}
    arguments = [bound[p.name] for p in kernel.params if not p.is_constexpr]
    Kernel(kernel).at(**constants, **options).compile_for(arguments, CAPABILITY)


def _words(error: CompilationError) -> str:
    """The compiler's reason, without the source that it quotes."""
    while isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    if error.error_message:
        return str(error.error_message).strip()
    return f"{type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ else str(error).splitlines()[-1]


def _compile_line(error: CompilationError, exercise_path: str) -> int:
    """The line of the learner's file that the compiler refuses."""
    node = getattr(error, "node", None)
    text = Path(exercise_path).read_text(encoding="utf-8", errors="replace")
    source = error.src or ""
    at = text.find(source.strip()) if source.strip() else -1
    if node is None or at < 0:
        return 0
    return text[:at].count("\n") + int(node.lineno)


def compile_file(exercise: Exercise, path: str) -> list[tuple[str, int, int, int]]:
    """Each kernel that the first case launches: name, registers, bytes of shared memory, of spills. Raises
    RefusedFile."""
    case = next(iter(load_reference(exercise.folder).cases()))
    function = function_of(path, exercise.symbol)
    with compiling() as made:
        try:
            function(*(_meta(case.arguments.get(p.name)) for p in exercise.parameters))
        except CompilationError as error:
            raise RefusedFile(_compile_line(error, path), f"Triton's compiler: {_words(error)}") from None
        except Exception as error:
            raise RefusedFile(file_line(error, path), f"{type(error).__name__}: {error}") from None
    found = [(kernel.kernel, kernel.resources()) for kernel in made]
    return [(name, r["reg"], r["shared"], r["local"] + r["stack"]) for name, r in found]


def main() -> None:
    out = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")
    task = json.loads(sys.stdin.read())
    triton.runtime.jit.JITFunction.run = _compile_launch
    configured_by_inputs()
    for index, (folder, path) in enumerate(task["attempts"]):
        out.write(json.dumps({"attempt": index}) + "\n")
        try:
            out.write(json.dumps({"compiled": compile_file(load_exercise(Path(folder)), path)}) + "\n")
        except RefusedFile as refused:
            out.write(json.dumps({"refused": {"line": refused.line, "text": refused.text}}) + "\n")
        except Exception as error:
            out.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    main()
