"""Products that inductor calls oneDNN and MKL for, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelworks.profile.calls import Call
from kernelworks.profile.cost import Work
from kernelworks.profile.cost.calls import work

F32, BF16 = torch.float32, torch.bfloat16


def _call(name: str, *given: Any, dtype: torch.dtype = F32) -> Call:
    """Sizes of tensors as tuples, all else as it is."""
    shapes = [list(item) if isinstance(item, tuple) else [] for item in given]
    return Call(
        name, 0, 1, shapes=shapes,
        strides=[list(torch.empty(shape, device="meta").stride()) for shape in shapes],
        dtypes=[dtype if shape else None for shape in shapes],
        scalars=[None if shape else item for shape, item in zip(shapes, given, strict=True)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            _call("mkl::_mkl_linear", (6, 8), (999, 1), (4, 8), None, 6),  # of its own packing nothing is said
            Work(2.0 * 6 * 8 * 4, 0.0, (6 * 8 + 4 * 8) * 4, 6 * 4 * 4, "float32"),
        ),
        (
            _call("mkldnn::_linear_pointwise", (2, 3, 8), (4, 8), (4,), None, [], None, dtype=BF16),
            Work(2.0 * 6 * 8 * 4, 0.0, (6 * 8 + 4 * 8 + 4) * 2, 6 * 4 * 2, "bfloat16"),
        ),
        (
            _call("mkldnn::_convolution_pointwise", (1, 4, 9, 9), (8, 2, 3, 3), None, [1, 1], [2, 2], [1, 1], 2),
            Work(2.0 * 8 * 13 * 13 * 2, 0.0, (4 * 81 + 8 * 2 * 9) * 4, 8 * 25 * 4, "float32"),
        ),
        (
            _call(
                "mkldnn::_convolution_transpose_pointwise",
                (1, 4, 5, 5),
                (4, 3, 2, 2),
                None,
                [0, 0],
                [0, 0],
                [2, 2],
                [1, 1],
                1,
            ),
            Work(2.0 * 100 * 3 * 4, 0.0, (100 + 48) * 4, 3 * 100 * 4, "float32"),
        ),
    ],
    ids=["mkl linear", "linear", "convolution", "transposed"],
)
def test_work(call: Call, expected: Work) -> None:
    assert work(call) == expected
