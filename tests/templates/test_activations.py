"""The table of activations: bounds from expressions, torch's zeros, numbers at their limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import forked
import pytest
import torch
from op_kernels import runs_here
from telling_cases import telling
from torch import Tensor

import kernelworks as kw
from kernelworks.contract import Case
from kernelworks.contract.numbers import Real
from kernelworks.contract.tensor_argument import T
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.passthrough import Passthrough
from kernelworks.ops.activation.table.contract import TABLE
from kernelworks.templates.activation import Activation, count_operations, template_of
from kernelworks.templates.launches import written_backward, written_forward
from kernelworks.templates.running_error import FUNCTIONS, Running, to_float32
from kernelworks.verify.bounds import loose_bounds, merge_shares
from kernelworks.verify.checks import bad_inputs, surviving_mutants
from kernelworks.verify.parity import parities

ENTRIES = TABLE.entries


def _exactly(*values: float) -> Running:
    value = torch.tensor(values, dtype=torch.float64)
    return Running(value, torch.zeros_like(value))


def _float32(text: str, x: Tensor) -> Tensor:
    """An expression in float32, by torch."""
    scope: dict[str, Any] = {
        "where": torch.where, "abs": torch.abs, "exp": torch.exp, "expm1": torch.expm1, "log1p": torch.log1p,
        "sigmoid": torch.sigmoid, "tanh": torch.tanh, "x": x.float(),
    }  # fmt: skip
    made: Tensor = eval(text, scope)
    return made.double()


@pytest.mark.parametrize(
    "text",
    [
        "x * 3.3 + 0.1", "(x + 1.0) - x", "x / (1.0 + abs(x))", "x - tanh(x)", "1.0 - sigmoid(x)", "exp(-abs(x)) * x",
        "log1p(exp(-abs(x))) / 7.0", "x * x * x - x", "expm1(-abs(x) / 3.0)", "1.0 / (x * x + 0.3)",
    ],
)  # fmt: skip
def test_the_error_of_float32_is_within_the_bound_and_near_it(text: str) -> None:
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(3)).double() * 4
    scope = {**FUNCTIONS, "x": _exactly(*x.tolist())}
    found: Running = eval(text, scope)
    off, may = (_float32(text, x) - found.value).abs(), found.error > 0.0
    assert float(off[~may].sum()) == 0.0 and 0.05 < float((off[may] / found.error[may]).max()) <= 1.0


def test_a_comparison_that_rounding_decides_covers_both_branches() -> None:
    x = _exactly(to_float32(0.1), 0.2, 1.0, 3.0)
    near = x * to_float32(10.0)  # 1, up to a rounding
    far: Running = FUNCTIONS["where"](near > 1.0, 5.0, 7.0)
    assert far.error[0] >= 2.0 and far.error[3] == 0.0
    assert FUNCTIONS["where"](x > 1.0, 5.0, 7.0).error.max() == 0.0  # both sides are exact


def test_a_sum_or_product_that_float32_holds_adds_no_error() -> None:
    """Of exact operands: what was rounded before is handed on."""
    x = _exactly(1.5, to_float32(0.1), 2.0**25)
    assert (x - 0.5).error[0] == 0.0 and (x * 3.0).error[0] == 0.0 and (x - 0.5).error[2] > 0.0
    assert (x - 0.7).error[0] > 0.0 and (x * to_float32(0.7)).error[1] > 0.0
    assert ((x * to_float32(0.7)) * 2.0).error[0] > 0.0


def test_a_choice_alone_is_exact() -> None:
    for name in ("hardtanh", "hardshrink", "relu6", "threshold"):
        op = OPS[name]
        x = torch.tensor([-3.0, -0.25, 0.0, 0.25, 9.0])
        numbers = [real.right({}) for real in ENTRIES[name].numbers.values()]
        args = dict(zip(op.passes["forward"].names, (x, *numbers), strict=True))
        outputs = op.contract.reference(x.double(), *numbers)
        assert op.contract.bound(args, outputs, torch.float32)[0].max() == 0.0


@pytest.mark.parametrize("name", ENTRIES)
def test_zeros_keep_the_sign_that_torch_gives_them(name: str) -> None:
    entry, op = ENTRIES[name], OPS[name]
    numbers = [real.right({}) for real in entry.numbers.values()]
    if name == "threshold":
        numbers = [-1.0, 2.0]
    x = torch.tensor([0.0, -0.0] * 40)
    alone = entry.torch(x[:2], *numbers).repeat(40)  # of softshrink's, torch's vectors and its tails give two answers
    want = entry.torch(x, *numbers)
    agreed = torch.signbit(want) == torch.signbit(alone)
    x, want = x[agreed], want[agreed]
    assert torch.equal(torch.signbit(op.call(x, *numbers, None, "scalar")), torch.signbit(want))
    vector = next(
        k.name for k in op.kernels if k.name in ("avx512", "avx2") and not k.guard(op.request("forward", (x, *numbers)))
    )
    assert torch.equal(torch.signbit(op.call(x, *numbers, None, vector)), torch.signbit(want))


def test_numbers_that_the_contract_refuses_are_torchs() -> None:
    x = torch.randn(5)
    torch.testing.assert_close(kw.celu(input=x, alpha=-2.0), torch.celu(x, -2.0))
    torch.testing.assert_close(
        kw.leaky_relu(input=x, negative_slope=math.inf), torch.nn.functional.leaky_relu(x, math.inf)
    )
    for call in (lambda: kw.celu(x, 0.0), lambda: kw.softshrink(x, -1.0), lambda: kw.hardtanh(x, 1.0, -1.0)):
        with pytest.raises(ValueError, match=r"alpha|lambd|max_val"):
            call()


def test_a_launch_hands_the_numbers_on_behind_the_tensors() -> None:
    arguments = {"x": T("..."), "low": Real(0.0), "high": Real(1.0, least="low")}
    assert "run(output, x, low, high, threads)" in written_forward("cut", arguments)
    assert "run(grad_x, grad, x, low, high, threads)" in written_backward("cut", arguments)


def test_an_entry_alone_has_a_contract() -> None:
    entry = Activation(
        name="double",
        torch=lambda x: 2.0 * x,
        formula="output = 2 x",
        source="none",
        value="x + x",
        gradient="grad * 2.0",
    )
    template = template_of(entry, __file__)
    assert count_operations(entry, entry.value) == 1 and template.contract.differentiable == ("x",)
    (output,) = template.contract.reference(torch.ones(3, dtype=torch.float64))
    assert torch.equal(output, torch.full((3,), 2.0, dtype=torch.float64))


# ---------------------------------------------------------------- every entry, a little of it; a verification asks all

TRIED = 60  # of work (telling_cases.py)


def cases_of(op: Op) -> tuple[Case, ...]:
    """The cases that tell most, and those of the entry's own: where it bends, and other numbers."""
    few = {case.name: case for case in telling(op, TRIED, most=20_000)}
    few |= {case.name: case for case in op.contract.cases if case.name == "N=257"}  # normal values in every dtype
    own = (c for c in op.contract.cases if c.name.startswith("to ") or c.name.endswith(("swept", "kinds of values")))
    return tuple({**{case.name: replace(case, dtypes=case.dtypes[:1]) for case in own}, **few}.values())


def kernels_of(op: Op) -> list[str]:
    """The widest that this machine runs, and the plain one."""
    here = [k.name for k in op.kernels if k.source is not None and k.device == "cpu" and runs_here(k)]
    return [here[0], "scalar"]


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_keeps_its_contract_and_its_mutants_do_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, entry, cases = OPS[name], ENTRIES[name], cases_of(OPS[name])
    tried = [(kernel, case, d) for case in cases for d in case.dtypes for kernel in kernels_of(op)]
    found = [parity for one in tried for parity in parities(op, *one)]
    assert len(found) > 40 and {p.pass_ for p in found} >= {"forward", "backward"}
    assert [f"{p.kernel} {p.case} {p.dtype}: {p.message}" for p in found if not p.ok] == []
    assert loose_bounds(op.contract, merge_shares({p.dtype: p.shares} for p in found)) == []
    monkeypatch.setattr(op, "contract", replace(op.contract, cases=cases))
    monkeypatch.setattr(op, "mutants", op.mutants[-len(entry.mutants) :])
    assert len(op.mutants) >= 3 and surviving_mutants(op) == []


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_refuses_bad_input_and_is_torchs_in_torchs_words(name: str) -> None:
    op, entry, public = OPS[name], ENTRIES[name], getattr(kw, name)
    assert [wrong for _, wrong in bad_inputs(op, "scalar", public) if wrong] == []
    x = torch.linspace(-9.0, 9.0, 300).reshape(10, 30)
    numbers = {n: real.right({}) for n, real in entry.numbers.items()}
    want = entry.torch(x, **numbers)
    torch.testing.assert_close(public(x, *numbers.values(), kernel="scalar"), want)
    if entry.is_torchs:
        torch.testing.assert_close(public(input=x, **numbers), want)
        assert torch.equal(public(input=x.double(), **numbers), entry.torch(x.double(), **numbers))  # which is torch's
    if entry.in_place:
        mine = x.clone()
        assert public(input=mine, **numbers, inplace=True) is mine
        torch.testing.assert_close(mine, want)


FIRST_CALLS = """
import torch
import kernelworks as kw
from kernelworks.ops.generated import TABLES
from kernelworks.dispatch.op import OPS

x = torch.linspace(-4.0, 4.0, 33)
for name in TABLES["activation.table"]:
    numbers = [0.5] * (len(OPS[name].passes["forward"].names) - 1)
    for kernel in (None, "reference"):
        for again in range(3):
            found = getattr(kw, name)(x.clone(), *numbers, kernel=kernel)
            want = OPS[name].composite(x, *numbers)
            torch.testing.assert_close(found, want, msg=lambda text: f"{name} {again}: {text}")
"""


def test_the_first_call_of_a_process_is_as_right_as_the_next() -> None:
    """No argument of an op may hide what calls torch's function at once (``threshold`` is both)."""
    done = forked.python(code=FIRST_CALLS, loaded=("torch",))
    assert done.returncode == 0, done.stderr
    with pytest.raises(ValueError, match="reads x, which an argument is called"):
        Passthrough("x(x)", ("x",), names={"x": torch.relu}).names_beside(("x",))
