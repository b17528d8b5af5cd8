"""Puts compiled calls in modules' places, with the compilers' settings that they need."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from kernelworks.diagnose.optimizations.settings import Setting
from kernelworks.diagnose.sites.functions import Function
from kernelworks.machine import environment

__all__ = ["IMPL", "Impl", "install_impls", "keeps_compiled", "missing_compiler", "vector_bits"]

IMPL = "_compiled_call_impl"  # the attribute in which nn.Module.compile keeps its result
Impl = tuple[nn.Module, Callable[..., Any]]  # a module and what is called in its place
GRAPHS = 64  # of one kind of module: modes, blocks and swaps are compiled beside each other, and 8 are not enough


def _limit() -> int:
    import torch._dynamo.config as config  # takes seconds: only if something is compiled

    return int(config.recompile_limit)


def _limited(most: int) -> None:
    import torch._dynamo.config as config

    config.recompile_limit = most


LIMIT = Setting(_limit, _limited)  # of graphs, dynamo's own


def _skips_hooks() -> bool:
    import torch._dynamo.config as config

    return bool(config.skip_nnmodule_hook_guards)


def _skip_hooks(skips: bool) -> None:
    import torch._dynamo.config as config

    config.skip_nnmodule_hook_guards = skips


SKIPPED_HOOKS = Setting(_skips_hooks, _skip_hooks)


def _suppresses() -> bool:
    import torch._dynamo.config as config

    return bool(config.suppress_errors)


def _suppress(suppresses: bool) -> None:
    import torch._dynamo.config as config

    config.suppress_errors = suppresses


# For what stays in place: other arguments, or an edit of the model, have it compiled anew. Where the compiler fails
# then, the frame runs as it is written, as before the plan. A search wants to see the error.
SUPPRESSED_ERRORS = Setting(_suppresses, _suppress)


def _bits() -> int | None:
    import torch._inductor.config as config

    return config.cpp.simdlen


def _set_bits(bits: int | None) -> None:
    import torch._inductor.config as config

    config.cpp.simdlen = bits


VECTOR_BITS = Setting(_bits, _set_bits)  # inductor's own; None: the widest that this CPU has


def vector_bits() -> int | None:
    """What inductor takes by itself here, said. inductor keeps compiled graphs on disk by a key that has its settings
    and not the CPU. A graph of another instruction set that is found there leaves out elements, or writes beyond its
    answer (torch 2.13: AVX-512's loops of 16 compiled again for AVX2's vectors of 8, or the reverse)."""
    from torch._inductor.cpu_vec_isa import invalid_vec_isa, pick_vec_isa

    found = pick_vec_isa()
    return _bits() if found is invalid_vec_isa else int(found.bit_width())


def keeps_compiled() -> bool:
    """Whether another process finds on disk what inductor compiles in this one."""
    import torch._inductor.config as config

    return bool(config.fx_graph_cache) and not config.force_disable_caches


def missing_compiler() -> str:
    """Why inductor cannot compile for a CPU here: it has no C++ compiler; "" if it has one."""
    loaded = sys.modules.get("torch._inductor.config")  # importing it takes seconds; a program that sets it has done so
    given: Any = environment.inductor_compiler() if loaded is None else loaded.cpp.cxx
    names = [given] if isinstance(given, str) else [name for name in given if name]  # None: conda's, if asked for
    if any(shutil.which(name) for name in names):
        return ""
    return f"torch.compile needs a C++ compiler on a CPU, and {' or '.join(map(repr, names))} is not on the PATH"


def _on_a_gpu(modules: Sequence[nn.Module]) -> bool:
    """A training step has no tensors of its own. What inductor takes on a CPU it tries in a process for each
    instruction set, which costs seconds."""
    held = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    return any(t.is_cuda for t in held) if held else torch.cuda.is_initialized()


def install_impls(impls: list[Impl], *, stays: bool = False) -> Callable[[], None]:
    """Puts each in its module's place; returns what undoes that. ``stays``: no search is to see a compiler's errors."""
    undone = [LIMIT.want(max(_limit(), GRAPHS))]
    if stays:
        undone.append(SUPPRESSED_ERRORS.want(True))
    if any(isinstance(module, Function) for module, _ in impls):  # ``CompiledModule`` does it for modules, at less cost
        undone.append(SKIPPED_HOOKS.want(False))
    if not _on_a_gpu([module for module, _ in impls]):
        undone.append(VECTOR_BITS.want(vector_bits()))
    bound, placed = [], [_PlacedImpl(module, impl) for module, impl in impls]
    for module, impl in impls:
        if isinstance(module, Function):
            bound.append(module.bind(impl))

    def back() -> None:
        for restore in undone:
            restore()
        for unbind in bound:
            unbind()
        for each in reversed(placed):
            each.remove()

    return back


class _PlacedImpl:
    """What was put in a module's place, and what was there before. They are removed in any order."""

    def __init__(self, module: nn.Module, impl: Callable[..., Any]) -> None:
        self.module, self.impl, self.before = module, impl, module.__dict__.get(IMPL)
        _placed.setdefault(id(module), []).append(self)
        module.__dict__[IMPL] = impl

    def remove(self) -> None:
        others = [each for each in _placed[id(self.module)] if each is not self]
        if others:
            _placed[id(self.module)] = others
        else:
            del _placed[id(self.module)]
        upper = next((each for each in others if each.before is self.impl), None)
        if upper is not None:  # it lies on this one
            upper.before = self.before
        elif self.module.__dict__.get(IMPL) is self.impl:
            if self.before is None:
                del self.module.__dict__[IMPL]
            else:
                self.module.__dict__[IMPL] = self.before


_placed: dict[int, list[_PlacedImpl]] = {}  # by ``id`` of the module, while something is in its place
