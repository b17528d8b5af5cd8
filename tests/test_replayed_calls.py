"""Replays of GPU calls, tried where there is no GPU: Triton's interpreter runs the launches on CPU tensors."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

PROGRAM = """
import torch
from kernelworks.build.replay import replayed
from kernelworks.ops.activation.silu_mul import triton as silu_mul
from kernelworks.ops.norm.rms_norm import triton as rms_norm

def rows(m, n, seed=0):
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed))

x, y, w = rows(5, 48), rows(5, 48, 1), rows(1, 48, 2)[0]
run = replayed(rms_norm.forward, (x, w, 1e-6, None))
assert run is not None
z = rows(5, 48, 3)
torch.testing.assert_close(run(z, w, 1e-6, None), torch.nn.functional.rms_norm(z, (48,), w, 1e-6))
out = torch.empty_like(z)
assert run(z, w, 1e-6, None, out=out) is out
torch.testing.assert_close(out, torch.nn.functional.rms_norm(z, (48,), w, 1e-6))

both = replayed(rms_norm.forward, (x, w, 1e-6, y))
result, total = both(z, w, 1e-6, y)
torch.testing.assert_close(total, z + y)

assert replayed(rms_norm.forward, (x.t(), rows(1, 5)[0], 1e-6, None)) is None  # copies its input first
assert replayed(silu_mul.forward, (x, x)) is None  # which of the two a pointer means cannot be told

def filled(x, out=None):
    out = torch.empty_like(x) if out is None else out
    out.zero_()
    return rms_norm.forward(x, w, 1e-6, None, out=out)

assert replayed(filled, (x,)) is None  # a replay would miss the fill
print("all hold")
"""


def test_replays_do_what_the_call_did() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM)], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]
