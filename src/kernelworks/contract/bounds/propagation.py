"""The run of a reference under which reference and error grow beside its own numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.contract.bounds.attention import as_kernels
from kernelworks.contract.bounds.call import Call, NoBoundError, Result, words
from kernelworks.contract.bounds.error import Error, sum_errors
from kernelworks.contract.bounds.pointwise import DECISIONS, EXACT, OWN, pointwise, rounding_error
from kernelworks.contract.bounds.selection import CHOICES, MOVES, choice, conversion, move
from kernelworks.contract.bounds.shadows import Shadows
from kernelworks.contract.bounds.sums import (
    LANDINGS,
    PRODUCTS,
    SUMS,
    added_error,
    begun_error,
    convolution_backward,
    product,
    scatter,
    summation,
    terms_of,
    variance,
)

__all__ = ["ErrorPropagationMode", "without_fused_kernels"]

Rule = Callable[[Call, Sequence[Tensor]], list[Result]]

RULES: dict[str, Rule] = {
    **dict.fromkeys(EXACT | OWN.keys() | DECISIONS, pointwise),
    **dict.fromkeys(SUMS, summation),
    **dict.fromkeys(PRODUCTS, product),
    **dict.fromkeys(LANDINGS, scatter),
    **dict.fromkeys(MOVES, move),
    **dict.fromkeys(CHOICES, choice),
    **dict.fromkeys(("var", "var_mean"), variance),
    **dict.fromkeys(("_to_copy", "to"), conversion), "convolution_backward": convolution_backward,
}  # fmt: skip
BIASED_PRODUCTS = ("addmm", "addmv", "baddbmm")  # products to which something is added
# Their results are data: what was drawn or filled in the native run is what every implementation is given.
DATA = words(
    """rand randn randint randperm rand_like randn_like randint_like normal uniform bernoulli random exponential cauchy
    geometric log_normal multinomial poisson native_dropout empty empty_like empty_strided new_empty new_empty_strided
    zeros zeros_like new_zeros ones ones_like new_ones full full_like new_full scalar_tensor arange linspace eye
    tril_indices triu_indices fill zero _efficientzerotensor set resize"""
)
FILLERS = words("full full_like new_full fill scalar_tensor linspace")
DRAWS = 4  # of an op without a rule, with its operands moved within their errors
MARGIN = 4.0  # by how much more than what was seen then it may be off


class ErrorPropagationMode(TorchDispatchMode):
    """``shadows`` hold reference and error of every tensor that is alive. ``unknown`` are ops without a rule, bounded
    by how far their results move. Raises ``NoBoundError`` where an op cannot be run in float64 and has no rule."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shadows = Shadows()
        self.unknown: dict[str, int] = {}
        self.ops: dict[str, int] = {}
        self._breaking: list[Any] = []  # ops that are being taken apart: one that is made of itself is not again

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten":
            return self._foreign(func, args, kwargs)
        name = func.overloadpacket.__name__
        plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        _plain(tensors, func)
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if _looks(func):
            native = func(*args, **kwargs)
            if _views(native, tensors) or plain not in RULES:
                return native  # another way to look at the same bytes, and so at what stands beside them
            return self._followed(func, args, kwargs, native)
        if plain not in RULES and plain not in DATA and plain not in ("copy", "_local_scalar_dense", "equal"):
            begun = (
                Call(func, args, kwargs, self.shadows)
                if plain in BIASED_PRODUCTS and func not in self._breaking
                else None
            )
            broken = self._broken_down(func, args, kwargs)
            if begun is not None:
                self._begin_with(begun, broken)
            if broken is not NotImplemented:
                return broken
        self.ops[plain] = self.ops.get(plain, 0) + 1
        if plain in DATA:
            return self._data(func, args, kwargs)
        if plain == "copy":
            return self._copied(func, args, kwargs)
        if not any(t.dtype.is_floating_point or self.shadows.has_shadow(t) for t in tensors):
            return func(*args, **kwargs)
        return self._followed(func, args, kwargs)

    def _followed(self, func: Any, args: Any, kwargs: Any, native: Any = None) -> Any:
        """The native result, with reference and error put beside it."""
        call = Call(func, args, kwargs, self.shadows)
        native = func(*args, **kwargs) if native is None else native
        outputs = [t for t in pytree.tree_leaves(native) if isinstance(t, Tensor)]
        if not outputs or not (call.floats or call.unsure):
            return native
        for output, result in zip(outputs, self._results(call, call.name, outputs), strict=True):
            error = result.error
            if error is not None and (begun := self._begun(call, output)) is not None:
                error = sum_errors([error, begun])
            self.shadows.put(output, result.value, error, result.unsure)
        if len(outputs) == 1 and call.floats:
            self.shadows.put_terms(outputs[0], terms_of(call, outputs[0]))
        return native

    def _begun(self, call: Call, output: Tensor) -> Error | None:
        """What a sum rounds more that begins with what is added to it; of a product with an addend ``_begin_with`` says
        that."""
        within = any(func.overloadpacket.__name__ in BIASED_PRODUCTS for func in self._breaking)
        return None if within else added_error(call, output)

    def _results(self, call: Call, name: str, outputs: Sequence[Tensor]) -> list[Result]:
        rule = RULES.get(name)
        if not call.floats and rule not in (pointwise, move, conversion):
            return [Result(None, None, _hanging(call, output)) for output in outputs]
        if rule is None and torch.Tag.pointwise in call.func.tags and len(outputs) == 1:
            rule = pointwise
            self.unknown[name] = self.unknown.get(name, 0) + 1
        try:
            return rule(call, outputs) if rule is not None else self._measured(call, outputs)
        except NoBoundError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
            said = str(error).strip().splitlines()
            raise NoBoundError(f"{name}: {said[0][:160] if said else type(error).__name__}") from error

    def _broken_down(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op that has no rule of its own, as torch says it in others."""
        if func in self._breaking:
            return NotImplemented
        made_of = decomposition_table.get(func, func.decompose)
        self._breaking.append(func)
        try:
            with self:
                return made_of(*args, **kwargs)
        finally:
            self._breaking.pop()

    def _begin_with(self, call: Call, native: Tensor) -> None:
        """Kernels end a sum with what is added to it, or begin it so."""
        value, error = self.shadows.value(native), self.shadows.error(native)
        first = (call.leaves[call.floats[0]] * call.argument("beta", 1)).abs().expand(value.shape)
        terms = int(call.leaves[call.floats[1]].shape[-1])
        own = begun_error(first, terms, native.dtype, call.label(terms))
        self.shadows.put(native, value, own if error is None else sum_errors([error, own]))
        self.shadows.put_terms(native, terms)

    def _foreign(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func.namespace in ("prim", "profiler"):
            return func(*args, **kwargs)
        if func.namespace == "prims":  # what torch's own decompositions are made of
            with self:
                return func.overloadpacket.impl_aten(*args, **kwargs)
        raise NoBoundError(f"{func}: it is no op of torch's")

    def _data(self, func: Any, args: Any, kwargs: Any) -> Any:
        native = func(*args, **kwargs)
        for tensor in pytree.tree_leaves(native):
            if isinstance(tensor, Tensor) and (tensor.dtype.is_floating_point or self.shadows.has_shadow(tensor)):
                self.shadows.put(tensor, None, _filled(func, args, tensor))
        return native

    def _copied(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[0], args[1]
        value, error = self.shadows.value(source), None
        if source.dtype.is_floating_point:
            error = self.shadows.error(source)
        unsure = None if source.dtype.is_floating_point else self.shadows.unsure(source)
        native = func(*args, **kwargs)
        if not target.dtype.is_floating_point:
            self.shadows.put(target, None, None, unsure)
            return native
        wide = value.to(torch.float64).expand(target.shape)
        parts = [] if error is None else [error.map_parts(lambda t: t.expand(target.shape))]
        if source.dtype.is_floating_point and torch.finfo(target.dtype).eps > torch.finfo(source.dtype).eps:
            parts.append(rounding_error(wide, target.dtype, "copy"))
        self.shadows.put(target, wide, sum_errors(parts) if parts else None)
        return native

    def _measured(self, call: Call, outputs: Sequence[Tensor]) -> list[Result]:
        """An op without a rule: by how far its results move when its operands do, within what they carry and a few
        roundings of their own."""
        self.unknown[call.name] = self.unknown.get(call.name, 0) + 1
        found = call.run()
        values = list(found) if isinstance(found, (tuple, list)) else [found]
        most = [torch.zeros_like(v, dtype=torch.float64) for v in values]
        generator = torch.Generator().manual_seed(1)
        for _ in range(DRAWS):
            others = {}
            for i in call.floats:
                x = call.leaves[i]
                off = 8 * torch.finfo(call.given[i].dtype).eps * x.abs()
                if i in call.errors:
                    off = off + call.errors[i].bound
                sign = torch.randint(0, 2, x.shape, generator=generator).to(x) * 2 - 1
                others[i] = x + sign * off
            moved = call.run(others)
            for k, other in enumerate(moved if isinstance(moved, (tuple, list)) else [moved]):
                most[k] = torch.fmax(most[k], (other - values[k]).abs().double())
        results = []
        for value, off, native in zip(values, most, outputs, strict=True):
            if not value.is_floating_point():
                results.append(Result(None, None, off > 0))
                continue
            whole = off.amax() if off.numel() else off
            own = MARGIN * torch.maximum(off, 0.25 * whole)  # of the most that was seen anywhere, too
            carried = Error(own, own, torch.zeros_like(own), {f"{call.name} (measured)": 1.0})
            results.append(Result(value, sum_errors([carried, rounding_error(value, native.dtype, call.name)])))
        return results


def _hanging(call: Call, output: Tensor) -> Tensor | None:
    """Of whole numbers made of whole numbers: any may be another where one that they are made of may."""
    hangs = any(bool(mask.any()) for mask in call.unsure.values())
    return torch.ones(output.shape, dtype=torch.bool, device=output.device) if hangs else None


def _filled(func: Any, args: Any, tensor: Tensor) -> Error | None:
    """Of numbers that the tensor's dtype cannot hold: their rounding."""
    if func.overloadpacket.__name__.rstrip("_") not in FILLERS:
        return None
    value = tensor.detach().to(torch.float64)
    if not tensor.is_floating_point() or bool((value == value.to(torch.bfloat16)).all()):
        return None
    return rounding_error(value, tensor.dtype, func.overloadpacket.__name__)


def _looks(func: Any) -> bool:
    """Whether all it returns are views of its arguments, or no tensors at all."""
    returns = func._schema.returns
    if func._schema.is_mutable or not returns:
        return False
    return all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _views(native: Any, tensors: Sequence[Tensor]) -> bool:
    given = {t.untyped_storage()._cdata for t in tensors}
    return all(t.untyped_storage()._cdata in given for t in pytree.tree_leaves(native) if isinstance(t, Tensor))


def _plain(tensors: Sequence[Tensor], func: Any) -> None:
    for tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_complex() or tensor.is_nested:
            kind = "complex" if tensor.is_complex() else "quantized" if tensor.is_quantized else str(tensor.layout)
            raise NoBoundError(f"{func}: {kind} tensors are not followed")


@contextlib.contextmanager
def without_fused_kernels() -> Iterator[None]:
    """Without kernels that are one op to torch and many to us (recurrent layers of oneDNN, fused attention), or whose
    arithmetic is another one: NNPACK's convolutions by transforms, which torch takes where it may not take oneDNN's,
    are off by more than any order of the sum is.
    Attention of half precision is as its kernels have it (``attention``)."""
    before, whole = torch._C._get_mkldnn_enabled(), torch.backends.mha.get_fastpath_enabled()
    torch._C._set_mkldnn_enabled(False)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        transforms = torch.backends.nnpack.flags(enabled=False)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), transforms, as_kernels():
            yield
    finally:
        torch._C._set_mkldnn_enabled(before)
        torch.backends.mha.set_fastpath_enabled(whole)
