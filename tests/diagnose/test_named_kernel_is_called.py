"""The row that a diagnosis names is the one that the swapped call would take: one chooser."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from made_tuning_records import add_tuning_record, no_tuning_records
from torch import Tensor

from kernelworks.diagnose.explain import what_it_asks
from kernelworks.diagnose.forecast.races import Races
from kernelworks.dispatch import certificates
from kernelworks.dispatch.choose import choose
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import by_operator
from kernelworks.nn.functional import FUNCTIONS
from kernelworks.profile.call_sites import Survey
from kernelworks.profile.recording import record


def _x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(shape, dtype=dtype)


HALF = torch.bfloat16
Q, MASK = (1, 4, 16, 32), (1, 1, 16, 16)

# what a user calls: function of torch.nn.functional, its arguments
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "linear": ("linear", (_x(40, 64), _x(16, 64)), {}),
    "linear, one row in bfloat16": ("linear", (_x(1, 64, dtype=HALF), _x(16, 64, dtype=HALF)), {}),
    "linear, rows in bfloat16": ("linear", (_x(40, 64, dtype=HALF), _x(16, 64, dtype=HALF), _x(16, dtype=HALF)), {}),
    "linear in float64": ("linear", (_x(4, 8, dtype=torch.float64), _x(8, 8, dtype=torch.float64)), {}),
    "attention": ("scaled_dot_product_attention", (_x(*Q), _x(*Q), _x(*Q)), {"is_causal": True}),
    "attention, mask of truths": (
        "scaled_dot_product_attention", (_x(*Q), _x(*Q), _x(*Q)), {"attn_mask": torch.ones(MASK, dtype=torch.bool)},
    ),
    "attention, mask of floats": (
        "scaled_dot_product_attention", (_x(*Q), _x(*Q), _x(*Q)), {"attn_mask": _x(*MASK)},
    ),
    "attention that drops out": ("scaled_dot_product_attention", (_x(*Q), _x(*Q), _x(*Q)), {"dropout_p": 0.5}),
    "attention, wide heads": ("scaled_dot_product_attention", (_x(1, 1, 4, 300),) * 3, {}),
    "gelu": ("gelu", (_x(4, 64),), {"approximate": "tanh"}),
    "softmax": ("softmax", (_x(4, 64),), {"dim": -1}),
    "softmax in another dtype": ("softmax", (_x(4, 64),), {"dim": -1, "dtype": torch.float64}),
    "layer_norm": ("layer_norm", (_x(4, 64), (64,), _x(64), _x(64)), {}),
    "layer_norm without weights": ("layer_norm", (_x(4, 64), (64,)), {}),
    "layer_norm of two dimensions": ("layer_norm", (_x(4, 8, 8), (8, 8), _x(8, 8), _x(8, 8)), {}),
    "rms_norm": ("rms_norm", (_x(4, 64), (64,), _x(64)), {"eps": 1e-6}),
    "rms_norm, torch's own eps": ("rms_norm", (_x(4, 64, dtype=HALF), (64,), _x(64, dtype=HALF)), {}),
    "cross_entropy": ("cross_entropy", (_x(4, 64), torch.zeros(4, dtype=torch.int64)), {"reduction": "sum"}),
    "cross_entropy, smoothed": (
        "cross_entropy", (_x(4, 64), torch.zeros(4, dtype=torch.int64)), {"label_smoothing": 0.1},
    ),
    "cross_entropy with probabilities": ("cross_entropy", (_x(4, 64), _x(4, 64)), {}),
}  # fmt: skip


def _by_the_swapped_call(call: Callable[[], Any]) -> str:
    """What happens to the call once swapped, asked of the dispatcher itself."""
    try:
        op, args, _ = what_it_asks(call)
    except ValueError:
        return ""
    row = choose(op, op.request("forward", args)).kernel
    return f"kw.{op.name}: {row.name}" if row.source is not None else ""


@pytest.mark.parametrize("proved", ["all", "none"])
@pytest.mark.parametrize("name", CALLS)
def test_the_row_named_is_the_row_that_a_swapped_call_takes(
    name: str, proved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = None if proved == "all" else "not proved"
    monkeypatch.setattr(certificates, "invalid_reason", lambda op, row, kind=None: reason if row.source else None)
    for op in OPS.values():  # whether a build works is not the question: the rows themselves are
        for row in op.kernels:
            monkeypatch.setitem(row.__dict__, "load", lambda pass_: None)
    function, args, kwargs = CALLS[name]
    with torch.no_grad():
        trace = record(lambda: getattr(F, function)(*args, **kwargs), survey=Survey())
        expected = _by_the_swapped_call(lambda: FUNCTIONS[function](*args, **kwargs))
    found = [Races(0.0, torch.get_num_threads()).of(c).kernel for c in trace.calls]
    named = [c.name.removeprefix("aten::") for c in trace.calls]
    spelled = [row for row, op in zip(found, named, strict=True) if by_operator(op) is not None]
    assert spelled == [expected]
    assert (proved == "all") >= bool(expected)


@pytest.mark.parametrize("verdict", [1.5, 0.8, None])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_by_timings_too(name: str, trained: bool, verdict: float | None, tmp_path: Path) -> None:
    """... of forwards and of what autograd records, each by its own timings."""
    function, args, kwargs = CALLS[name]
    first, *others = args
    first = first.clone().requires_grad_(trained)
    call = functools.partial(getattr(F, function), first, *others, **kwargs)
    with no_tuning_records(tmp_path):
        try:
            op, asked, _ = what_it_asks(functools.partial(FUNCTIONS[function], first, *others, **kwargs))
        except ValueError:
            return  # it stays torch's
        wanted = op.inputs_requiring_grad(asked) if trained else ()
        if verdict is not None:
            add_tuning_record(op.name, *asked, ratio=verdict, wanted=wanted)
        takes = op.choice(asked, None, wanted)
        assert takes.native == (verdict != 1.5)

        def run() -> None:
            out = call()
            if trained:
                out.sum().backward()

        with torch.set_grad_enabled(trained):
            trace = record(run, survey=Survey())
        found = [Races(0.0, torch.get_num_threads()).of(c).kernel for c in trace.calls if not c.backward]
        assert [row for row in found if row] == ([] if takes.native else [f"kw.{op.name}: {takes.way}"])
