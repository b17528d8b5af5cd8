"""What a verification asks of bad input: each kernel by name, so that torch's own function does not answer in its
place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from op_kernels import ALL_OPS, asked_kernels, label

from kernelworks import ops
from kernelworks.dispatch.op import Op
from kernelworks.verify.checks import bad_inputs


@pytest.fixture(params=ALL_OPS, ids=label)
def op(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Op]:
    """Each op as users have it: by itself it may choose torch's function."""
    monkeypatch.setenv("KERNELWORKS_CHOOSE", "timed")
    request.param.forget()
    yield request.param
    request.param.forget()


def test_every_kernel_refuses_bad_input_in_our_words(op: Op) -> None:
    """Kernels of ours; one that does not run here says so by name, whatever it is given."""
    for kernel in op.kernels:
        if kernel.device == "cpu" and kernel.source is not None and kernel not in asked_kernels(op):
            continue
        assert [wrong for _, wrong in bad_inputs(op, kernel.name, getattr(ops, op.name)) if wrong] == [], kernel.name


def test_values_are_refused_by_whatever_runs_where_torch_has_no_function(op: Op) -> None:
    """Else they are torch's, which may answer with memory that nobody has written."""
    if op.torch_signature is None:
        for description, make, kind, text in op.contract.errors:
            with pytest.raises(kind) as refused:
                getattr(ops, op.name)(**make())
            assert text in str(refused.value), description


def test_a_kernel_for_an_accelerator_is_asked_about_all_but_values(op: Op) -> None:
    public = getattr(ops, op.name)
    asked = {kernel.device: {said for said, _ in bad_inputs(op, kernel.name, public)} for kernel in op.kernels}
    values = {said for said, _, kind, _ in op.contract.errors if kind is IndexError}
    for device, said in asked.items():
        if device != "any":
            assert said == {d for d, *_ in op.contract.errors} - (values if device != "cpu" else set())
