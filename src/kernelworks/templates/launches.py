"""The launches of an op template's C++ functions, written out for an op's arguments.

Small calls are made by the thousand, and a call that names its arguments costs 60 ns less than one that passes them on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import Arguments, tensors, words
from kernelworks.contract.memory_layout import as_rows
from kernelworks.contract.numbers import reals

__all__ = ["backward_of", "forward_of", "norm_forward", "norm_text", "written_backward", "written_forward"]

Bind = Callable[[Any], Callable[..., Any]]  # from a library to what calls its function

_FORWARD = """
def bind(library):
    kernel = {kernel}
    def forward({arguments}, out=None):
        output = empty_like({first}) if out is None else out
        run, threads = shared(kernel{chosen}, {first}.numel())
        run(output, {tensors}, threads)
        return output
    return forward
"""

_BACKWARD = """
def bind(library):
    kernel = {kernel}
    def backward(grad, {arguments}, needs, out=None):
        {grads} = ({made}) if out is None else out
        run, threads = shared(kernel{chosen}, {first}.numel())
        run({grads}, grad, {tensors}, threads)
        return {grads}
    return backward
"""


def _kernels(name: str, suffix: str, arguments: Arguments) -> tuple[str, str]:
    """The library's function, or one for each word; and how a call picks it."""
    spoken = words(arguments)
    if not spoken:
        return f"library.{name}{suffix}", ""
    ((argument, choices),) = spoken.items()
    table = ", ".join(f"{word!r}: library.{name}_{word}{suffix}" for word in choices)
    return f"{{{table}}}", f"[{argument}]"


def written_forward(name: str, arguments: Arguments) -> str:
    """The forward's launch as text."""
    kernel, chosen = _kernels(name, "", arguments)
    given = tensors(arguments)
    return _FORWARD.format(
        kernel=kernel,
        chosen=chosen,
        arguments=", ".join(arguments),
        first=given[0],
        tensors=", ".join((*given, *reals(arguments))),
    )


def written_backward(name: str, arguments: Arguments) -> str:
    """The backward's launch as text."""
    kernel, chosen = _kernels(name, "_backward", arguments)
    given = tensors(arguments)
    return _BACKWARD.format(
        kernel=kernel, chosen=chosen, arguments=", ".join(arguments), first=given[0],
        tensors=", ".join((*given, *reals(arguments))),
        grads=", ".join(f"grad_{t}" for t in given), made=", ".join(f"empty_like({t})" for t in given),
    )  # fmt: skip


def _made(text: str) -> Bind:
    scope: dict[str, Any] = {
        "as_rows": as_rows, "empty": torch.empty, "empty_like": torch.empty_like, "shared": choose_threads,
    }  # fmt: skip
    exec(text, scope)
    bind: Bind = scope["bind"]
    vars(bind)["written"] = text  # for a kernel's hash: it lies in no file
    return bind


def forward_of(name: str, arguments: Arguments) -> Bind:
    """The launch of ``name``, or of ``name_word`` for each word: ``forward(*args, out=None)`` once it has a library."""
    return _made(written_forward(name, arguments))


def backward_of(name: str, arguments: Arguments) -> Bind:
    """The launch of ``name_backward``: ``backward(grad, *args, needs, out=None)``."""
    return _made(written_backward(name, arguments))


_NORM = """
def bind(library):
    kernel = library.{name}
    def forward({arguments}, out=None):
{contiguous}
        run, threads = shared(kernel, x.numel())
{body}
    return forward
"""
_ALONE = """
        output = empty(x.shape, dtype=x.dtype) if out is None else out
        run(output, None, as_rows(x), None, {parameters}, eps, threads)
        return output
"""
_BESIDE = """
        made = (empty(x.shape, dtype=x.dtype), empty(x.shape, dtype=x.dtype)) if out is None else out
        run(*made, as_rows(x), as_rows(residual), {parameters}, eps, threads)
        return made
"""


def norm_text(name: str, arguments: tuple[str, ...], *, optional: bool) -> str:
    """The launch of a norm (``simd/norm.hpp``) as text. ``optional``: a residual may be None; then there is no sum."""
    given = [n for n in ("weight", "bias") if n in arguments]
    parameters = ", ".join(n if n in given else "None" for n in ("weight", "bias"))
    body = _BESIDE if "residual" in arguments else _ALONE
    if optional:
        body = "\n        if residual is None:" + _ALONE.replace("\n    ", "\n        ") + _BESIDE
    contiguous = "\n".join(
        f"        if {n} is not None and not {n}.is_contiguous():\n            {n} = {n}.contiguous()" for n in given
    )
    return _NORM.format(
        name=name, arguments=", ".join(arguments), contiguous=contiguous, body=body.format(parameters=parameters)
    )


def norm_forward(name: str, arguments: tuple[str, ...], *, optional: bool) -> Bind:
    """The launch of a norm: ``forward(*args, out=None)`` once it has a library."""
    return _made(norm_text(name, arguments, optional=optional))
