"""Plans lie in a dictionary or in C++: whichever it is, the same calls share one, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernelworks.build import native
from kernelworks.dispatch.plans import NATIVE, Dictionary, Plan

X = torch.ones(3, 4)
with torch.inference_mode():
    INFERRED = torch.ones(3, 4)
Call = tuple[str, int, tuple[Any, ...], Any, str | None]
BASE: Call = ("forward", 0, (X, None, 1e-6, [X, X], True, 3, "tanh"), None, None)


def call(place: int | None = None, value: Any = None, **changed: Any) -> Call:
    """The base with one argument, or something else of it, in another way."""
    what, wanted, args, out, kernel = BASE
    args = tuple(value if i == place else a for i, a in enumerate(args))
    return (
        changed.get("what", what), changed.get("wanted", wanted), args, changed.get("out", out),
        changed.get("kernel", kernel)
    )  # fmt: skip


OTHERS: dict[str, tuple[Call, bool]] = {  # and whether it shares the base's plan
    "other data": (call(0, torch.zeros(3, 4)), True),
    "a view that lies the same": (call(0, torch.zeros(5, 4)[1:4]), True),
    "a parameter": (call(0, torch.nn.Parameter(X, requires_grad=False)), True),
    "one that inference made": (call(0, INFERRED), True),
    "another size": (call(0, torch.ones(3, 5)), False),
    "another number of dimensions": (call(0, torch.ones(12)), False),
    "other strides": (call(0, torch.ones(4, 3).t()), False),
    "another dtype": (call(0, X.double()), False),
    "a tensor where none was": (call(1, X), False),
    "none where a tensor was": (call(0, None), False),
    "another number": (call(2, 1e-5), False),
    "a whole number": (call(2, 1), False),
    "a longer list": (call(3, [X, X, X]), False),
    "another list": (call(3, [X, X.double()]), False),
    "a tuple": (call(3, (X, X)), True),
    "1 for True": (call(4, 1), False),
    "False": (call(4, False), False),
    "True for 3": (call(5, True), False),
    "3.0 for 3": (call(5, 3.0), False),
    "another text": (call(6, "none"), False),
    "a kernel": (call(kernel="scalar"), False),
    "out": (call(out=X), False),
    "another pass": (call(what="backward"), False),
    "gradients": (call(what="training", wanted=1), False),
}


@pytest.fixture(params=["C++", "Python"])
def table(request: pytest.FixtureRequest) -> Any:
    if request.param == "Python":
        return Dictionary()
    module = native.find_extension()
    assert module is not None, native.fallback_reason()
    return module.Table()


@pytest.mark.parametrize("name", OTHERS)
def test_calls_that_look_alike_share_a_plan(name: str, table: Any) -> None:
    plan = Plan(NATIVE, lambda *args: None, lambda *args: None)
    table.keep(*BASE, plan)
    assert len(table) == 1 and table.find(*BASE) is plan
    other, shares = OTHERS[name]
    assert (table.find(*other) is plan) is shares
    table.keep(*other, plan)
    assert len(table) == 2 - shares and table.find(*other) is plan


def test_another_number_of_threads_asks_anew(table: Any) -> None:
    before = torch.get_num_threads()
    table.keep(*BASE, Plan(NATIVE, print, print))
    try:
        torch.set_num_threads(before + 1)
        assert table.find(*BASE) is None
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("odd", [object(), torch.ones(2).to_sparse(), {1: 2}], ids=["object", "sparse", "dict"])
def test_what_cannot_be_described_is_not_kept(odd: Any, table: Any) -> None:
    table.keep(*call(0, odd), Plan(NATIVE, print, print))
    assert table.find(*call(0, odd)) is None or len(table) == 1  # a dictionary knows an object by itself
