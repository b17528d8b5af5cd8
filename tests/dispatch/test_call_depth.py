"""How many hands a warm call goes through: those that docs/explanation/architecture.md names, and no more."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kernelworks as kw
from kernelworks.build import native, sharing
from kernelworks.dispatch.op import OPS

PAGE = Path(__file__).resolve().parents[2] / "docs/explanation/architecture.md"
MOST = 5


def one(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "attention": ((one(1, 2, 3, 16), one(1, 2, 3, 16), one(1, 2, 3, 16)), {}),
    "cross_entropy": ((one(3, 8), torch.tensor([1, 2, 3])), {}),
    "embedding": ((torch.tensor([1, 2]), one(4, 8)), {}),
    "gelu": ((one(3, 8),), {"approximate": "tanh"}),
    "layer_norm": ((one(3, 8), one(8), one(8)), {"eps": 1e-5}),
    "linear": ((one(3, 8), one(4, 8)), {}),
    "relu": ((one(3, 8),), {}),
    "rms_norm": ((one(3, 8), one(8)), {"eps": 1e-5}),
    "silu_mul": ((one(3, 8), one(3, 8)), {}),
    "softmax": ((one(3, 8),), {}),
}


def python_frames(name: str) -> list[str]:
    """The functions of Python's that hand a warm call on, the launch last: it is what asks how many threads to take."""
    function, (given, named) = getattr(kw, name), CALLS[name]
    for _ in range(3):
        function(*given, kernel="scalar", **named)
    open_, found = [], []

    def seen(frame: Any, event: str, arg: Any) -> None:
        if event == "call":
            if frame.f_code is sharing.choose_threads.__code__:
                found.append(list(open_))
            open_.append(frame.f_code.co_qualname)
        elif event == "return" and open_:
            open_.pop()

    sys.setprofile(seen)
    try:
        function(*given, kernel="scalar", **named)
    finally:
        sys.setprofile(None)
    (chain,) = found
    return chain


@pytest.mark.parametrize("name", CALLS)
def test_a_warm_call_takes_the_hops_that_are_named(name: str) -> None:
    assert native.find_extension() is not None, native.fallback_reason()
    OPS[name].entry.use_module(native.find_extension())
    chain = python_frames(name)
    public = 1 if chain[0] != name else 0  # C++ runs in its place
    entry = exported = kernel = 1  # C++ all three
    assert public + entry + len(chain) + exported + kernel <= MOST, chain


def test_the_page_names_as_many() -> None:
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## A warm call") :].split("\n## ")[0]
    assert len(re.findall(r"^\d\. ", section, re.M)) == MOST
    assert "```" in section  # drawn
