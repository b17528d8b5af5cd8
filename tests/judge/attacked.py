"""Problems for attacks, and what candidates for them are made of."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.judge.formats import read_problem
from kernelworks.judge.problem import Problem

# ---------------------------------------------------------------- problems

PROBLEMS = {
    # a product with weights
    "layer": """
import torch
from torch import nn

rows, width = 24, 64


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 40)

    def forward(self, x):
        return torch.relu(self.layer(x))


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width]
""",
    # along rows, without weights
    "norm": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-2)


def get_inputs():
    return [torch.randn(48, 100) * 0.2]


def get_init_inputs():
    return []
""",
    # elements, of two inputs
    "gate": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return torch.sigmoid(a) * b


def get_inputs():
    return [torch.randn(40, 100), torch.randn(40, 100)]


def get_init_inputs():
    return []
""",
    # long enough for a call's work to stand out from its hand-over, and from reading its inputs
    "long": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(256, 6144), torch.randn(6144, 256)]


def get_init_inputs():
    return []
""",
    # whose answer hardly depends on its input
    "empty": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x.square().sum(1) + 200.0)


def get_inputs():
    return [torch.randn(48, 100)]


def get_init_inputs():
    return []
""",
    # with weights that begin as ones and zeros
    "weighted": """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(100)

    def forward(self, x):
        return torch.tanh(self.norm(x))


def get_inputs():
    return [torch.randn(48, 100)]


def get_init_inputs():
    return []
""",
    # on inputs that a part of it does nothing to
    "range": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x) * nn.functional.hardswish(y)


def get_inputs():
    return [torch.rand(40, 100), torch.rand(40, 100)]


def get_init_inputs():
    return []
""",
    # with weights of no layer's that begin as ones and zeros
    "biased": """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 40))
        self.scale, self.shift = nn.Parameter(torch.ones(64)), nn.Parameter(torch.zeros(40))

    def forward(self, x):
        return torch.relu((x * self.scale) @ self.weight + self.shift)


def get_inputs():
    return [torch.randn(24, 64)]


def get_init_inputs():
    return []
""",
    # one number
    "total": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.square().sum()


def get_inputs():
    return [torch.randn(48, 100)]


def get_init_inputs():
    return []
""",
    # whose buffers a call changes, and whose epsilon shows where a channel hardly varies
    "batch": """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(8, 6, 4, 4)]


def get_init_inputs():
    return []
""",
    # along rows, whose exponentials overflow far beyond what is given
    "shares": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, 1)


def get_inputs():
    return [torch.randn(24, 50)]


def get_init_inputs():
    return []
""",
    # of one number that is always the same, and where a quotient has no value at zero
    "special": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, scale):
        return torch.sign(x) * torch.sqrt(x.abs() * scale)


def get_inputs():
    return [torch.randn(48, 100), 0.5]


def get_init_inputs():
    return []
""",
    # of several answers, each in memory of its own but the last, which is an input
    "several": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        y = torch.tanh(x)
        return y, y * 1.0, y[-1:] * 1.0, x


def get_inputs():
    return [torch.randn(48, 100)]


def get_init_inputs():
    return []
""",
    # of which every size is one that it must take: a definition with its workloads
    "sizes": "",
    # of the size of a GPU
    **{
        name: f"""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, {arguments}):
        return {formula}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
        for name, arguments, formula, inputs in (
            ("rows", "x", "torch.softmax(x, 1)", "torch.randn(1024, 2048)"),
            ("elements", "x", "nn.functional.gelu(x)", "torch.randn(1024, 1024)"),
            ("pairs", "a, b", "torch.sigmoid(a) * b", "torch.randn(512, 1024), torch.randn(512, 1024)"),
            ("product", "a, b", "a @ b", "torch.randn(2048, 2048), torch.randn(2048, 2048)"),
        )
    },
}
DEFINITION: dict[str, Any] = {
    "name": "sizes", "op_type": "gemm", "axes": {"M": {"type": "var"}, "N": {"type": "const", "value": 24}},
    "inputs": {"a": {"shape": ["M", "N"], "dtype": "float32"}, "b": {"shape": ["N", "N"], "dtype": "float32"}},
    "outputs": {"c": {"shape": ["M", "N"], "dtype": "float32"}},
    "reference": "import torch\n\n\ndef run(a, b):\n    return torch.tanh(a @ b)\n",
}  # fmt: skip
WORKLOADS = [
    {"uuid": f"of {rows} rows", "axes": {"M": rows}, "inputs": {name: {"type": "random"} for name in "ab"}}
    for rows in (32, 47, 5)
]


def problem_in(folder: Path, name: str) -> Problem:
    """A problem, read from what is written into the folder."""
    if name == "sizes":
        lines = "\n".join(map(json.dumps, WORKLOADS))
        (folder / "workload.jsonl").write_text(lines, encoding="utf-8")
        (folder / "definition.json").write_text(json.dumps(DEFINITION), encoding="utf-8")
        return read_problem(folder / "definition.json")
    (folder / f"{name}.py").write_text(PROBLEMS[name], encoding="utf-8")
    return read_problem(folder / f"{name}.py")


# What a candidate for each problem begins with, and the honest answer in its terms.
HEADS = {
    "layer": ("self, x", "torch.relu(self.layer(x))", "self.layer = nn.Linear(*size, 40)"),
    "norm": ("self, x", "x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-2)", ""),
    "gate": ("self, a, b", "b * torch.sigmoid(a)", ""),
    "long": ("self, a, b", "torch.mm(a, b)", ""),
    "empty": ("self, x", "torch.sigmoid((x * x).sum(1) + 200.0)", ""),
    "weighted": ("self, x", "torch.tanh(self.norm(x))", "self.norm = nn.LayerNorm(100)"),
    "range": ("self, x, y", "x.clamp(min=0) * nn.functional.hardswish(y)", ""),
    "biased": (
        "self, x",
        "torch.relu(torch.addmm(self.shift, x * self.scale, self.weight))",
        "self.weight = nn.Parameter(torch.randn(64, 40)); self.scale = nn.Parameter(torch.ones(64)); "
        "self.shift = nn.Parameter(torch.zeros(40))",
    ),
    "total": ("self, x", "(x * x).sum()", ""),
    "batch": ("self, x", "self.norm(x)", "self.norm = nn.BatchNorm2d(6)"),
    "shares": ("self, x", "torch.exp(x - torch.logsumexp(x, 1, keepdim=True))", ""),
    "special": ("self, x, scale", "torch.sqrt(x.abs() * scale) * torch.sign(x)", ""),
    "several": ("self, x", "(torch.tanh(x), torch.tanh(x), torch.tanh(x[-1:]), x)", ""),
    "rows": ("self, x", "torch.softmax(x, -1)", ""),
    "elements": ("self, x", "0.5 * x * (1 + torch.erf(x * 0.7071067811865476))", ""),
    "pairs": ("self, a, b", "b * torch.sigmoid(a)", ""),
    "product": ("self, a, b", "torch.mm(a, b)", ""),
}

CANDIDATE = """
import torch
from torch import nn
{top}

class ModelNew(nn.Module):
    def __init__(self, *size):
        super().__init__()
        {weights}
{init}

    def right({arguments}):
        return {right}

    def forward({arguments}):
{body}
"""


def candidate(problem: str, body: str, top: str = "", init: str = "") -> str:
    """The text of a candidate whose ``forward`` is the body; ``self.right(...)`` is the honest answer. For a definition
    it is the function ``run``, of ``a`` and ``b``."""
    if problem == "sizes":
        return f"import torch\n{textwrap.dedent(top)}\n\ndef run(a, b):\n{textwrap.indent(body, ' ' * 4)}\n"
    arguments, right, weights = HEADS[problem]
    return CANDIDATE.format(
        top=textwrap.dedent(top), weights=weights or "pass", arguments=arguments, right=right,
        init=textwrap.indent(textwrap.dedent(init).strip("\n"), " " * 8),
        body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8),
    )  # fmt: skip


# ---------------------------------------------------------------- attacks


@dataclass(frozen=True)
class Attack:
    """``kind`` is what it must be refused for: a word of docs/reference/judge.md."""

    name: str
    family: str
    kind: str
    problem: str
    body: str
    twin: str  # the honest twin's body
    top: str = ""
    init: str = ""
    twin_top: str | None = None  # where it is another one
    twin_init: str | None = None
    verdict: str = "refused"
    twin_verdict: str = "right"
    calls: int = 40  # after which it has shown
    needs: str = ""  # of the sandbox: where the kernel refuses that, the judgement says so instead

    @property
    def text(self) -> str:
        return candidate(self.problem, self.body, self.top, self.init)

    @property
    def honest(self) -> str:
        top = self.top if self.twin_top is None else self.twin_top
        init = self.init if self.twin_init is None else self.twin_init
        return candidate(self.problem, self.twin, top, init)


# Small kernels of a candidate's own, by the C++ compiler: a fifth of a second to build.
KERNEL = '''
import ctypes, subprocess
from pathlib import Path

SOURCE = """
#include <cmath>
extern "C" void gate(const float* a, const float* b, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = b[i] / (1.0f + std::exp(-a[i]));
}
extern "C" void nothing(const float*, const float*, float* out, long n) {
    for (long i = 0; i < n; ++i) out[i] = 1.0f;
}
"""
if not Path("own.so").exists():
    Path("own.cpp").write_text(SOURCE)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "own.cpp", "-o", "own.so"], check=True)
OWN = ctypes.CDLL("./own.so")


def launch(name, a, b, out):
    getattr(OWN, name)(
        ctypes.c_void_p(a.data_ptr()), ctypes.c_void_p(b.data_ptr()), ctypes.c_void_p(out.data_ptr()),
        ctypes.c_long(out.numel()),
    )
    return out
'''

TRITON = """
import triton
import triton.language as tl


@triton.jit
def gate(a, b, out, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < n
    x = tl.load(a + at, mask=inside, other=0.0)
    y = tl.load(b + at, mask=inside, other=0.0)
    tl.store(out + at, y / (1.0 + tl.exp(-x)), mask=inside)


def launched(a, b):
    out = torch.empty_like(a)
    gate[(triton.cdiv(a.numel(), 2048),)](a, b, out, a.numel(), SIZE=2048)
    return out
"""
