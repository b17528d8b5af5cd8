"""Numbers that the host makes in a call and moves to the device: ``torch.tensor(0.5, device=x.device)``, a table of
Python's numbers that is sent there.

A graph would read them at each replay where the host had them when it was captured, and the host waits for such a copy,
so no capture takes it. What the host makes without asking the device is the same at each call of one signature, as a
number is that a kernel is given. So a copy that was made ahead of the capture stands in for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernelworks.diagnose.optimization import Impossible

__all__ = ["HostMade"]

MOST_BYTES = 1 << 20  # a value of more bytes than this is data
MAKERS = (torch.tensor, torch.as_tensor, Tensor.new_tensor)


class HostMade(TorchFunctionMode):
    """While ``learning`` it keeps a copy of each on the device; afterwards those stand in, and what was not seen before
    raises Impossible. ``kind`` is the type of device."""

    sees_kernelworks = True  # it changes nothing of our ops

    def __init__(self, kind: str = "cuda") -> None:
        super().__init__()
        self.kind, self.learning = kind, True
        self.kept: dict[Any, Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in MAKERS:
            return self._made(func, args, kwargs)
        if func is Tensor.copy_ and len(args) > 1 and args[0].device.type == self.kind and _of_host(args[1]):
            return args[0].copy_(self._on(args[0].device, args[1]))
        if func in (Tensor.to, Tensor.cuda) and _of_host(args[0]):
            device, dtype = self._where(func, args, kwargs)
            if device is not None and device.type == self.kind:
                return self._on(device, args[0] if dtype is None else args[0].to(dtype))
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Of Python's numbers, on the host first."""
        given, beside = kwargs.get("device"), 1 if func is Tensor.new_tensor else 0
        device = torch.device(given) if given is not None else args[0].device if beside else None
        data = args[beside] if len(args) > beside else kwargs.get("data")
        there = isinstance(data, Tensor) and not _of_host(data)
        if device is None or device.type != self.kind or there or kwargs.get("requires_grad"):
            return func(*args, **kwargs)
        return self._on(device, func(*args, **{**kwargs, "device": "cpu"}))

    def _where(self, func: Any, args: Any, kwargs: Any) -> tuple[torch.device | None, torch.dtype | None]:
        """The device and the dtype that a tensor is moved to."""
        if func is Tensor.cuda:
            given = args[1] if len(args) > 1 else kwargs.get("device")
            return torch.device(self.kind if given is None else given), None
        other = args[1] if len(args) > 1 else kwargs.get("other")
        if isinstance(other, Tensor):
            return other.device, other.dtype
        of_torch: Any = torch._C._nn
        try:
            found = of_torch._parse_to(*args[1:], **kwargs)
        except (TypeError, RuntimeError):
            return None, None
        return found[0], found[1]

    def _on(self, device: torch.device, host: Tensor) -> Tensor:
        host = host.detach().contiguous()
        if host.nbytes > MOST_BYTES:
            return host.to(device)
        content = host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""
        key = device, host.dtype, tuple(host.shape), content
        if key not in self.kept:
            if not self.learning:
                raise Impossible("the host makes other numbers for it at each call")
            with _waiting(), torch.inference_mode(False):
                self.kept[key] = host.clone().to(device)
        return self.kept[key].clone()


def _of_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.layout is torch.strided


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """The host may wait for the device."""
    if not torch.cuda.is_initialized():
        yield
        return
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(0)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(mode)
