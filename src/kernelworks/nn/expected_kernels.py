"""Which kernels may run if a swap puts an op somewhere: the tuning records of this machine tell, as for every call.

What a swap says of itself should be what will happen. An op runs torch's function if no tuning record says that a
kernel of ours is faster in its dtype, on its device and for its sizes, so putting it there would gain nothing. If
kernels are taken in list order (tests, development), the sizes that the op's bench times stand for its calls.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kernelworks.contract import FLOATS, Case, Request, TensorSpec, spec
from kernelworks.dispatch.choose import choose, known_tuning_records
from kernelworks.dispatch.op import OPS, Op
from kernelworks.dispatch.signature import torch_signatures
from kernelworks.machine import environment

__all__ = ["Outlook", "Outlooks", "outlook", "setting_of"]


@dataclass(frozen=True)
class Outlook:
    """The kernels that calls of an op will take, most sizes first; if torch's own is the only one, why."""

    op: str
    kernels: tuple[str, ...]
    why: str = ""

    @property
    def has_our_kernel(self) -> bool:
        """Whether any of its calls will run a kernel of ours."""
        return self.kernels != ("torch",)

    def __str__(self) -> str:
        if not self.has_our_kernel:
            return f"{self.op} (torch's own: {self.why})"
        return f"{self.op} ({' or '.join(self.kernels)}{', by size' if len(self.kernels) > 1 else ''})"


@dataclass
class Outlooks:
    """The outlooks of the parts of a model, in the dtype and on the device that each has now."""

    model: nn.Module
    _known: dict[Any, Outlook] = field(default_factory=dict)

    def of(self, op: str, path: str, sizes: Mapping[str, int] | None = None) -> Outlook:
        """What calls of an op in a part of the model will run; ``sizes`` are those of its contract's dimensions that
        are known."""
        dtype, device = setting_of(self.model, path)
        key = (op, dtype, device, *sorted((sizes or {}).items()))
        if key not in self._known:
            self._known[key] = outlook(op, dtype, device, sizes)
        return self._known[key]


def setting_of(model: nn.Module, path: str) -> tuple[torch.dtype, str]:
    """The dtype and the type of device in which a part of a model computes: those of its first parameter, or else of
    the model's."""
    try:
        part = model.get_submodule(path)
    except (AttributeError, RuntimeError):  # a loss, which is no module; what was scripted names no parts
        part = model
    for module in (part, model):
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                return tensor.dtype, tensor.device.type
    return torch.float32, "cpu"


def outlook(
    name: str, dtype: torch.dtype, device: str, sizes: Mapping[str, int] | None = None, *, kind: str | None = None
) -> Outlook:
    """What calls of an op in this dtype on this type of device, of these sizes, will run. The name is the op's, or
    that of torch's function. ``kind`` is a kind of machine in place of this one."""
    op = OPS[name] if name in OPS else torch_signatures()[name].op
    if dtype not in FLOATS:
        return Outlook(name, ("torch",), f"{str(dtype).removeprefix('torch.')} has no kernel of ours")
    device = "cpu" if device == "meta" else device
    if environment.selection_policy() == "listed":
        return _listed(name, op, dtype, device, kind)
    about = known_tuning_records(op, dtype, device, sizes or {}, kind)
    counts: dict[str, int] = {}
    for tuning_record in about:
        if tuning_record.beats_torch:
            counts[tuning_record.way] = counts.get(tuning_record.way, 0) + 1
    if counts:
        return Outlook(name, tuple(sorted(counts, key=lambda way: -counts[way])))
    why = TORCH_WON_REASON if any(not t.is_noisy for t in about) else NOISY_REASON if about else NOT_TIMED_REASON
    return Outlook(name, ("torch",), why)


NOT_TIMED_REASON = "no tuning record says that ours is faster here; `kernelworks autotune` measures"
NOISY_REASON = "measurement too noisy to tell: `kernelworks autotune` measures again"
TORCH_WON_REASON = "measured here: torch's own is as fast or faster"


def _listed(name: str, op: Op, dtype: torch.dtype, device: str, kind: str | None) -> Outlook:
    cases = (op.contract.device_bench_cases if device != "cpu" else ()) or op.contract.bench_cases
    counts: dict[str, int] = {}
    reasons: list[str] = []
    for case in [c for c in cases if dtype in c.dtypes] or cases:
        try:
            choice = choose(op, _request(op, case, dtype, device), kind=kind)
        except RuntimeError:
            continue
        counts[choice.kernel.name] = counts.get(choice.kernel.name, 0) + 1
        reasons += [
            why for kernel, why in choice.declined if op.kernel(kernel).target not in ("scalar", "torch", "reference")
        ]
    kernels = tuple(sorted(counts, key=lambda kernel: -counts[kernel])) or ("torch",)
    return Outlook(name, kernels, _reason(reasons))


def _reason(reasons: list[str]) -> str:
    """The one that a user can do something about, or else the first."""
    unverified = [r for r in reasons if "kernelworks verify" in r]
    if unverified:
        return f"{unverified[0].partition(';')[0]}; `kernelworks verify --missing` verifies what may run here"
    return reasons[0] if reasons else "no kernel of ours serves it here"


class _WithoutValues(TorchFunctionMode):
    """Tensors of a case that is only looked at: memory that nobody writes in place of random numbers, and no arithmetic
    that leaves shapes as they are. (On ``meta`` torch would import its compiler for them first, which takes seconds.)
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("randn", "rand"):
            return torch.empty(*args, dtype=kwargs.get("dtype"))
        if name in _SAME_SHAPE and len(args) == 2 and not isinstance(args[1], torch.Tensor):
            return args[0]
        if name == "to" and len(args) == 2 and isinstance(args[1], torch.dtype) and not kwargs:
            return torch.empty_strided(args[0].shape, args[0].stride(), dtype=args[1])
        return func(*args, **kwargs)


_SAME_SHAPE = frozenset({"mul", "add", "sub", "div", "true_divide"})


def _request(op: Op, case: Case, dtype: torch.dtype, device: str) -> Request:
    names = op.passes["forward"].names
    with _WithoutValues():
        made: dict[str, Any] = case.make(torch.Generator().manual_seed(0), dtype)
        request = op.request("forward", [made.get(n) for n in names])
    args = {n: _placed(spec(a), device) for n, a in request.args.items()}
    return dataclasses.replace(request, args=args)


def _placed(value: Any, device: str) -> Any:
    if isinstance(value, TensorSpec):
        return dataclasses.replace(value, device=device)
    return tuple(_placed(v, device) for v in value) if isinstance(value, tuple) else value
