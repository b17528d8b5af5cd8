"""A call of CUDA C++ kernels, worked out once: for calls that look alike, allocate, and launch all of them in one go.

A launch in Python that derives strides, grids and tensor maps from its arguments takes some 15 us, three of them with
what lies between 50: as long as a short sequence's gradients take a GPU. All of that follows from dtypes, shapes,
strides and scalars, which are the same for all calls of one plan. So the call is recorded (nothing is launched for
that), and where all it does is to allocate and to launch, ``launch.cpp`` is told the launches: from then on a call
allocates and says where its tensors lie.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelworks.build import cuda
from kernelworks.build.launcher import UNKNOWN, check_status, launcher, recording

__all__ = ["Allocations", "make_replay", "owns_storage"]

# What a call may ask of torch without anything being computed.
PLACING = frozenset((
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "view", "_unsafe_view", "as_strided",
    "alias", "detach", "slice", "select", "unsqueeze", "squeeze", "transpose", "t", "permute", "expand", "narrow",
    "unflatten", "_reshape_alias",
))  # fmt: skip
ALIGNMENT = 512  # bytes, as torch allocates
VALUE, PLACE, MAP = range(3)  # kinds of arguments, as launch.cpp has them


class Allocations(TorchDispatchMode):
    """Notes operators that are more than an allocation or a view, which a replay would miss, and what was allocated."""

    sees_kernelworks = True

    def __init__(self) -> None:
        TorchDispatchMode.__init__(self)
        self.others: set[str] = set()
        self.made: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name not in PLACING:
            self.others.add(name)
        result = func(*args, **(kwargs or {}))
        if "empty" in name:
            self.made.append(result)
        return result


class _Unlike(Exception):
    """A call that no replay does again."""


@dataclass
class _Places:
    """Where the tensors of a call lie: its arguments, its results, and one block for all that lies between."""

    args: tuple[Any, ...]
    results: tuple[Tensor, ...]
    names: list[str] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    at: dict[int, tuple[int, int]] = field(default_factory=dict)  # address -> its place, and bytes behind that
    within: dict[int, tuple[int, list[int]]] = field(default_factory=dict)  # a storage -> its bytes, places in it
    scratch: int = 0  # bytes

    def __post_init__(self) -> None:
        for letter, tensors in (("a", self.args), ("o", self.results)):
            for i, t in enumerate(tensors):
                if isinstance(t, Tensor) and t.numel():
                    if t.data_ptr() in self.at:  # which of the two an address means cannot be told
                        raise _Unlike
                    self._add(f"{letter}{i}", t)

    def _add(self, name: str, t: Tensor) -> None:
        self.at[t.data_ptr()] = len(self.names), 0
        storage = t.untyped_storage()
        self.within.setdefault(storage.data_ptr(), (storage.nbytes(), []))[1].append(len(self.names))
        self.names.append(name)
        self.addresses.append(t.data_ptr())

    def place_scratch(self, made: list[Tensor]) -> None:
        """Lays what a call allocates for itself one behind the other."""
        place = len(self.names)
        for t in made:
            if t.numel() and t.data_ptr() not in self.at:
                self.at[t.data_ptr()] = place, self.scratch
                self.scratch += -(-t.untyped_storage().nbytes() // ALIGNMENT) * ALIGNMENT
        if self.scratch:
            self.names.append("between")
            self.addresses.append(0)

    def of(self, address: int) -> tuple[int, int]:
        """The place of an address, and how many bytes lie before it there."""
        if address in self.at:
            return self.at[address]
        for begin, (size, places) in self.within.items():
            if begin <= address < begin + size and len(places) == 1:
                return places[0], address - self.addresses[places[0]]
        raise _Unlike


def make_replay(function: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any] | None:
    """``function`` for arguments that differ from ``args`` in data and addresses only; None where it does anything but
    launch kernels of CUDA C++ on its inputs, its outputs and what it allocates between them. Launches nothing."""
    seen = Allocations()
    try:
        with recording(dry=True) as launches, torch.no_grad(), seen:
            result = function(*args)
    except torch.OutOfMemoryError:  # the call itself may find some
        return None
    results = result if isinstance(result, tuple) else (result,)
    if seen.others or not launches or not all(isinstance(kernel, cuda.Kernel) for kernel, *_ in launches):
        return None
    if not all(isinstance(r, Tensor) and owns_storage(r) for r in results):
        return None
    try:
        places = _Places(args, results)
        places.place_scratch(seen.made)
        device = launches[0][2][0].get_device()
        return _compiled(function, result, places, device, _numbers(launches, places, device)) if device >= 0 else None
    except _Unlike:
        return None


def owns_storage(result: Tensor) -> bool:
    """Whether a result's memory is its own, and whole."""
    whole = result.untyped_storage().nbytes() == result.numel() * result.element_size()
    return whole and not result.storage_offset()


def _numbers(launches: list[Any], places: _Places, device: int) -> list[int]:
    """All launches, as ``launch.cpp`` reads them."""
    maps: list[int] = []
    count = 0
    steps: list[int] = [len(launches)]
    for kernel, grid, arguments in launches:
        steps += [kernel.number(device), *grid, len(arguments)]
        for a in arguments:
            if not isinstance(a, Tensor):
                steps += [VALUE, 0, _bits(a)]
            elif (box := cuda.find_box_map(a)) is None:  # of other bytes that are a parameter `of` knows nothing
                steps += [PLACE, *places.of(a.data_ptr())]
            else:
                maps += [*places.of(box[0]), *box[1]]
                steps += [MAP, count, 0]
                count += 1
    return [len(places.addresses), *places.addresses, count, *maps, *steps]


def _bits(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, float):
        return int.from_bytes(struct.pack("<f", value), "little")
    return int(value)


def _compiled(
    function: Callable[..., Any], result: Any, places: _Places, device: int, numbers: list[int]
) -> Callable[..., Any] | None:  # fmt: skip
    """The code: allocate, launch, return."""
    args, results = places.args, places.results
    some = next(i for i, a in enumerate(args) if isinstance(a, Tensor) and a.numel())
    series = launcher().series(device, torch.tensor(numbers, dtype=torch.int64))
    if series < 0:
        return None

    def missed(status: int, given: tuple[Any, ...]) -> Any:
        if status != UNKNOWN:
            check_status(status, f"launching {function.__name__}")
        return function(*given)

    scope: dict[str, Any] = {
        "function": function, "missed": missed, "start": launcher().run, "series": series, "device": device,
        "stream": cuda._stream, "ordered": torch.are_deterministic_algorithms_enabled,
        "warned": torch.is_deterministic_algorithms_warn_only_enabled, "empty_like": torch.empty_like,
        "empty_strided": torch.empty_strided,
    }  # fmt: skip
    given = ", ".join(f"a{i}" for i in range(len(args)))
    # Who asks torch for the same bits every time may be given other kernels.
    lines = [f"def run({given}, out=None):", "    if out is not None or (ordered() and not warned()):"]
    lines.append(f"        return function({given}, out=out)")
    for i, made in enumerate(results):
        lines.append(f"    o{i} = {_allocation(i, made, args, some, scope)}")
    if places.scratch:
        lines.append(f"    between = a{some}.new_empty({-(-places.scratch // args[some].element_size())})")
    addresses = ", ".join(f"{name}.data_ptr()" for name in places.names)
    lines.append(f"    status = start(series, stream(device), {addresses})")
    lines += ["    if status:", f"        return missed(status, ({given},))"]
    returned = ", ".join(f"o{i}" for i in range(len(results)))
    lines.append(f"    return ({returned},)" if isinstance(result, tuple) else "    return o0")
    exec("\n".join(lines), scope)
    run: Callable[..., Any] = scope["run"]
    weakref.finalize(run, launcher().forget_series, series).atexit = False  # a program meets many shapes
    return run


def _allocation(number: int, made: Tensor, args: tuple[Any, ...], some: int, scope: dict[str, Any]) -> str:
    """Like an input that lies the same way where there is one: torch allocates that quickest."""
    if made.dim() == 1 and made.dtype == args[some].dtype:
        return f"a{some}.new_empty({made.shape[0]})"
    for i, a in enumerate(args):
        alike = isinstance(a, Tensor) and (a.shape, a.dtype, a.stride()) == (made.shape, made.dtype, made.stride())
        if alike and owns_storage(a):
            return f"empty_like(a{i})"
    scope |= {f"shape{number}": made.shape, f"stride{number}": made.stride(), f"how{number}": made.dtype}
    scope["place"] = made.device
    return f"empty_strided(shape{number}, stride{number}, dtype=how{number}, device=place)"
