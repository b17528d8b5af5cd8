"""A problem, and candidates for it."""

from __future__ import annotations

from kernelworks.search.model.prompt import template

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.sigmoid(a) * b


def get_inputs():
    return [torch.randn(40, 100), torch.randn(40, 100)]


def get_init_inputs():
    return []
"""
RIGHT = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return b * torch.sigmoid(a)
"""
OTHER = RIGHT.replace("b * torch.sigmoid(a)", "torch.mul(torch.sigmoid(a), b)")


def in_cpp(line: str) -> str:
    """The example that models are shown for C++, with this line for each element in place of its own."""
    code = template("in_cpp").template.split("```python\n")[1].split("```")[0]
    assert "out[i] = 2.0f * x[i];" in code
    code = code.replace("#include <cstdint>", "#include <cmath>\n#include <cstdint>")
    code = code.replace("const float* x, float* out", "const float* a, const float* b, float* out")
    code = code.replace("out[i] = 2.0f * x[i];", line).replace("def run(x):\n    x = x.contiguous()", "def run(x, b):")
    code = code.replace(
        "ctypes.c_void_p(x.data_ptr()),", "ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(b.data_ptr()),"
    )
    head, run = code.split("def run(x, b):")
    return (
        f"{head}def run(x, b):\n    x, b = x.contiguous(), b.contiguous(){run}\n\n"
        "class ModelNew(torch.nn.Module):\n    def forward(self, a, b):\n        return run(a, b)\n"
    )


KERNEL = in_cpp("out[i] = b[i] / (1.0f + std::exp(-a[i]));")
BROKEN = in_cpp("out[i] = b[i] / (1.0f + std::expo(-a[i]));")
