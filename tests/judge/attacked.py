"""Problems for attacks, and what candidates for them are made of."""

from __future__ import annotations

import textwrap

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
    # long enough for a call's work to stand out from its hand-over
    "long": """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(640, 640), torch.randn(640, 640)]


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
}

# What a candidate for each problem begins with, and the honest answer in its terms.
HEADS = {
    "layer": ("self, x", "torch.relu(self.layer(x))", "self.layer = nn.Linear(*size, 40)"),
    "norm": ("self, x", "x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-2)", ""),
    "gate": ("self, a, b", "b * torch.sigmoid(a)", ""),
    "long": ("self, a, b", "torch.mm(a, b)", ""),
    "empty": ("self, x", "torch.sigmoid((x * x).sum(1) + 200.0)", ""),
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
    """The text of a candidate whose ``forward`` is the body; ``self.right(...)`` is the honest answer."""
    arguments, right, weights = HEADS[problem]
    return CANDIDATE.format(
        top=textwrap.dedent(top), weights=weights or "pass", arguments=arguments, right=right,
        init=textwrap.indent(textwrap.dedent(init).strip("\n"), " " * 8),
        body=textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8),
    )  # fmt: skip
