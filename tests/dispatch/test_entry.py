"""The way into an op, while something is compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIRST_CALL_IS_COMPILED = """
import torch, kernelworks as kw
from kernelworks.build import native
from kernelworks.dispatch.op import OPS

def backend(graph, inputs):
    for op in OPS.values():
        op.entry.ensure_native()  # as a call does that a compiler makes, of an op that was never called
        op.entry.use_module(native.find_extension())  # as races do once they have built it
    return graph

gelu = OPS["gelu"]
compiled = torch.compile(lambda x: gelu.call(x, "none") + 1, backend=backend)
x = torch.randn(64)
assert torch.allclose(compiled(x), torch.nn.functional.gelu(x) + 1)
kw.gelu(x)
assert gelu.entry.in_cpp == (native.find_extension() is not None)
"""


@pytest.mark.usefixtures("quick_processes")
def test_how_calls_go_stands_while_dynamo_makes_its_guards() -> None:
    """Else guards would ask a function's attributes of what stands in its place by then, and compiling ends there."""
    subprocess.run([sys.executable, "-c", FIRST_CALL_IS_COMPILED], check=True, timeout=120)
