"""Rotary embeddings as transformers' models write them, verified as ``identify.py`` verifies forwards."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from kernelworks.nn import functional
from kernelworks.nn.identify import FAILURES, ForwardReads, NotIdentified, check, default_torch_modes

__all__ = ["known_rotary", "rotary_globals"]

NAME = "apply_rotary_pos_emb"
_ARGUMENTS = ("q", "k", "cos", "sin", "unsqueeze_dim")
_NAMES = frozenset({"cat", "shape", "unsqueeze"})
_RECORDED = frozenset({"add", "cat", "floordiv", "getattr", "getitem", "mul", "neg", "unsqueeze"})
_is_compiling = torch.compiler.is_compiling

# function -> what takes its place, and the globals that the verification read; None if it was not identified
_KNOWN: dict[types.FunctionType, tuple[Callable[..., Any], list[tuple[dict[str, Any], str, Any]]] | None] = {}


def known_rotary(function: types.FunctionType) -> tuple[str, Callable[..., Any]] | None:
    """Our stand-in for a function that is verified to be Llama's rotary embedding: halves of each head are turned."""
    if function.__name__ != NAME:
        return None
    if function not in _KNOWN:
        _KNOWN[function] = None
        with contextlib.suppress(NotIdentified, *FAILURES):
            seen = _structure(function)
            if _agrees(function):
                _KNOWN[function] = _stand_in(function, seen.globals), seen.globals
    found = _KNOWN[function]
    return None if found is None else (functional.ROPE.name, found[0])


def rotary_globals(function: Any) -> tuple[tuple[dict[str, Any], str, Any], ...]:
    """The globals that must be what they were for the verification to hold."""
    found = _KNOWN.get(function)
    return () if found is None else tuple(found[1])


def _stand_in(function: types.FunctionType, read: list[tuple[dict[str, Any], str, Any]]) -> Callable[..., Any]:
    def apply_rotary_pos_emb(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> Any:
        if not _is_compiling():
            for space, name, value in read:
                if space.get(name) is not value:
                    return function(q, k, cos, sin, unsqueeze_dim)
        return functional.rotary(q, k, cos, sin, unsqueeze_dim, otherwise=function)

    return apply_rotary_pos_emb


def _structure(function: types.FunctionType) -> ForwardReads:
    code, seen = function.__code__, ForwardReads()
    if code.co_varnames[: code.co_argcount] != _ARGUMENTS or function.__defaults__ != (1,) or code.co_kwonlyargcount:
        raise NotIdentified("it takes other arguments")
    check(None, function, seen, _NAMES)
    graph = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(graph)
    function(*(fx.Proxy(graph.placeholder(name), tracer) for name in _ARGUMENTS[:4]))
    for node in graph.nodes:
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if node.op != "placeholder" and name not in _RECORDED:
            raise NotIdentified(f"it calls {name}")
        if node.kwargs.keys() - {"dim"} or (name == "getattr" and node.args[1] != "shape"):
            raise NotIdentified(f"it calls {name} with something else")
    return seen


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def _agrees(function: Callable[..., Any]) -> bool:
    generator = torch.Generator().manual_seed(0)

    def some(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(dtype).requires_grad_()

    with default_torch_modes():
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            given = some(dtype, 2, 4, 3, 8), some(dtype, 2, 2, 3, 8), some(dtype, 2, 3, 8), some(dtype, 2, 3, 8)
            want, got = [_turned(x, *given[2:]) for x in given[:2]], function(*given)
            if not isinstance(got, tuple) or len(got) != 2 or [g.dtype for g in got] != [dtype, dtype]:
                return False
            flows = [some(dtype, *w.shape) for w in want]
            true = torch.autograd.grad(want, given, flows)
            made = torch.autograd.grad(list(got), given, flows)
            for a, b in zip((*got, *made), (*want, *true), strict=True):
                if a.shape != b.shape or not bool(((a - b).abs() <= 16 * torch.finfo(dtype).eps * b.abs().max()).all()):
                    return False
    return True
