"""Of every op: a bound that is a hundred times as wide is refused, and one of a hundredth by every right kernel."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
import torch
from hopper import as_on_hopper
from op_kernels import ALL_OPS, label, runs_here
from telling_cases import SHORT, telling
from torch import Tensor

from kernelworks.contract import FLOATS, Case, rounding
from kernelworks.contract.complex_numbers import is_inexact
from kernelworks.contract.results import Equations
from kernelworks.dispatch import certificates
from kernelworks.dispatch.certificates import Certificate
from kernelworks.dispatch.op import OPS, Op
from kernelworks.report.verify import is_verified
from kernelworks.verify import bounds, verify
from kernelworks.verify.bounds import (
    LEAST,
    Shares,
    accepted_errors,
    loose_bounds,
    merge_shares,
    shares_of,
    shift_past_bound,
)
from kernelworks.verify.compare import compare
from kernelworks.verify.parity import judge_outputs, parities
from kernelworks.verify.reference import compute_reference

LARGEST = 40_000  # elements of a case, of which a right kernel must come near the bound somewhere


def scaled(op: Op, factor: float, only: str = "") -> Op:
    """The op with a bound so many times as wide: of all that it gives, or of one output or gradient."""

    def wide(name: str, bound: Any) -> Any:
        if isinstance(bound, Tensor):
            return bound * (factor if only in ("", name) else 1.0)
        return tuple(wide(name, part) for part in bound)

    @functools.wraps(op.contract.bound)  # which says what a bound takes
    def bound(*args: Any, **named: Any) -> Any:
        made = op.contract.bound(*args, **named)
        return tuple(wide(name, part) for name, part in zip(op.contract.outputs, made, strict=False))

    @functools.wraps(op.contract.gradient_bound or op.contract.bound)
    def gradient_bound(*args: Any, **named: Any) -> dict[str, Tensor]:
        assert op.contract.gradient_bound is not None
        made = op.contract.gradient_bound(*args, **named)
        return {name: wide(f"gradient of {name}", part) for name, part in made.items()}

    def wide_equations(name: str, relation: Equations) -> Equations:
        def residuals(args: Any, outputs: Any) -> dict[str, Any]:
            return {n: (off, wide(name, most)) for n, (off, most) in relation.residuals(args, outputs).items()}

        def gradients(outputs: Any, flows: Any) -> Any:
            assert relation.gradients is not None
            found, most = relation.gradients(outputs, flows)
            return found, {n: wide(f"gradient of {n}", part) for n, part in most.items()}

        return Equations(residuals, relation.gradients and gradients)

    results = {
        name: dataclasses.replace(result, relation=wide_equations(name, result.relation))
        if isinstance(result.relation, Equations)
        else result
        for name, result in op.contract.results.items()
    }
    changed = copy.copy(op)
    changed.contract = dataclasses.replace(
        op.contract, results=results, bound=bound, gradient_bound=op.contract.gradient_bound and gradient_bound
    )
    return changed


def right_kernels(op: Op) -> list[str]:
    own = [
        kernel.name
        for kernel in op.kernels
        if kernel.source is not None and kernel.device == "cpu" and runs_here(kernel)
    ]
    return list(dict.fromkeys((own[-1], own[0]))) if own else ["torch"]  # the plain one, and the widest


def inner_of(op: Op, kernel: str) -> str:
    """The bounds that a right kernel is held to; torch's, in the place of a GPU's, to those of that."""
    return op.kernels[0].inner if kernel == "torch" else op.kernel(kernel).inner


def small(op: Op) -> Iterator[tuple[Case, frozenset[str]]]:
    """Cases of few elements, each with the names of the tensors that it gives."""
    for case in op.contract.cases:
        made = case.make(torch.Generator().manual_seed(0), case.dtypes[0]) if case.gradients else {}
        tensors = {name: value for name, value in made.items() if isinstance(value, Tensor)}
        if 0 < sum(t.numel() for t in tensors.values()) <= LARGEST:
            yield case, frozenset(tensors)


def reached(op: Op, kernel: str, cases: list[Case]) -> Shares:
    """What a right kernel reaches of the narrowest bound that one of the op's is held to."""
    if op.name == "attention_fp8":
        return merge_shares(
            {str(d)[6:]: judge_outputs(as_on_hopper(*e.positional(op)), e)[0]}
            for case in cases
            for d in case.dtypes
            for e in [compute_reference(op, case, d, 0, "cpu", "input")]
        )
    return shares_of(op, kernel, cases, inner_of(op, kernel))


def sought(op: Op, found: Shares, case: Case, given: frozenset[str]) -> tuple[set[str], bool]:
    """The outputs and gradients of a case of which nothing yet comes near its bound in its dtype, and whether one of
    them was off at all."""
    (dtype,) = case.dtypes
    wanted = {*op.contract.outputs, *(f"gradient of {name}" for name in op.contract.differentiable if name in given)}
    shown = {name.partition(" in ")[0]: share for name, share in found.get(str(dtype)[6:], {}).items()}
    left = {name for name in wanted if shown.get(name, 0.0) < LEAST}
    return left, not left.isdisjoint(shown)


@pytest.fixture(scope="module", params=ALL_OPS, ids=label)
def tried(request: pytest.FixtureRequest) -> tuple[Op, Shares, dict[str, list[Case]]]:
    """An op, what right kernels reach on the cases that show that no bound of it is loose, and those cases by
    kernel. First come cases of every kind. What is exact in all of them, or is not made by a kernel, has no share in
    the others either, and is sought there only with ``--all``, as it is by a verification; what is off is sought in
    each until it comes near."""
    op, found, used = request.param, Shares(), dict[str, list[Case]]()
    of_every_kind = {(case.name, dtype) for case in telling(op, SHORT) for dtype in case.dtypes}
    cases = [(dataclasses.replace(case, dtypes=(dtype,)), given) for case, given in small(op) for dtype in case.dtypes]
    cases.sort(key=lambda each: (each[0].name, *each[0].dtypes) not in of_every_kind)
    for kernel in right_kernels(op):
        # The plain one shows it of most bounds: the widest is then not compiled. Of a reason what both reach is asked.
        if found and not op.contract.loose and not loose_bounds(op.contract, found):
            break
        for case, given in cases:
            (dtype,) = case.dtypes
            left, is_off = sought(op, found, case, given)
            first = (case.name, dtype) in of_every_kind or request.config.getoption("--all")
            if not left or not (first or is_off):
                continue  # nothing that is sought is to be had of it
            if kernel == "torch" and not right(op, kernel, case, str(dtype)[6:]):  # which is held to no bound
                continue
            more = reached(op, kernel, [case])
            if any(share >= LEAST > found.get(d, {}).get(n, 0) for d, of in more.items() for n, share in of.items()):
                used.setdefault(kernel, []).append(case)
            found = merge_shares((found, more))
    return op, found, used


def test_no_bound_is_loose(tried: tuple[Op, Shares, dict[str, list[Case]]]) -> None:
    op, found, _ = tried
    assert loose_bounds(op.contract, found) == []


def test_a_bound_that_is_wide_by_a_factor_is_refused(tried: tuple[Op, Shares, dict[str, list[Case]]]) -> None:
    """Of each output and gradient in each dtype; where none has a bound but 0, there is nothing that is loose. What is
    refused of a bound a hundred times as wide is refused of a wider one: its shares are smaller in proportion."""
    op, found, used = tried
    reached_wide = merge_shares(reached(scaled(op, 100.0), kernel, cases) for kernel, cases in used.items())
    expected = {(dtype, name) for dtype, outputs in reached_wide.items() for name in outputs}
    for further in (1.0, 100.0):
        shares = {d: {name: share / further for name, share in of.items()} for d, of in reached_wide.items()}
        wrong = loose_bounds(op.contract, shares)
        assert {(d, n) for d, n in expected if any(f"bound of {n} in {d} is" in w for w in wrong)} == expected
    assert any(found.values()) == bool(expected)


def test_a_right_kernel_refuses_a_bound_of_a_hundredth(tried: tuple[Op, Shares, dict[str, list[Case]]]) -> None:
    """In every dtype, of every output and gradient that may be off."""
    op, found, used = tried
    for dtype, outputs in found.items():
        for name in outputs:
            narrow = scaled(op, 0.01, name.partition(" in ")[0])
            assert any(not right(narrow, kernel, case, dtype) for kernel, cases in used.items() for case in cases), name


def right(op: Op, kernel: str, case: Case, name: str) -> bool:
    dtype = getattr(torch, name)
    if dtype not in case.dtypes:
        return True
    if op.name == "attention_fp8":
        expected = compute_reference(op, case, dtype, 0, "cpu", "input")
        return not judge_outputs(as_on_hopper(*expected.positional(op)), expected)[1]
    plain = dataclasses.replace(case, layouts=False)
    made = parities(op, kernel, plain, dtype, inner=inner_of(op, kernel), both_ends=False)
    return all(parity.ok for parity in made)


@pytest.mark.parametrize("name", ["relu", "argmax", "embedding", "sum"])
def test_what_is_exact_has_no_share_and_must_stay_so(name: str) -> None:
    """One rounding allowed to an op that makes none is refused."""
    op = OPS[name]
    cases = [case for case, _ in small(op)][:8]
    exact = reached(op, right_kernels(op)[0], cases)["float32"]
    changed = copy.copy(op)

    def one_rounding(args: Any, outputs: tuple[Tensor, ...], dtype: torch.dtype, **named: Any) -> tuple[Tensor, ...]:
        made = op.contract.bound(args, outputs, dtype, **named)
        return tuple(b + rounding(o, dtype) if is_inexact(o.dtype) else b for b, o in zip(made, outputs, strict=True))

    changed.contract = dataclasses.replace(op.contract, bound=one_rounding)
    shares = reached(changed, right_kernels(op)[0], cases)
    too_loose = any("of output in float32 is too loose" in line for line in loose_bounds(op.contract, shares))
    assert ("output" in exact, too_loose) == (name == "sum", name in ("relu", "embedding"))
    assert ("gradient of x" in exact) is False


# ---------------------------------------------------------------- reasons

REASON = "the sum of a thousand terms, of which no case has fewer"


def test_a_reason_excuses_a_bound_and_is_refused_where_none_is_needed() -> None:
    contract = OPS["layer_norm"].contract
    key = "float32 gradient of x"
    given = dataclasses.replace(contract, loose={key: REASON})
    assert "too loose" in loose_bounds(contract, {"float32": {"gradient of x": 0.01}})[0]
    assert loose_bounds(given, {"float32": {"gradient of x": 0.01}, "float16": {"gradient of x": 0.9}}) == []
    assert "needs no reason" in loose_bounds(given, {"float32": {"gradient of x": 0.02}})[0]
    assert "with a reason" in loose_bounds(given, {"float32": {"gradient of x": 0.0009}})[0]
    assert len(loose_bounds(given, {"float16": {"gradient of x": 0.01}})) == 1  # another dtype's
    assert loose_bounds(given, {"float32": {"output": 0.5}}) == []  # nobody made gradients
    assert loose_bounds(given, {"float32": {"gradient of x": float("nan")}})  # no share at all


@pytest.mark.parametrize(
    "key",
    ["float32", "float32 grad x", "float64 output", "output", "float32 gradient of eps", "float32 output in int8"],
)
def test_a_reason_that_speaks_of_nothing_is_refused(key: str) -> None:
    contract = dataclasses.replace(OPS["layer_norm"].contract, loose={key: REASON})
    assert "speaks of none" in loose_bounds(contract, {})[0]


def test_no_empty_reason_is_taken() -> None:
    contract = dataclasses.replace(OPS["layer_norm"].contract, loose={"float32 output": ""})
    assert "too loose" in loose_bounds(contract, {"float32": {"output": 0.01}})[0]


# ---------------------------------------------------------------- answers that leave the bound


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 40.0])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("times", [2.0, 8.0])
def test_what_is_off_by_bounds_is_off_after_its_rounding(
    dtype: torch.dtype, share: float, sign: int, times: float
) -> None:
    """Between two numbers, on one, at 0 and among the subnormals; a bound of ``share`` roundings, or none."""
    drawn = torch.randn(400, generator=torch.Generator().manual_seed(3)).double()
    tiny = torch.finfo(dtype).smallest_normal * torch.linspace(-2, 2, 101).double()
    want = torch.cat((drawn, drawn.to(dtype).double(), torch.zeros(3).double(), tiny))
    bound = share * rounding(want, dtype)
    moved, can = shift_past_bound(want, bound, dtype, times, sign)
    assert bool(can.all()) and moved.dtype == dtype
    error = moved.double() - want
    assert bool((error * sign > 0).all()) and bool((error.abs() > bound).all())
    assert bool((error.abs() <= times * bound + 3 * rounding(want, dtype)).all())  # no farther than it must be


def test_what_may_be_off_is_all_that_is_finite() -> None:
    inf, nan = float("inf"), float("nan")
    want = torch.tensor([1.0, inf, -inf, nan, 3.4e38, 2.0, 0.0]).double()
    bound = torch.tensor([0.1, 0.1, 0.1, 0.1, 1e38, inf, nan]).double()
    assert shift_past_bound(want, bound, torch.float32, 2.0, 1)[1].tolist() == [True, *[False] * 6]
    assert shift_past_bound(torch.tensor([3, 4]), torch.zeros(2), torch.int64, 2.0, -1)[0].tolist() == [2, 3]


def passes(name: str, case: str, dtype: torch.dtype = torch.float32) -> set[str]:
    op = OPS[name]
    expected = compute_reference(op, next(c for c in op.contract.cases if c.name == case), dtype)
    return {said for turn in range(12) for said in accepted_errors(op, expected, turn)}


def blind(change: Callable[..., tuple[float, str]]) -> Callable[[pytest.MonkeyPatch], None]:
    def replace(patch: pytest.MonkeyPatch) -> None:
        for module in ("compare", "reference"):  # of outputs, and of gradients
            patch.setattr(sys.modules[f"kernelworks.verify.{module}"], "compare", change)

    return replace


COMPARISONS: dict[str, tuple[Callable[..., tuple[float, str]], str]] = {
    "three bounds pass": (lambda got, want, bound: compare(got, want, 3 * bound), "off by +2 bounds everywhere"),
    "the last element is left out": (
        lambda got, want, bound: compare(*(t.reshape(-1)[:-1] for t in (got, want, bound))),
        "off by -8 bounds in the last element",
    ),
    "too much is not seen": (
        lambda got, want, bound: compare(torch.minimum(got, want.to(got.dtype)), want, bound),
        "off by +8 bounds in one element",
    ),
    "the mean is compared": (
        lambda got, want, bound: compare(got.double().mean(), want.mean(), bound.mean()),
        "in one element",
    ),
    "what comes is rounded": (
        lambda got, want, bound: compare(got.bfloat16().double(), want, bound + 2**-8 * want.abs()),
        "off by +2 bounds everywhere",
    ),
}


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_that_lets_pass_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert passes("rms_norm", "residual N=33") == set()
    change, said = COMPARISONS[name]
    blind(change)(monkeypatch)
    found = passes("rms_norm", "residual N=33")
    for output in ("output ", "sum ", "gradient of x ", "gradient of weight "):
        assert any(line.startswith(output) and said in line for line in found), (output, found)


def test_an_output_that_nobody_looks_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def first(result: Any, expected: Any) -> tuple[float, str]:
        return compare(result[0], expected.outputs[0], expected.bounds[0])

    monkeypatch.setattr(bounds, "judge", first)
    found = passes("rms_norm", "residual N=33")
    assert found and all(line.startswith("sum ") for line in found)


# ---------------------------------------------------------------- the whole verification

WORKER = """
import dataclasses, sys
import kernelworks
from kernelworks.dispatch.op import OPS
sys.path.insert(0, sys.argv.pop(1))
from telling_cases import SHORT, telling
op = OPS["silu_mul"]
op.contract = kept = dataclasses.replace(op.contract, cases=telling(op, SHORT))
op.contract = dataclasses.replace(kept, bound=lambda *a, **n: tuple(100 * b for b in kept.bound(*a, **n)))
from kernelworks.verify.worker import main
main()
"""


@pytest.mark.usefixtures("quick_processes")
def test_the_verification_of_a_kernel_judges_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path))
    monkeypatch.setattr(
        sys.modules["kernelworks.verify"], "WORKER", (sys.executable, "-c", WORKER, str(Path(forked.__file__).parent))
    )
    monkeypatch.setattr(
        sys.modules["kernelworks.verify"], "verifiable_kernels", lambda op, names=None: ([op.kernel("scalar")], {})
    )
    (verification,) = verify("silu_mul", "scalar")
    assert not verification.certified and not verification.checks["bound"] and not is_verified(verification)
    assert set(verification.worst_by_dtype) == {"float32", "bfloat16", "float16"}
    assert set(verification.worst_by_dtype["float32"]) == {"output", "gradient of gate", "gradient of up"}
    assert max(max(of.values()) for of in verification.worst_by_dtype.values()) == verification.worst
    (failure,) = verification.failures
    assert failure.case == "bound" and "the bound of output in float32 is too loose" in failure.message
    assert "gradient" not in failure.message and "in bfloat16" in failure.message


def test_a_certificate_without_shares_by_dtype_is_read() -> None:
    record = json.loads(next(certificates.SHIPPED_DIR.glob("*.json")).read_text(encoding="utf-8"))[0]
    record.pop("worst_by_dtype", None)
    assert Certificate(**record).worst_by_dtype == {}
