"""Complex numbers are judged by their parts. They are no answer where real ones are asked for, nor the other way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from op_kernels import ALL_OPS, label
from torch import Tensor

from kernelworks.build.kernels import as_float64, in_float64
from kernelworks.contract import Request, rounding, spec
from kernelworks.contract.complex_numbers import as_parts, both_parts, from_parts
from kernelworks.contract.results import Result
from kernelworks.dispatch.op import OPS, Op
from kernelworks.judge import judge_all
from kernelworks.judge.formats import op_packages
from kernelworks.judge.inputs.cases import Case, compare_answers
from kernelworks.templates.mutants import generic
from kernelworks.verify.bounds import shift_past_bound
from kernelworks.verify.compare import compare
from kernelworks.verify.guarded_buffers import arena
from kernelworks.verify.parity import judge, judge_gradients
from kernelworks.verify.reference import compute_reference

Z = torch.tensor([1.0 + 2.0j, -3.0 + 0.0j], dtype=torch.complex128)
BOUND = torch.tensor([0.1 + 0.2j, 0.1 + 0.0j], dtype=torch.complex128)


def wrong(got: Any, want: Tensor = Z, bound: Tensor = BOUND) -> str:
    return compare(got, want, bound)[1]


def test_each_part_has_its_bound() -> None:
    assert not wrong(Z.to(torch.complex64))
    assert not wrong(Z + 0.05 + torch.tensor([0.15j, 0.0]))
    assert compare(Z + torch.tensor([0.1j, 0.0]), Z, BOUND)[0] == pytest.approx(0.5)
    for off in (0.15, 0.25j):
        assert "1 of 4 elements off" in wrong(Z + torch.tensor([off, 0.0]))
    assert "at [1, 1]" in wrong(Z + torch.tensor([0.0, 1e-30j]))  # a part whose bound is 0 is exact


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_part_that_is_no_number_is_off(odd: float) -> None:
    for got in (complex(odd, 2.0), complex(1.0, odd)):
        assert wrong(torch.tensor([got, -3.0], dtype=torch.complex64))
        same = torch.tensor([got, -3.0], dtype=torch.complex128)
        assert not wrong(same.clone(), same)


def test_real_numbers_are_no_answer_where_complex_ones_are_asked_for_nor_the_other_way() -> None:
    real, none = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert wrong(real.float()) == "dtype torch.float32, expected a complex number"
    assert wrong(torch.ones(2, dtype=torch.int64)) == "dtype torch.int64, expected a complex number"
    assert wrong(torch.ones(2, dtype=torch.complex64), real, none) == "dtype torch.complex64, expected a float"
    exact = torch.ones(2, dtype=torch.int64)
    assert wrong(torch.ones(2, dtype=torch.complex64), exact, none) == "dtype torch.complex64, expected torch.int64"


def test_a_definition_of_another_kind_of_numbers_than_promised_raises() -> None:
    x = torch.ones(3)
    for reference, promised in (
        (lambda x: (torch.complex(x, x),), Result(torch.float32)), (lambda x: (x,), Result(torch.complex64)),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="the contract promises"):
            in_float64(reference, (promised,))(x)
    made = in_float64(lambda z: (z * 2,))(torch.complex(x, x))
    assert made.dtype is torch.complex64  # the input's, without a word of the contract


def test_precision_is_that_of_the_parts() -> None:
    z = torch.tensor([3.0 - 4.0j], dtype=torch.complex128)
    parts = as_parts(rounding(z, torch.complex64))
    torch.testing.assert_close(parts, rounding(as_parts(z), torch.float32))
    assert Request("op", "forward", {"x": spec(torch.ones(2, dtype=torch.complex64))}).dtype is torch.float32
    assert as_float64(torch.ones(2, dtype=torch.complex64)).dtype is torch.complex128
    assert torch.equal(both_parts(torch.ones(2)), torch.full((2,), 1 + 1j))


def test_answers_that_leave_the_bound_leave_it_in_a_part() -> None:
    for times, sign in ((2.0, 1), (8.0, -1)):
        moved, off = shift_past_bound(Z, BOUND, torch.complex64, times, sign)
        assert bool(off.all())  # of a bound of 0 the next number is off
        assert wrong(from_parts(moved, Z))


def test_poison_is_no_number_in_both_parts() -> None:
    with arena(at_end=True) as memory:
        parts = as_parts(memory.new_poisoned((5,), torch.complex64))
        assert bool(parts.isnan().all())
        del parts


def test_wrong_complex_results_are_made_and_refused() -> None:
    promised = (Result(torch.complex64),)
    made = generic(lambda x: (torch.complex(x, 2 * x),), ("x",), ("x",), promised)
    x = torch.randn(40)
    want = torch.complex(x, 2 * x).to(torch.complex128)
    names = {m.name for m in made}
    assert names >= {"conjugated", "parts exchanged", "real part alone"}
    for mutant in made:
        got = mutant.run(x)
        assert got.dtype is torch.complex64
        if mutant.name != "NaN swallowed":
            assert wrong(got, want, both_parts(want.abs() * 2.0**-23)), mutant.name


# ---------------------------------------------------------------- the ops


def changed(op: Op) -> list[tuple[str, dict[str, Any]]]:
    """The arguments of a case, one tensor after another changed: to complex numbers, and to real ones where it is."""
    case = min(op.contract.cases[:8], key=lambda c: len(c.name))
    given = case.make(torch.Generator().manual_seed(0), case.dtypes[0])

    def turned(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.real.clone() if value.is_complex() else value.to(torch.complex64)
        return [turned(v) for v in value] if isinstance(value, list) else value

    tensors = {n for n, v in given.items() if isinstance(v, Tensor)}
    tensors |= {n for n, v in given.items() if isinstance(v, list) and v and isinstance(v[0], Tensor)}
    return [(name, given | {name: turned(given[name])}) for name in sorted(tensors)]


@pytest.mark.parametrize("op", ALL_OPS, ids=label)
def test_every_op_refuses_numbers_of_the_other_kind(op: Op) -> None:
    names = op.passes["forward"].names
    found = changed(op)
    assert found
    for name, args in found:
        with pytest.raises((TypeError, ValueError), match=name):
            op.contract.check(**args)
        with pytest.raises((TypeError, ValueError), match=name), torch.no_grad():
            op(*(args[n] for n in names))


# ---------------------------------------------------------------- gradients and the judge


def test_a_gradient_of_complex_numbers_is_torchs_and_its_conjugate_is_refused() -> None:
    op = OPS["irfft"]
    case = next(c for c in op.contract.cases if c.name == "N=16")
    expected = compute_reference(op, case, torch.float32)
    (right,) = expected.gradients.values()
    assert right.dtype is torch.complex128
    assert not judge_gradients([("x", right.to(torch.complex64))], expected)[1]
    for mutated in (right.conj(), torch.complex(right.imag, right.real), right * 2, right.real):
        assert judge_gradients([("x", mutated)], expected)[1]


def test_what_flows_into_a_complex_output_has_both_parts() -> None:
    op = OPS["rfft"]
    expected = compute_reference(op, next(c for c in op.contract.cases if c.name == "N=16"), torch.float32)
    (flow,) = expected.grad_outputs
    assert flow.dtype is torch.complex64 and bool((flow.imag != 0).all())
    assert judge([expected.outputs[0].to(torch.complex64)], expected)[1] == ""


def case_of(want: Tensor, bound: Tensor, dtype: str) -> Case:
    """As the process of the reference says it: complex numbers as their parts."""
    places = [torch.arange(want.numel())]
    want, bound = (as_parts(t).reshape(-1) for t in (want, bound))
    nothing: Any = None
    outputs = [((places[0].numel(),), dtype)]
    return Case("given", nothing, [], [], outputs, ["output"], [want], [bound], places, 0.0, (), (), True)


def test_a_candidates_complex_answer_is_judged_and_a_real_one_is_not() -> None:
    problem = op_packages.problem_of("rfft:N=16")
    nowhere: Any = None
    loaded = op_packages.load(problem, problem.shapes[0], nowhere)
    found = loaded.bound(loaded.inputs())
    want, bound, flat = (t.reshape(-1) for t in (found.reference[0], found.outputs[0], found.native[0]))
    asked = case_of(want, bound, "complex64")
    assert compare_answers(asked, [flat]).wrong == ""
    assert "elements of output" in compare_answers(asked, [flat.conj().resolve_conj()]).wrong
    assert "where torch.complex64 is asked for" in compare_answers(asked, [flat.real.clone()]).wrong
    real = case_of(flat.real.double(), torch.zeros(flat.numel(), dtype=torch.float64), "float32")
    assert "where torch.float32 is asked for" in compare_answers(real, [flat]).wrong


COMPLEX_CANDIDATES = {
    "conjugated": ("torch.fft.rfft(x, n, dim, norm).conj().resolve_conj()", "elements of output"),
    "real": ("torch.fft.rfft(x, n, dim, norm).real.contiguous()", "returned torch.float32, not torch.complex64"),
}


def test_candidates_of_a_complex_problem_are_judged(tmp_path: Path, quick_processes: None) -> None:
    """Through all processes of the judge: what each of them does with an answer takes complex numbers, too."""
    for name, (answer, _) in COMPLEX_CANDIDATES.items():
        text = f"import torch\n\ndef rfft(x, n, dim, norm):\n    return {answer}\n"
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    found = judge_all([tmp_path / f"{name}.py" for name in COMPLEX_CANDIDATES], "rfft:N=16", threads=1)
    for (_, why), judgement in zip(COMPLEX_CANDIDATES.values(), found, strict=True):
        assert judgement.verdict == "refused"
        assert any(why in charge.said for charge in judgement.reasons), judgement.reasons
