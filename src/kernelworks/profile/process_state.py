"""What a program shares with the process that diagnoses it: put back afterwards, and said if it was changed."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import profiler

from kernelworks.machine import environment
from kernelworks.machine.float32_products import Float32Products
from kernelworks.profile.generators import generator_state, is_generator, set_generator_state

__all__ = [
    "Surroundings",
    "read_random_state",
    "read_settings",
    "restore_random_state",
    "restore_settings",
    "working_folder",
]

MOST_BYTES = 1 << 30  # At most so many bytes of arguments are kept to be put back.


class Surroundings:
    """As a context: the process's settings, its random numbers and the arguments' values are as they were on leaving:
    those of tensors and of generators, and what lists, dictionaries and sets among the arguments and in each other
    hold.

    Raises RuntimeError on entering if a profiler of torch's is running: ours would end it.
    """

    def __init__(self, args: Sequence[Any] = ()) -> None:
        places: dict[int, tuple[str, Any]] = {}
        for name, value in _held(args):
            places.setdefault(id(value), (name, value))
        found = list(places.values())
        self.args = [(name, a) for name, a in found if isinstance(a, Tensor) and not a.is_inference()]
        self.containers = [(name, c) for name, c in found if isinstance(c, CONTAINERS)]
        self.generators = [g for _, g in found if is_generator(g)]
        self._marked: tuple[dict[str, Any], dict[int, Any]] | None = None

    def __enter__(self) -> Surroundings:
        if profiler._is_profiler_enabled:
            raise RuntimeError("torch's profiler is running in this process, and diagnose needs it: end it first")
        self._settings = read_settings()
        self._random = read_random_state()
        self._signals = _signals()
        self._environment = environment.variables()
        small = sum(a.nbytes for _, a in self.args if _plain(a)) <= MOST_BYTES
        self._values = [(a, a._version, a.detach().clone() if small and _plain(a) else None) for _, a in self.args]
        self._drawn = [(g, generator_state(g)) for g in self.generators]
        self._contents = [(c, list(c.items() if isinstance(c, dict) else c)) for _, c in self.containers]
        return self

    def mark(self) -> None:
        """What is set from here on is set by what is tried on the program (compilers set the limit of recursion)."""
        self._marked = read_settings(), _signals()

    def look(self) -> tuple[str, ...]:
        """What the program has changed since, in words."""
        now, handlers = self._marked or (read_settings(), _signals())
        lines = [
            f"the program set {name} from {_short(was)} to {_short(now[name])}: put back"
            for name, was in self._settings.items()
            if _short(now[name]) != _short(was)
        ]
        changed = [
            signal.Signals(n).name
            for n, was in self._signals.items()
            if handlers.get(n) is not was and not _of_torch(handlers.get(n))
        ]
        if changed:
            lines.append(f"the program set handlers of {', '.join(changed)}: put back")
        names = [name for name, _ in self.args]
        written = [name for name, (a, version, _) in zip(names, self._values, strict=True) if a._version != version]
        if written:
            kept = all(value is not None for _, _, value in self._values)
            end = "put back" if kept else "too large to be put back"
            lines.append(f"the program writes its tensor argument {', '.join(written)}, so each run saw another: {end}")
        names = [name for name, _ in self.containers]
        other = [name for name, (c, was) in zip(names, self._contents, strict=True) if not _same(c, was)]
        if other:
            lines.append(f"the program changes what its argument {', '.join(other)} holds: put back")
        return tuple(lines)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        restore_settings(self._settings)
        restore_random_state(self._random)
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._signals.items():
                now_set = signal.getsignal(number)
                if now_set is not handler and handler is not None and not _of_torch(now_set):
                    signal.signal(number, handler)
        environment.restore_variables(self._environment)
        for tensor, version, value in self._values:
            if value is not None and tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(value)
        for generator, state in self._drawn:
            set_generator_state(generator, state)
        for container, was in self._contents:
            if not _same(container, was):
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(was)


CONTAINERS = (dict, list, set, deque)
DEEPEST = 8  # Containers are searched so many levels deep.


def _held(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """The tensors, containers and generators among arguments, each by its place: ``0``, ``1['ids']``."""
    if depth > DEEPEST:
        return
    if isinstance(value, (Tensor, *CONTAINERS)) or is_generator(value):
        yield name, value
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, (Tensor, tuple, *CONTAINERS)) or is_generator(item):
                yield from _held(item, f"{name}[{key!r}]", depth + 1)
    elif isinstance(value, (list, tuple, deque)):
        for at, item in enumerate(value):
            if isinstance(item, (Tensor, tuple, *CONTAINERS)) or is_generator(item):
                yield from _held(item, f"{name}[{at}]" if depth else str(at), depth + 1)


def _same(container: Any, was: list[Any]) -> bool:
    """Whether it holds the very objects that it held."""
    now = list(container.items() if isinstance(container, dict) else container)
    if isinstance(container, dict):
        return len(now) == len(was) and all(a is c and b is d for (a, b), (c, d) in zip(now, was, strict=True))
    if isinstance(container, set):
        return container == set(was)
    return len(now) == len(was) and all(a is b for a, b in zip(now, was, strict=True))


def _plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested and type(tensor) in (Tensor, torch.nn.Parameter)


def working_folder() -> str:
    """ "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _default_device() -> torch.device | None:
    """None if it is torch's own: to set that is a mode, which each call would go through."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _keeps_denormals() -> bool:
    """torch has no word for it but what it computes."""
    return bool(torch.full((1,), 1e-40, dtype=torch.float32, device="cpu").mul(1.0).ne(0.0))


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _set_cores(cores: list[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)


def _set_anomalies(how: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(*how)


def _set_deterministic(how: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(how[0], warn_only=how[1])


def _set_attention(how: tuple[bool, ...]) -> None:
    for enable, on in zip(ATTENTION_SETTERS, how, strict=True):
        enable(on)


def _set_one_dnn(on: bool) -> None:
    torch._C._set_mkldnn_enabled(on)


def _set_collecting(on: bool) -> None:
    (gc.enable if on else gc.disable)()


CUDA = torch.backends.cuda  # torch's attention on a CPU looks at these too
ATTENTION_GETTERS: tuple[Any, ...] = (CUDA.flash_sdp_enabled, CUDA.mem_efficient_sdp_enabled, CUDA.math_sdp_enabled)
ATTENTION_SETTERS: tuple[Any, ...] = (CUDA.enable_flash_sdp, CUDA.enable_mem_efficient_sdp, CUDA.enable_math_sdp)

# Name -> how to read it, how to put it back.
SETTINGS: dict[str, tuple[Any, Any]] = {
    "the default device": (_default_device, torch.set_default_device),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast on the CPU": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "autocast on the GPU": (
        lambda: torch.is_autocast_enabled("cuda"),
        lambda on: torch.set_autocast_enabled("cuda", on),
    ),
    "the current GPU": (
        lambda: torch.cuda.current_device() if torch.cuda.is_initialized() else 0,  # where torch begins
        lambda number: torch.cuda.set_device(number) if torch.cuda.is_initialized() else None,
    ),
    "autocast's dtype on the CPU": (
        lambda: torch.get_autocast_dtype("cpu"),
        lambda dtype: torch.set_autocast_dtype("cpu", dtype),
    ),
    "autocast's dtype on the GPU": (
        lambda: torch.get_autocast_dtype("cuda"),
        lambda dtype: torch.set_autocast_dtype("cuda", dtype),
    ),
    "deterministic algorithms": (
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        _set_deterministic,
    ),
    "the search for anomalies": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        _set_anomalies,
    ),
    "denormal numbers": (_keeps_denormals, lambda kept: torch.set_flush_denormal(not kept)),
    "the paths of attention": (lambda: tuple(enabled() for enabled in ATTENTION_GETTERS), _set_attention),
    "oneDNN": (torch._C._get_mkldnn_enabled, _set_one_dnn),
    "the collection of garbage": (gc.isenabled, _set_collecting),
    "the cores that it may use": (_cores, _set_cores),
    "the precision of float32 products": (Float32Products.of_process, Float32Products.restore),
    # torch.backends takes no flag any more once a program has loaded torch.testing._internal.
    "cuDNN's benchmarks": (lambda: torch.backends.cudnn.benchmark, torch._C._set_cudnn_benchmark),
    "the working folder": (working_folder, lambda folder: os.chdir(folder) if folder else None),
    "the limit of recursion": (sys.getrecursionlimit, sys.setrecursionlimit),
}


def read_settings() -> dict[str, Any]:
    """The process's settings, by their names."""
    return {name: read() for name, (read, _) in SETTINGS.items()}


def restore_settings(before: dict[str, Any]) -> list[str]:
    """Puts them back as they were. Returns which a reader would call others."""
    now = read_settings()
    others = [name for name, was in before.items() if now[name] != was]
    for name in others:
        SETTINGS[name][1](before[name])
    return [name for name in others if _short(now[name]) != _short(before[name])]


def _short(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _of_torch(handler: Any) -> bool:
    """Whether torch set it: the first DataLoader with workers does, once, and the next ones count on it."""
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "torch"


def _signals() -> dict[int, Any]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


def read_random_state() -> tuple[Any, ...]:
    """The state of the random numbers of Python, torch, its GPUs and NumPy."""
    numpy = sys.modules.get("numpy")
    gpu = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return random.getstate(), torch.get_rng_state(), gpu, numpy.random.get_state() if numpy is not None else None


def restore_random_state(state: tuple[Any, ...]) -> None:
    python, cpu, gpu, numpy = state
    random.setstate(python)
    torch.set_rng_state(cpu)
    if gpu is not None:
        torch.cuda.set_rng_state_all(gpu)
    if numpy is not None:
        sys.modules["numpy"].random.set_state(numpy)
