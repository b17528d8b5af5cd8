"""What a program shares with the process that diagnoses it: put back afterwards, and said where it was changed."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from kernelworks import environment

__all__ = ["Surroundings"]

MOST_BYTES = 1 << 30  # of arguments that are kept to be put back


class Surroundings:
    """As a context: the process's settings, its random numbers and the arguments' values are as they were on leaving.

    Raises RuntimeError on entering where a profiler of torch's is running: ours would end it.
    """

    def __init__(self, args: Sequence[Any] = ()) -> None:
        self.args = [a for a in args if isinstance(a, Tensor) and not a.is_inference()]
        self._marked: tuple[dict[str, Any], dict[int, Any]] | None = None

    def __enter__(self) -> Surroundings:
        if profiler._is_profiler_enabled:
            raise RuntimeError("torch's profiler is running in this process, and diagnose needs it: end it first")
        self._settings = _settings()
        self._random = _random_state()
        self._signals = _signals()
        self._environment = environment.variables()
        small = sum(a.nbytes for a in self.args if _plain(a)) <= MOST_BYTES
        self._values = [(a, a._version, a.detach().clone() if small and _plain(a) else None) for a in self.args]
        return self

    def mark(self) -> None:
        """What is set from here on is set by what is tried on the program (compilers set the limit of recursion)."""
        self._marked = _settings(), _signals()

    def look(self) -> tuple[str, ...]:
        """What the program has changed since, in words."""
        now, handlers = self._marked or (_settings(), _signals())
        lines = [
            f"the program set {name} from {_short(was)} to {_short(now[name])}: put back"
            for name, was in self._settings.items()
            if now[name] != was
        ]
        changed = [signal.Signals(n).name for n, was in self._signals.items() if handlers.get(n) is not was]
        if changed:
            lines.append(f"the program set handlers of {', '.join(changed)}: put back")
        written = [str(i) for i, (a, version, _) in enumerate(self._values) if a._version != version]
        if written:
            kept = all(value is not None for _, _, value in self._values)
            end = "put back" if kept else "too large to be put back"
            lines.append(f"the program writes its tensor argument {', '.join(written)}, so each run saw another: {end}")
        return tuple(lines)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        now = _settings()
        for name, was in self._settings.items():
            if now[name] != was:
                SETTINGS[name][1](was)
        _restore_random(self._random)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._signals.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)
        environment.put_back(self._environment)
        for tensor, version, value in self._values:
            if value is not None and tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(value)


def _plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, torch.nn.Parameter)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


# Name -> how to read it, how to put it back.
SETTINGS: dict[str, tuple[Any, Any]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast on the CPU": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "the working folder": (_folder, lambda folder: os.chdir(folder) if folder else None),
    "the limit of recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}


def _settings() -> dict[str, Any]:
    return {name: read() for name, (read, _) in SETTINGS.items()}


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _signals() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def _random_state() -> tuple[Any, ...]:
    numpy = sys.modules.get("numpy")
    gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), torch.get_rng_state(), gpu, numpy.random.get_state() if numpy is not None else None


def _restore_random(state: tuple[Any, ...]) -> None:
    python, cpu, gpu, numpy = state
    random.setstate(python)
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state_all(gpu)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)
