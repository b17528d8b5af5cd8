"""Backwards of the GPU's pointwise kernels on tensors of any strides, interpreted: a verification tries such tensors
forward."""

from __future__ import annotations

import forked

PROGRAM = """
import torch
from kernelworks import ops
from kernelworks.ops.activation.gelu import triton as gelu
from kernelworks.ops.activation.silu_mul import triton as silu_mul

wide = torch.randn(7, 3, 2 * 70)
gate, up = wide.chunk(2, -1)
grad = torch.randn(3, 7, 70).transpose(0, 1)
turned = torch.randn(70, 3, 7).permute(2, 1, 0)
for g, a, b in ((grad, gate, up), (grad, turned, up), (turned, turned, turned), (gate[:, :1], up[:, :1], gate[:, 1:2])):
    want = silu_mul.backward(*(t.contiguous() for t in (g, a, b)), [True, True])
    found = silu_mul.backward(g, a, b, [True, True])
    assert all(torch.equal(x, y) for x, y in zip(want, found)), (g.stride(), a.stride(), b.stride())
    for approximate in ("none", "tanh"):
        want = gelu.backward(g.contiguous(), a.contiguous(), approximate, [True])
        assert torch.equal(want, gelu.backward(g, a, approximate, [True])), (g.stride(), a.stride())
print("right")
"""


def test_strided_tensors_have_the_gradients_of_contiguous_ones() -> None:
    done = forked.python(code=PROGRAM, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "right", done.stdout + done.stderr
