"""Every op of torch's own tests: its work is known, and no more than what the op was given and returned."""

from __future__ import annotations

import itertools
import math
import re
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernelworks.profile.call_sites import Survey
from kernelworks.profile.cost.calls import work
from kernelworks.profile.recording import record
from kernelworks.profile.trace import Call

SAMPLES = 1  # of each op; more find nothing more (tried with 6)
EVERY = 12  # of the database's ops, in `make test`

# What stays without a formula, and why. An op that has got one is to be taken out.
UNMODELLED = {
    "aten::_histogramdd_bin_edges": "rare; the bins' sizes are in lists that the profiler does not record",
    "aten::_histogramdd_from_bin_cts": "rare; the bins' sizes are in lists that the profiler does not record",
    "aten::_histogramdd_from_bin_tensors": "rare; the bins' sizes are in lists that the profiler does not record",
    "aten::_scaled_mm_v2": "the layouts of its scales are in lists that the profiler does not record",
}
SPARSE = re.compile("sparse|_coo|_csr|coalesce|_indices|_values|_nnz")  # the number of entries is not in the shapes
# torch's own Python drops some of what the op returns; indices in lists of optional tensors are not recorded.
BYTES_NOT_SEEN = ("masked.", "_unsafe_masked_index")


def _database() -> list[Any]:
    """torch's op database, whose module wants a package for tests of text that no op needs."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:
            stand_in = types.ModuleType("expecttest")
            stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
            sys.modules["expecttest"] = stand_in
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return [op for op in op_db if op.dtypes]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _bytes(tensors: Iterator[torch.Tensor]) -> dict[int, int]:
    """Bytes of each storage."""
    dense = [t for t in tensors if t.layout == torch.strided]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in dense}


class Outcome:
    """The calls of some samples of one op, forward and backward, and what the forward was given and gave."""

    def __init__(self, op: Any) -> None:
        dtype = torch.float32 if torch.float32 in op.dtypes else min(op.dtypes, key=str)
        grad = op.supports_autograd and dtype.is_floating_point
        try:
            self.samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))
        except Exception:  # not in this build of torch
            self.samples = []
        self.op, self.calls, self.moved = op, list[Call](), list[tuple[list[Call], float, float]]()

    def run(self) -> Outcome:
        for sample in self.samples:
            given = _bytes(_tensors([sample.input, sample.args, sample.kwargs]))
            made: list[Any] = []
            calls = record(lambda s=sample, m=made: self._forward(s, m), survey=Survey()).calls
            new = {at: size for at, size in _bytes(_tensors(made)).items() if at not in given}
            if made:
                self.moved.append((calls, float(sum(given.values())), float(sum(new.values()))))
            self.calls += calls
            if made:
                self.calls += record(lambda m=made: self._backward(m), survey=Survey()).calls
        return self

    def _forward(self, sample: Any, made: list[Any]) -> None:
        try:
            made.append(self.op(sample.input, *sample.args, **sample.kwargs))
        except Exception:  # a sample that is to raise, or that this build of torch cannot do
            return

    def _backward(self, made: list[Any]) -> None:
        out = [t for t in _tensors(made) if t.requires_grad and t.layout == torch.strided]
        try:
            if out:
                torch.autograd.backward(out, [torch.ones_like(t) for t in out])
        except Exception:  # not in this build of torch
            return


def _missing(call: Call) -> Iterator[str]:
    """The innermost ops without a formula that make a call unmodelled."""
    below = [name for child in call.children if work(child) is None for name in _missing(child)]
    yield from below or [call.name]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> list[Outcome]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [Outcome(op).run() for op in _database()[:: 1 if request.config.getoption("--all") else EVERY]]


def test_every_op_is_modelled_or_said_not_to_be(outcomes: list[Outcome]) -> None:
    missing: dict[str, str] = {}
    for outcome in outcomes:
        for call in outcome.calls:
            if call.name.startswith("aten::") and work(call) is None:
                missing.update(dict.fromkeys(_missing(call), outcome.op.name))
    new = {name: of for name, of in missing.items() if name not in UNMODELLED and not SPARSE.search(name)}
    assert not new, f"without a formula: {new}"


def test_work_is_a_number(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for call in outcome.calls:
            its = work(call)
            if its is not None:
                numbers = (its.flop, its.transcendental, its.read, its.written)
                assert all(math.isfinite(n) and n >= 0 for n in numbers), (outcome.op.name, call.name, its)


def test_no_more_is_moved_than_was_given_and_returned(outcomes: list[Outcome]) -> None:
    """Of ops that are one call: what is read fits in the arguments' storages, what is written in the results' or, in
    place, in the arguments'."""
    wrong = []
    for outcome in outcomes:
        for calls, given, made in outcome.moved:
            its = work(calls[0]) if len(calls) == 1 and not outcome.op.name.startswith(BYTES_NOT_SEEN) else None
            if its is None:
                continue
            name = calls[0].name
            written = made + (given if name.endswith("_") or "out" in calls[0].overload else 0)
            if its.read > given + made or its.written > written:
                wrong.append(f"{outcome.op.name} ({name}): {its.read} of {given}, {its.written} of {made}")
    assert not wrong, "\n".join(wrong)
