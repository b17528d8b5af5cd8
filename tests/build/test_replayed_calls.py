"""Replays of GPU calls, tried where there is no GPU: Triton's interpreter runs the launches on CPU tensors."""

from __future__ import annotations

import forked

PROGRAM = """
import torch
from kernelworks.build.replay import make_replay
from kernelworks.ops.activation.silu_mul import triton as silu_mul
from kernelworks.ops.norm.rms_norm import triton as rms_norm

def rows(m, n, seed=0):
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed))

x, y, w = rows(5, 48), rows(5, 48, 1), rows(1, 48, 2)[0]
run = make_replay(rms_norm.forward, (x, w, 1e-6, None))
assert run is not None
z = rows(5, 48, 3)
torch.testing.assert_close(run(z, w, 1e-6, None), torch.nn.functional.rms_norm(z, (48,), w, 1e-6))
out = torch.empty_like(z)
assert run(z, w, 1e-6, None, out=out) is out
torch.testing.assert_close(out, torch.nn.functional.rms_norm(z, (48,), w, 1e-6))

both = make_replay(rms_norm.forward, (x, w, 1e-6, y))
result, total = both(z, w, 1e-6, y)
torch.testing.assert_close(total, z + y)

assert make_replay(rms_norm.forward, (x.t(), rows(1, 5)[0], 1e-6, None)) is None  # copies its input first
assert make_replay(silu_mul.forward, (x, x)) is None  # which of the two a pointer means cannot be told

def filled(x, out=None):
    out = torch.empty_like(x) if out is None else out
    out.zero_()
    return rms_norm.forward(x, w, 1e-6, None, out=out)

assert make_replay(filled, (x,)) is None  # a replay would miss the fill
g, wanted = rows(5, 48, 4), [True, True, False]
given = (g, None, x, w, 1e-6, None, wanted)
assert make_replay(rms_norm.backward, given) is None  # two launches, with a tensor between them
run = make_replay(rms_norm.backward, given, most=2)
for seed in (5, 6):
    g, z, v = rows(5, 48, seed), rows(5, 48, seed + 9), rows(1, 48, seed + 20)[0]
    again = run(g, None, z, v, 1e-6, None, wanted)
    for got, want in zip(again, rms_norm.backward(g, None, z, v, 1e-6, None, wanted), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)

kept = torch.zeros(5, 48)
def with_state(grad, x):  # what lives on between calls is no tensor of the call's own
    return rms_norm.backward(grad, None, kept, w, 1e-6, None, wanted)
assert make_replay(with_state, (g, x), most=2) is None
print("all hold")
"""


def test_replays_do_what_the_call_did() -> None:
    done = forked.python(code=PROGRAM, TRITON_INTERPRET="1")
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]


LOADED_LATE = """
import torch
from kernelworks.build import triton as build
from kernelworks.build.launcher import UNKNOWN

class Cuda:  # a tensor of a GPU, as far as a launch asks
    device, is_meta = "cuda:0", False
    def get_device(self): return 0

bound, asked = [], []
launch = build.Launch(build.Kernel(build.triton.jit(lambda x: None)), {})
launch._launch = lambda *given: asked.append(given) or (0 if bound else UNKNOWN)
build.Launch._bind = lambda self, device, arguments: bound.append(torch.zeros(3).sum())
with build.recording() as launches:
    launch((1, 1, 1), Cuda())
assert len(asked) == 2 and len(bound) == 1, (asked, bound)
assert len(launches) == 1, "the launch that found nothing loaded is not a second one"
print("all hold")
"""


def test_a_launch_that_has_to_load_first_is_recorded_once() -> None:
    done = forked.python(code=LOADED_LATE, TRITON_INTERPRET="1")
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]


def test_an_interpreted_op_without_a_gpu_takes_a_row_of_the_cpu() -> None:
    program = "import torch, kernelworks as kw; print(kw.softmax(torch.ones(2, 4)).sum().item())"
    done = forked.python(code=program, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "2.0", done.stderr[-3000:]
