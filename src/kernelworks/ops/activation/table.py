"""The table of activations: an entry each. ``python tools/activations.py`` writes their op packages."""

import torch.nn.functional as F

from kernelworks.templates.activation import Activation

__all__ = ["ENTRIES"]

_TABLE = (
    Activation(
        name="hardswish",
        torch=F.hardswish,
        formula="output = x min(max(x + 3, 0), 6) / 6",
        source="Howard et al., Searching for MobileNetV3, ICCV 2019 (arXiv:1905.02244)",
        value="x * (where(x < -3.0, 0.0, where(x > 3.0, 6.0, x + 3.0)) / 6.0)",
        gradient="where(x <= -3.0, 0.0, where(x < 3.0, grad * (x / 3.0 + 0.5), grad))",
        mutants={
            "no shift": ("x * where(x < 0.0, 0.0, where(x > 6.0, 6.0, x)) / 6.0", "3 is not added"),
            "not cut above": ("x * where(x < -3.0, 0.0, x + 3.0) / 6.0", "the share grows beyond 1"),
            "silu": ("x * sigmoid(x)", "the function that it stands for"),
        },
    ),
)

ENTRIES = {entry.name: entry for entry in _TABLE}
