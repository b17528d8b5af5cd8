"""Ops that share an op package: what an entry alone can have wrong is asked of each of them.

What their code has in common is asked of one for each template, as of every op (``SHOWN`` in op_kernels.py).
"""

from __future__ import annotations

import pytest
import torch
from op_kernels import SHOWN, asked_kernels
from telling_cases import telling

import kernelworks as kw
from kernelworks.dispatch.op import OPS, Op
from kernelworks.ops import SIBLINGS
from kernelworks.verify.checks import bad_inputs, surviving_mutants
from kernelworks.verify.parity import parities

EVERY_SIBLING = [name for names in SIBLINGS.values() for name in names]
NAMES = [name for name in EVERY_SIBLING if name not in SHOWN]
TRIED = 30  # of work (telling_cases.py)


def kernels_of(op: Op) -> list[str]:
    """The plain one, and what no certificate speaks for (`asked_kernels`)."""
    return [kernel.name for kernel in asked_kernels(op) if kernel.device == "cpu"]


def test_one_of_each_template_is_asked_everything() -> None:
    templates = {type(OPS[name].template) for name in EVERY_SIBLING}
    assert templates == {type(OPS[name].template) for name in SHOWN if name in EVERY_SIBLING}


@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_keeps_its_contract_and_its_mutants_do_not(name: str) -> None:
    op = OPS[name]
    cases = telling(op, TRIED, most=20_000)
    found = [
        p for case in cases for d in case.dtypes for kernel in kernels_of(op) for p in parities(op, kernel, case, d)
    ]
    assert len(found) > 20 * len(kernels_of(op)) and {p.pass_ for p in found} >= {"forward", "backward"}
    assert [f"{p.kernel} {p.case} {p.dtype}: {p.message}" for p in found if not p.ok] == []
    assert len(op.mutants) >= 8 and surviving_mutants(op) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_sibling_refuses_bad_input_and_is_torchs_in_torchs_words(name: str) -> None:
    op, public = OPS[name], getattr(kw, name)
    assert [wrong for _, wrong in bad_inputs(op, "scalar", public) if wrong] == []
    case = next(case for case in op.contract.cases if case.layouts)
    given = case.make(torch.Generator().manual_seed(0), torch.float32)
    want = public(**given, kernel="torch")
    first, *rest = op.passes["forward"].names
    if op.torch_signature is not None:  # torch has one function for it
        torchs = op.torch_signature.theirs.get(first, first)
        torch.testing.assert_close(public(**{torchs: given[first]} | {n: given[n] for n in rest}), want)
    torch.testing.assert_close(public(**given, kernel="scalar"), want)
