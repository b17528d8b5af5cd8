"""What is called in the place of a compiled module, which heeds hooks as the module does.

torch's compiler traces the hooks that it finds and guards those that are there. Where there was none, it looks for none
later (``skip_nnmodule_hook_guards``): one that is registered then is never called. Its own guards would cost 0.7 us a
module and call. Here a call asks whether any hook was registered in the process since the last look, which is one
comparison; only then it looks at all modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from kernelworks.nn.gates import has_foreign_hook

__all__ = ["CompiledModule"]

GLOBAL_HOOKS = (
    torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks,
    torch_module._global_backward_hooks, torch_module._global_backward_pre_hooks,
)  # fmt: skip
OWN_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HookPlaces = frozenset[tuple[int, str]]  # modules by ``id``, and of which kind they have hooks


class CompiledModule:
    """``call`` runs what was compiled as long as the same modules have hooks as when it first ran, and else the
    module's own code."""

    def __init__(self, module: nn.Module, compiled: Callable[..., Any]) -> None:
        self.module, self.compiled = module, compiled
        self._first: HookPlaces | None = None
        self._seen = -1  # the number of the next handle of a hook, at the last look that found them as they were

    def call(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or self._seen == RemovableHandle.next_id or self._as_they_were():
            return self.compiled(*args, **kwargs)
        return self.module._call_impl(*args, **kwargs)

    def _as_they_were(self) -> bool:
        number, hooked = RemovableHandle.next_id, self._hooked()
        if self._first is None:
            self._first = hooked
        if hooked == self._first:
            # A hook that goes has no number: where some are, each call looks.
            self._seen = -1 if hooked else number
        return hooked == self._first

    def _hooked(self) -> HookPlaces:
        found = {
            (id(part), kind) for part in self.module.modules() for kind in OWN_HOOKS
            if part.__dict__[kind] and has_foreign_hook(part.__dict__[kind])
        }  # fmt: skip
        if any(GLOBAL_HOOKS) and has_foreign_hook(*GLOBAL_HOOKS):
            found.add((0, "all modules"))
        return frozenset(found)
