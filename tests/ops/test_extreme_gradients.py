"""What flows into an op from behind may be anything: infinite or NaN after a loss that is scaled too far, or so large
that gradients made for a 1 and multiplied afterwards would be lost in float16."""

from __future__ import annotations

import functools

import forked
import pytest
import torch
from op_kernels import ALL_OPS

from kernelworks.dispatch.op import OPS

FLOWS = """
import torch, kernelworks as kw
x, w = torch.randn(6, 8, requires_grad=True), torch.randn(9, 8, requires_grad=True)
for ignored in (range(6), (1, 4)):
    target = torch.tensor([-100 if i in ignored else i for i in range(6)])
    for flow in (float("inf"), float("nan"), 2.0):
        found = []
        for kernel in ("triton", "torch"):
            loss = kw.linear_cross_entropy(x, w, target, kernel=kernel)
            found.append(torch.autograd.grad(loss, (x, w), torch.tensor(flow)))
        for ours, torchs in zip(*found):
            print(bool(torch.equal(ours.isfinite(), torchs.isfinite())), bool((ours[~ours.isnan()] != 0).any()))
"""


def test_a_scaled_loss_keeps_its_small_gradients_in_float16() -> None:
    """What is far below float16's smallest number for a 1 is not, for the 32768 that flows in."""
    options = ("linear_cross_entropy", "--kernel", "triton", "--dtype", "float16", "--case", "a scaled loss")
    done = forked.python(*options, module="kernelworks.verify.triton_interpreter", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout
    assert "4 cases, 0 wrong" in done.stdout


def test_what_no_row_flows_into_stays_zero_whatever_flows_in() -> None:
    """Ignored rows have gradients of 0 beside infinity and NaN, as torch's have, also where every row is ignored."""
    done = forked.python(code=FLOWS, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    same, some = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert set(same) == {"True"} and some[-2:] == ("True", "True")


# torch takes the logarithm of what flows in by its sign, which NaN has not: its gradient is 0 there, ours NaN.
LOST_BY_TORCH = ("logcumsumexp",)


@pytest.mark.parametrize("flow", [torch.inf, torch.nan])
@pytest.mark.parametrize(
    "name", [op.name for op in ALL_OPS if op.contract.differentiable and op.contract.returned_outputs]
)
def test_infinity_and_nan_flow_on_as_they_do_in_torch(name: str, flow: float) -> None:
    """The same numbers are finite after ours as after torch's, in every gradient."""
    op = OPS[name]
    case = [c for c in op.contract.cases if c.gradients][1]
    made = case.make(torch.Generator().manual_seed(0), torch.float32)
    names = op.passes["forward"].names
    finite = []
    lost = name in LOST_BY_TORCH and flow != flow
    for function in (functools.partial(op, kernel="scalar") if lost else op, op.composite):
        own = {n: made[n].clone().requires_grad_() for n in op.contract.differentiable if made.get(n) is not None}
        outputs = function(*((made | own).get(n) for n in names))
        output = outputs[0] if isinstance(outputs, tuple) else outputs
        found = torch.autograd.grad(output, tuple(own.values()), torch.full_like(output, flow), allow_unused=True)
        finite.append([g.isfinite() if g is not None else torch.ones_like(x, dtype=torch.bool)
                       for g, x in zip(found, own.values(), strict=True)])  # fmt: skip
    if lost:
        ours, torchs = ([bool(g.any()) for g in found] for found in finite)
        assert not any(ours) and all(torchs)
        return
    assert all(torch.equal(a, b) for a, b in zip(*finite, strict=True))
