"""The functions of transformers' recurrent layers: gated delta rule, Mamba-2's scan, the causal convolutions before.

A file of transformers with such a layer (Qwen3-Next, Qwen3.5, Mamba, LFM2, ...) holds functions of its own in torch,
each wrapped so that an optional package's kernel takes its place where one is installed. Those that run torch's are
served by our ops: ``gated_delta_rule`` for a prompt and for a step, ``ssd``, ``causal_conv1d`` and
``causal_conv1d_update``.
Such a function has loops, so it is not followed on symbols: it is recognised by its name and by transformers' files,
and each one's values are compared with the op's before it is replaced.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.nn.functional import CONTRACT_ERRORS, expressible, prefers_torch
from kernelworks.nn.identify import FAILURES, default_torch_modes
from kernelworks.nn.originals import is_from_package, unwrap_decorators
from kernelworks.ops.convolution.causal_conv1d import OP as CAUSAL_CONV1D
from kernelworks.ops.convolution.causal_conv1d_update import OP as CAUSAL_CONV1D_UPDATE
from kernelworks.ops.scan.gated_delta_rule import OP as GATED_DELTA_RULE
from kernelworks.ops.scan.ssd import OP as SSD

__all__ = ["known_recurrence"]

OWN_KERNEL = "is_new_implementation"  # transformers' word for a package's kernel in the place of torch's functions
PACKED_ARGUMENTS = ("cu_seqlens", "seq_idx")  # sequences one behind the other, which the ops take one at a time
TOLERANCE = 1e-4  # of float32's largest value

# function -> (op, what takes its place), or None if it was not recognised
_KNOWN: dict[types.FunctionType, tuple[str, Callable[..., Any]] | None] = {}


def known_recurrence(function: types.FunctionType) -> tuple[str, Callable[..., Any]] | None:
    """Our stand-in for one of these functions where it runs torch's, and the op's name."""
    entry = _FUNCTIONS.get(function.__name__)
    if entry is None or not is_from_package("transformers", function):
        return None
    if function not in _KNOWN:
        op, agrees, make = entry
        own = unwrap_decorators(function, "transformers")
        with contextlib.suppress(*FAILURES, IndexError):
            same = own is not None and not _has_own_kernel(function) and agrees(own)
            _KNOWN[function] = (op.name, make(function)) if same else None
        _KNOWN.setdefault(function, None)
    return _KNOWN[function]


def _has_own_kernel(function: types.FunctionType) -> bool:
    """Whether a wrapper calls an optional package's kernel, or somebody's of whom we know nothing."""
    if not hasattr(function, "__wrapped__"):
        return False
    return inspect.getclosurevars(function).nonlocals.get(OWN_KERNEL) is not False


def _is_plain(given: dict[str, Any]) -> bool:
    """Whether no argument asks for packed sequences. What else transformers hands on, its functions leave unread."""
    return all(given.get(name) is None for name in PACKED_ARGUMENTS)


# ---------------------------------------------------------------- stand-ins


def _delta_rule(function: Callable[..., Any]) -> Callable[..., Any]:
    names = tuple(inspect.signature(function).parameters)  # chunk_size is in the one for prompts alone
    takes_chunks = "chunk_size" in names

    def gated_delta_rule(
        query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, *rest: Any, **named: Any
    ) -> Any:  # fmt: skip
        options = dict(zip(("chunk_size",) * takes_chunks + _STATE, rest, strict=False)) | named
        state = options.get("initial_state")
        wide = tuple(t for t in (g, beta, state) if t is not None and t.dtype is torch.float32)
        own = tuple(t for t in (g, beta) if t.dtype is not torch.float32)
        if (
            _is_plain(options)
            and expressible(query, key, value, *own)
            and (not wide or expressible(*wide))
            and all(t.device == query.device for t in wide)
        ):
            asked = (
                query, key, value, g, beta, None, None if state is None else state.to(torch.float32),
                options.get("output_final_state", False), options.get("use_qk_l2norm_in_kernel", False),
            )  # fmt: skip
            with contextlib.suppress(*CONTRACT_ERRORS):
                if not prefers_torch(GATED_DELTA_RULE, *asked):
                    made = GATED_DELTA_RULE.call(*asked, None, None)
                    return made if asked[7] else (made, None)
        return function(query, key, value, g, beta, *rest, **named)

    return gated_delta_rule


def _scanned(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None, dt_softplus: bool = False, dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """The arguments of ``ssd``: all in float32, as transformers computes, and steps of time as they are used."""
    if dt_bias is not None:
        dt = dt + dt_bias.to(dt.dtype)
    if dt_softplus:
        dt = torch.nn.functional.softplus(dt)
    dt = torch.clamp(dt, min=dt_limit[0], max=dt_limit[1])
    wide = (None if t is None else t.float() for t in (x, dt, A, B, C, D, initial_states))
    return *wide, None, return_final_states


def _chunk_scan(function: Callable[..., Any]) -> Callable[..., Any]:
    def mamba2_chunk_scan(
        hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk_size: int, *rest: Any, **named: Any
    ) -> Any:  # fmt: skip
        options = dict(zip(_SCAN, rest, strict=False)) | named
        if _is_plain(options):
            with contextlib.suppress(*CONTRACT_ERRORS):
                asked = _scanned(
                    hidden_states, dt, A, B, C, **{n: value for n, value in options.items() if n in _SCAN}
                )  # fmt: skip
                if expressible(*(t for t in asked if isinstance(t, Tensor))) and not prefers_torch(SSD, *asked):
                    return SSD.call(*asked, None, None)
        return function(hidden_states, dt, A, B, C, chunk_size, *rest, **named)

    return mamba2_chunk_scan


def _convolution(function: Callable[..., Any]) -> Callable[..., Any]:
    def causal_conv1d_fn(
        hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None, **named: Any
    ) -> Any:  # fmt: skip
        if _is_plain(named) and expressible(hidden_states, weight, bias):
            asked = (hidden_states, weight, bias, None, activation, False)
            with contextlib.suppress(*CONTRACT_ERRORS):
                if not prefers_torch(CAUSAL_CONV1D, *asked):
                    return CAUSAL_CONV1D.call(*asked, None, None)
        return function(hidden_states, weight, bias, activation=activation, **named)

    return causal_conv1d_fn


def _convolution_update(function: Callable[..., Any]) -> Callable[..., Any]:
    def causal_conv1d_update(
        hidden_states: Tensor, conv_state: Tensor, weight: Tensor, bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Any:  # fmt: skip
        if hidden_states.dim() == 3 and expressible(hidden_states, conv_state, weight, bias):
            asked = (hidden_states, conv_state, weight, bias, activation)
            with contextlib.suppress(*CONTRACT_ERRORS):
                if not prefers_torch(CAUSAL_CONV1D_UPDATE, *asked):
                    return CAUSAL_CONV1D_UPDATE.call(*asked, None, None)
        return function(hidden_states, conv_state, weight, bias, activation)

    return causal_conv1d_update


# ---------------------------------------------------------------- values


def _close(got: Any, want: Tensor) -> bool:
    if not isinstance(got, Tensor) or got.dtype is not want.dtype or got.shape != want.shape:
        return False
    return bool(((got - want).abs() <= TOLERANCE * want.abs().max()).all())


def _drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, device="cpu") for shape in shapes]


def _is_delta_rule(function: Callable[..., Any]) -> bool:
    """Of a sequence that no chunk divides and of one step, with and without a state, grouped heads and gates that
    close."""
    for steps in (70, 1):
        for normal in (True, False):
            q, k, v, g, beta, state = _drawn(
                (2, steps, 2, 5), (2, steps, 2, 5), (2, steps, 4, 3), (2, steps, 4), (2, steps, 4), (2, 4, 5, 3)
            )
            q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
            for first in (state, None):
                named = {
                    "g": -g.abs(), "beta": beta.sigmoid(), "initial_state": first, "output_final_state": True,
                    "use_qk_l2norm_in_kernel": normal,
                }  # fmt: skip
                with default_torch_modes(), torch.no_grad():
                    got, want = function(q, k, v, **named), GATED_DELTA_RULE.composite(q, k, v, **named)
                    if not all(_close(a, b) for a, b in zip(got, want, strict=True)):
                        return False
    return True


def _is_chunk_scan(function: Callable[..., Any]) -> bool:
    """Of a sequence that no chunk divides and of one step, with and without a state, with steps of time as they are and
    as a layer hands them over."""
    for steps in (37, 1):
        x, dt, rates, b, c, skips, bias, states = _drawn(
            (2, steps, 4, 3), (2, steps, 4), (4,), (2, steps, 2, 5), (2, steps, 2, 5), (4,), (4,), (2, 4, 3, 5)
        )
        plain: dict[str, Any] = {"initial_states": states, "return_final_states": True, "D": skips}
        raw: dict[str, Any] = {
            "dt_bias": bias,
            "dt_softplus": True,
            "dt_limit": (0.1, 0.9),
            "return_final_states": True,
            "D": skips,
        }
        for times, named in ((dt.sigmoid(), plain), (dt, raw)):
            given = (x, times, -rates.abs(), b, c)
            with default_torch_modes(), torch.no_grad():
                got, want = function(*given, 16, **named), SSD.composite(*_scanned(*given, **named))
                if not all(_close(a, w) for a, w in zip(got, want, strict=True)):
                    return False
    return True


def _is_convolution(function: Callable[..., Any]) -> bool:
    x, weight, bias = _drawn((2, 3, 7), (3, 4), (3,))
    with default_torch_modes(), torch.no_grad():
        return all(
            _close(
                function(x, weight, given, activation=activation),
                CAUSAL_CONV1D.composite(x, weight, given, None, activation, False),
            )
            for given in (bias, None)
            for activation in ("silu", None)
        )


def _is_convolution_update(function: Callable[..., Any]) -> bool:
    for size in (3, 4, 6):
        x, states, weight, bias = _drawn((2, 3, 1), (2, 3, size), (3, 4), (3,))
        for activation in ("silu", None):
            theirs, ours = states.clone(), states.clone()
            with default_torch_modes(), torch.no_grad():
                got = function(x, theirs, weight, bias, activation)
                want = CAUSAL_CONV1D_UPDATE.composite(x, ours, weight, bias, activation)
            if not _close(got, want) or not torch.equal(theirs, ours):
                return False
    return True


_STATE = ("initial_state", "output_final_state", "use_qk_l2norm_in_kernel")  # in the order of transformers' arguments
_SCAN = ("D", "dt_bias", "initial_states", "dt_softplus", "dt_limit", "return_final_states")  # behind chunk_size
_FUNCTIONS: dict[str, tuple[Any, Callable[..., bool], Callable[..., Any]]] = {
    "torch_chunk_gated_delta_rule": (GATED_DELTA_RULE, _is_delta_rule, _delta_rule),
    "torch_recurrent_gated_delta_rule": (GATED_DELTA_RULE, _is_delta_rule, _delta_rule),
    "mamba2_chunk_scan": (SSD, _is_chunk_scan, _chunk_scan),
    "causal_conv1d_fn": (CAUSAL_CONV1D, _is_convolution, _convolution),
    "causal_conv1d_update": (CAUSAL_CONV1D_UPDATE, _is_convolution_update, _convolution_update),
}
