"""Triton's interpreter without what it works out anew at each operation: more than half of its time.

It finds the functions of Triton's language by looking at all members of its modules, at every launch and at every call
of a jitted function; it makes the same types again for each intermediate result; it checks each sum and product of
integers for an overflow by six operations of its own, and says nothing of what it finds. The first two are kept from
one time to the next, the third is left out. The results are the same to the bit, and so are the errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

__all__ = ["VERSION", "cut_costs"]

VERSION = "3.6."  # of Triton, whose insides these are; another one is left as it is

TRUE = tl.constexpr(True)

_is_cut = False


def cut_costs() -> None:
    """From here on, in this process; once is enough. To be called while no kernel is running."""
    global _is_cut
    if _is_cut or not triton.__version__.startswith(VERSION):
        return
    _is_cut = True
    interpreter._patch_builtin = _with_known_members(interpreter._patch_builtin)
    interpreter._get_np_dtype = _with_kept_dtypes(interpreter._get_np_dtype)
    TritonSemantic.binary_op_sanitize_overflow_impl = _where_it_is_said(TritonSemantic.binary_op_sanitize_overflow_impl)
    tl.core.tensor.__init__ = _with_kept_shapes(tl.core.tensor.__init__)
    tl.core.block_type.__init__ = _with_kept_names(tl.core.block_type.__init__)
    tl.core.tuple.__eq__ = _same_object_first(tl.core.tuple.__eq__)


def _with_known_members(own: Callable[..., None]) -> Callable[..., None]:
    """``_patch_builtin``, which asks for the members of a module or class once. What is no longer the function that it
    was has been patched already, by the launch that is running."""
    known = {
        id(holder): [(name, member) for name, member in inspect.getmembers(holder) if tl.core.is_builtin(member)]
        for holder in (tl, tl.core, tl.math, tl.tensor, tl.core.tensor_descriptor_base)
    }

    def patch_builtin(holder: Any, builder: Any, scope: Any) -> None:
        if id(holder) not in known:
            own(holder, builder, scope)
            return
        for name, member in known[id(holder)]:
            if getattr(holder, name) is member:
                interpreter._patch_attr(holder, name, member, builder, scope)

    return patch_builtin


def _with_kept_dtypes(own: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``_get_np_dtype``, which builds a table at each call, asked once for each type of elements."""
    found: dict[str, Any] = {}

    def numpy_dtype(type_: Any) -> Any:
        key = type_.element_ty.name if isinstance(type_, tl.block_type) else type_.name
        if key not in found:
            found[key] = own(type_)
        return found[key]

    return numpy_dtype


def _where_it_is_said(own: Callable[..., None]) -> Callable[..., None]:
    """Whether a sum, difference or product of integers fits their type: of an assertion without debugging, which the
    interpreter has not, nothing is said."""

    def check(self: Any, *given: Any) -> None:
        if self.builder.options.debug:
            own(self, *given)

    return check


def _sizes(shape: Any) -> tuple[int, ...]:
    """A shape in plain numbers: Triton's own tuples are slow to hash and to compare."""
    return tuple(getattr(shape, "values", shape))


def _with_kept_shapes(own: Callable[..., None]) -> Callable[..., None]:
    """A tensor's shape in Triton's constants, made once for each shape. A kernel cannot change them."""
    kept: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def create(self: Any, handle: Any, type: Any) -> None:
        sizes = _sizes(type.shape) if type.is_block() else ()
        if sizes not in kept:
            own(self, handle, type)
            kept[sizes] = (self.numel, self.shape)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = kept[sizes]

    return create


def _with_kept_names(own: Callable[..., None]) -> Callable[..., None]:
    """A block's type: its sizes are checked, and its name is written, once for each."""
    kept: dict[tuple[str, tuple[int, ...]], tuple[Any, int, str]] = {}

    def create(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = _sizes(shape)
        key = (element_ty.name, sizes) if all(type(size) is int for size in sizes) else None
        if key in kept:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = kept[key]
            return
        own(self, element_ty, shape)
        kept[element_ty.name, _sizes(self.shape)] = (self.shape, self.numel, self.name)

    return create


def _same_object_first(own: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Equality of Triton's tuples, of which one is most often compared with itself."""

    def equal(self: Any, other: Any) -> Any:
        return TRUE if other is self else own(self, other)

    return equal
