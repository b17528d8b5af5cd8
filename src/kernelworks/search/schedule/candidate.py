"""The file that a judge takes: a kernel's C++ beside the lines of Python that compile and call it.

g++ compiles it into a library of its own and ctypes calls it: that takes a second, where an extension of torch's takes
twenty. The library lies beside the file, under the hash of its text.
"""

from __future__ import annotations

from kernelworks.search.schedule.emit import arguments, emit_cpp
from kernelworks.search.schedule.plan import Plan

__all__ = ["COMPILER", "FLAGS", "candidate_of"]

COMPILER = "g++"

FLAGS = (
    "-std=gnu++20", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math",
    "-Wno-psabi", "-Wno-ignored-attributes",
)  # fmt: skip

HEAD = '''\
import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

SOURCE = r"""
{source}"""
FLAGS = {flags}


def built():
    """The compiled kernel; it is compiled once for every folder that this file lies in."""
    name = hashlib.sha256((SOURCE + " ".join(FLAGS)).encode()).hexdigest()[:16]
    library = Path(__file__).resolve().parent / f"kernel_{{name}}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:
            source, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
            source.write_text(SOURCE)
            command = ["{compiler}", *FLAGS, str(source), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(done.stderr[-4000:])
            os.replace(made, library)
    kernel = ctypes.CDLL(str(library)).kernel
    kernel.argtypes = [ctypes.c_void_p] * {count} + [ctypes.c_int]
    kernel.restype = None
    return kernel


KERNEL = built()


def plain(tensor, shape, dtype):
    """The tensor as the kernel reads it: of the sizes that it was written for, in plain memory."""
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise ValueError(f"this kernel takes {{dtype}}{{list(shape)}}, got {{tensor.dtype}}{{list(tensor.shape)}}")
    return tensor.contiguous()


'''
MODEL = """\
class ModelNew(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
{weights}
    def forward(self, {inputs}):
{body}
"""
WEIGHTS = """\
        for name, (shape, dtype, trained) in {said}.items():
            *folders, last = name.split(".")
            place = self
            for folder in folders:
                if not hasattr(place, folder):
                    place.add_module(folder, nn.Module())
                place = getattr(place, folder)
            if trained:
                place.register_parameter(last, nn.Parameter(torch.zeros(shape, dtype=dtype)))
            else:
                place.register_buffer(last, torch.zeros(shape, dtype=dtype))
"""


def candidate_of(plan: Plan, function: str = "") -> str:
    """The whole text of a candidate: a class in KernelBench's format, or a ``function`` of that name."""
    kernel, names = plan.kernel, arguments(plan)
    head = HEAD.format(source=emit_cpp(plan), flags=_tuple(FLAGS), count=len(names), compiler=COMPILER)
    count = 1 + max((int(b.source) for b in kernel.buffers.values() if b.kind == "input"), default=-1)
    inputs = {int(b.source): b for b in kernel.buffers.values() if b.kind == "input"}
    given = [inputs[n].name if n in inputs else f"unread{n}" for n in range(count)]
    lines = []
    for name in names:
        buffer = kernel.buffers[name]
        if buffer.kind == "output":
            lines.append(f"{name} = torch.empty({_shape(buffer.shape)}, dtype=torch.float32)")
            continue
        source = name if buffer.kind == "input" else f"self.{_dotted(buffer.source)}"
        lines.append(f"{name} = plain({source}, {_shape(buffer.shape)}, torch.{buffer.dtype})")
    pointers = ", ".join(f"{n}.data_ptr()" for n in names)
    lines.append(f"KERNEL({pointers}, torch.get_num_threads())")
    answers = [
        f"{name}.as_strided({_shape(shape)}, {_shape(strides)}, {offset})"
        for name, shape, strides, offset in kernel.returned
    ]
    lines.append(f"return {answers[0] if len(answers) == 1 else '(' + ', '.join(answers) + ',)'}")
    weights = WEIGHTS.format(said=_said(plan)) if kernel.weights else ""
    inputs_said = ", ".join([*given, "*rest"])
    if function:
        return head + f"def {function}({inputs_said}):\n" + "".join(f"    {line}\n" for line in lines)
    body = "\n".join(f"        {line}" for line in lines)
    return head + MODEL.format(weights=weights, inputs=inputs_said, body=body)


def _tuple(values: tuple[str, ...]) -> str:
    return "(" + ", ".join(f'"{v}"' for v in values) + ("," if len(values) == 1 else "") + ")"


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _dotted(name: str) -> str:
    """A weight's place in the model; where a part is a number, or no name, by its text."""
    parts = name.split(".")
    if all(p.isidentifier() for p in parts):
        return name
    return f"get_submodule({'.'.join(parts[:-1])!r}).{parts[-1]}"


def _said(plan: Plan) -> str:
    each = (
        f"{name!r}: ({_shape(shape)}, torch.{dtype}, {trained})"
        for name, (shape, dtype, trained) in plan.kernel.weights.items()
    )
    return "{" + ", ".join(each) + "}"
