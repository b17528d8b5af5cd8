"""What a launch in Triton's interpreter does with memory: every load and store by array, element, line and program.

The interpreter follows any address, gives 0 for a lane that a mask switches off, and runs the programs of a launch one
after the other. A GPU does none of that. So each access is held against the arrays that the launch was given, and a
lane that is off and has no ``other`` gets a number that nobody expects. If two programs of one launch touch an element
and one of them writes it, that is a race.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from kernelworks.learn.case import Array
from kernelworks.learn.faults import element
from kernelworks.learn.triton_sentences import Access, KernelFault, idle_sentence, outside_sentence, race_sentence
from kernelworks.learn.triton_words import joined_masks

__all__ = ["HostCalls", "Memory", "Region", "region_of", "watched_by"]

NOBODY, SEVERAL, ATOMIC = -1, -2, -3
MOST_IDLE = 1000  # programs in a row without an element: no launch for a whole card has so many
HOST_TENSOR = "a tensor that host code made"
# What host code may do to tensors: make memory, look at it, and hand it over. The kernel computes.
UNSET_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
SET_MEMORY = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full", "full_like", "new_full"}
HOST_FUNCTIONS = UNSET_MEMORY | SET_MEMORY | {
    "stride", "size", "numel", "dim", "element_size", "data_ptr", "storage_offset", "is_contiguous", "get_device",
    "view", "view_as", "reshape", "expand", "t", "transpose", "permute", "unsqueeze", "squeeze", "flatten", "narrow",
    "detach", "as_strided", "is_floating_point", "__get__", "__len__", "__getitem__", "__hash__", "__repr__",
    "__format__", "untyped_storage", "_is_view",
}  # fmt: skip


@dataclass
class Region:
    """One array that a launch may touch, from its first element to its last. ``belongs`` is False of what lies between
    its rows; ``written`` of what nobody has set."""

    name: str
    first: int  # address
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    belongs: Array
    written: Array
    is_input: bool = False
    writer: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    reader: Array = field(default_factory=lambda: np.zeros(0, np.int32))
    line: Array = field(default_factory=lambda: np.zeros(0, np.int32))

    @property
    def count(self) -> int:
        """Elements from the first to the last, those between rows among them."""
        return int(self.belongs.size)

    @property
    def end(self) -> int:
        return self.first + self.count * self.itemsize

    def forget_programs(self) -> None:
        """A new launch begins: all that was done before it is done."""
        self.writer, self.reader = np.full(self.count, NOBODY, np.int32), np.full(self.count, NOBODY, np.int32)
        self.line = np.zeros(self.count, np.int32)

    def place(self, slot: int) -> tuple[int, ...]:
        """The indices of an element by its distance from the first one."""
        found = [0] * len(self.shape)
        for axis in sorted(range(len(self.shape)), key=lambda a: -self.strides[a]):
            found[axis], slot = divmod(slot, self.strides[axis]) if self.strides[axis] else (0, slot)
        return tuple(found)

    def element(self, slot: int) -> str:
        return element(self.name, self.place(slot))


def region_of(name: str, tensor: Tensor, *, is_written: bool, is_input: bool = False) -> Region:
    """The memory of a tensor, its gaps marked as nobody's."""
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    count = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1 if tensor.numel() else 0
    belongs = np.zeros(count, bool)
    if count:
        np.lib.stride_tricks.as_strided(belongs, sizes, strides)[...] = True
    written = np.full(count, is_written)
    return Region(name, tensor.data_ptr(), tensor.element_size(), sizes, strides, belongs, written, is_input)


class Memory:
    """The arrays of one call, and what its launches do to them. Raises KernelFault at the first that no kernel may."""

    def __init__(self, source: str, regions: Sequence[Region], lanes_off: int) -> None:
        self.source, self.regions, self.lanes_off = source, list(regions), lanes_off
        self.held: list[Tensor] = []  # so that an address has one name in a call
        self.undefined_line = 0  # of a load whose lanes that are off hold anything
        self.loads = self.atomics = self.launches = 0
        self.program, self.grid, self.idle = 0, (1, 1, 1), 0  # idle: programs in a row that touched no element
        self.tf32_line = 0  # of a product of float32 that a GPU does in TF32

    def line(self) -> int:
        """The line of the learner's file that is running."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.source:
            frame = frame.f_back
        return int(frame.f_lineno) if frame is not None else 0

    def code(self, line: int) -> list[str]:
        """The learner's lines up to this one, without comments."""
        lines = Path(self.source).read_text(encoding="utf-8", errors="replace").splitlines()
        return [text.partition("#")[0] for text in lines[:line]]

    def begin_launch(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """A launch with these tensors by the names of the kernel's parameters. What host code made is called so."""
        self.launches += 1
        for name, tensor in tensors:
            for region in self.regions:
                if region.first == tensor.data_ptr() and region.name == HOST_TENSOR:
                    region.name = name
        for region in self.regions:
            region.forget_programs()
        self.idle = 0

    def add_host_memory(self, tensor: Tensor, *, is_set: bool) -> None:
        """Memory that host code asked for: in it is what it says, or what was there before."""
        storage = tensor.untyped_storage()
        first, count = storage.data_ptr(), storage.nbytes()
        self.regions = [r for r in self.regions if r.end <= first or r.first >= first + count]  # was given back
        if not count:
            return
        if not is_set:
            held = np.full(count, self.lanes_off, np.uint8)
            torch.empty(0, dtype=torch.uint8).set_(storage).copy_(torch.from_numpy(held))
        self.regions.append(region_of(HOST_TENSOR, tensor, is_written=is_set))
        self.held.append(tensor)

    # ------------------------------------------------------------ one access

    def touch(self, deed: str, addresses: Array, mask: Array, values: Array | None, *, has_mask: bool) -> None:
        """Holds the addresses of one load, store or atomic against all arrays."""
        shape = np.broadcast_shapes(addresses.shape, mask.shape)
        on = np.broadcast_to(mask, shape).reshape(-1).astype(bool)
        flat = np.broadcast_to(addresses, shape).reshape(-1).astype(np.int64)[on]
        self.idle = 0 if flat.size else self.idle
        given = None if values is None else np.broadcast_to(values, shape).reshape(-1)[on]
        if deed == "reads":
            self.loads += flat.size
        elif deed == "updates":
            self.atomics += flat.size
        access = Access(deed, self.line(), self.program, self.grid, has_mask)
        left = np.ones(flat.size, bool)
        for region in self.regions:
            inside = left & (flat >= region.first) & (flat < region.end)
            if inside.any():
                slots = (flat[inside] - region.first) // region.itemsize
                self._inside(access, region, slots, None if given is None else given[inside])
                left &= ~inside
            if not left.any():
                return
        address = int(flat[left][0])
        raise KernelFault(
            outside_sentence(access, self.regions, address, int(left.sum()), self.code(access.line)), access.line
        )

    def _inside(self, access: Access, region: Region, slots: Array, values: Array | None) -> None:
        gap = ~region.belongs[slots]
        if gap.any():
            slot = int(slots[gap][0])
            raise KernelFault(
                f"line {access.line} {access.deed} between the rows of {region.name}, where {region.element(slot)} "
                f"would be: {region.name} is {' x '.join(map(str, region.shape))}, and its rows begin "
                f"{max(region.strides)} elements apart. What lies between belongs to somebody else"
                + self._joined(access),
                access.line,
            )
        if access.deed != "reads" and region.is_input:
            deed = f"{access.deed} {region.element(int(slots[0]))}"
            raise KernelFault(
                f"line {access.line} {deed} ({access.program_name}): {region.name} is an input, which stays as it is",
                access.line,
            )
        if access.deed != "writes" and not region.written[slots].all():
            deed = f"{access.deed} {region.element(int(slots[~region.written[slots]][0]))}"
            raise KernelFault(
                f"line {access.line} {deed}, which nobody has written yet ({access.program_name}): it holds "
                "what was there before",
                access.line,
            )
        self._race(access, region, slots)
        if access.deed == "reads":
            known = region.reader[slots]
            region.reader[slots] = np.where((known == NOBODY) | (known == self.program), self.program, SEVERAL)
            return
        if access.deed == "writes" and values is not None:
            self._twice(access, region, slots, values)
        region.written[slots] = True
        region.writer[slots] = ATOMIC if access.deed == "updates" else self.program
        region.line[slots] = access.line

    def _race(self, access: Access, region: Region, slots: Array) -> None:
        """Raises KernelFault where another program of this launch has touched an element, and one of the two writes."""
        writers, readers = region.writer[slots], region.reader[slots]
        if access.deed == "updates":
            others = (writers != NOBODY) & (writers != ATOMIC) & (writers != self.program)
        else:
            others = (writers != NOBODY) & (writers != self.program)
        if others.any():
            slot = int(slots[others][0])
            raise KernelFault(
                race_sentence(access, region.element(slot), int(region.writer[slot]), int(region.line[slot])),
                access.line,
            )
        read = (readers != NOBODY) & (readers != self.program) & (access.deed != "reads")
        if read.any():
            slot = int(slots[read][0])
            raise KernelFault(race_sentence(access, region.element(slot), None, 0), access.line)

    def _joined(self, access: Access) -> str:
        said = joined_masks((self.code(access.line) or [""])[-1])
        return f". {said}" if said else ""

    def _twice(self, access: Access, region: Region, slots: Array, values: Array) -> None:
        order = np.argsort(slots, kind="stable")
        near, same = slots[order], values[order]
        twice = (near[1:] == near[:-1]) & ~(
            (same[1:] == same[:-1]) | ((same[1:] != same[1:]) & (same[:-1] != same[:-1]))
        )
        if twice.any():
            name = region.element(int(near[1:][twice][0]))
            raise KernelFault(
                f"line {access.line} writes {name} from several lanes of one block, with different values "
                f"({access.program_name}): which one stays is left to chance",
                access.line,
            )


class HostCalls(TorchFunctionMode):
    """What host code asks of torch: memory that it makes is known, and what computes is refused."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory, self.is_launching = memory, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_launching:
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in HOST_FUNCTIONS:
            line = self.memory.line()
            said = f"line {line} calls torch's {name}: host code makes memory and launches kernels, which compute"
            raise KernelFault(said, line)
        found = func(*args, **(kwargs or {}))
        if name in UNSET_MEMORY | SET_MEMORY:
            self.is_launching = True
            try:
                self.memory.add_host_memory(found, is_set=name in SET_MEMORY)
            finally:
                self.is_launching = False
        return found


# ---------------------------------------------------------------- the interpreter's own functions


def _with_lanes_off(memory: Memory, handle: Callable[..., Any], pointers: Any, mask: Any, dtype: Any) -> Any:
    """What a load gives in lanes that are off and for which nothing is said."""
    memory.undefined_line = memory.undefined_line or memory.line()
    size = np.dtype(dtype).itemsize
    anything = np.frombuffer(bytes([memory.lanes_off]) * size, dtype=dtype if dtype != np.bool_ else np.uint8)[0]
    return handle(np.full(pointers.data.shape, anything, dtype), pointers.get_element_ty())


def in_tf32(values: Array) -> Array:
    """Float32 rounded to TF32's 11 bits, as tensor cores take it."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)).view(
        np.float32
    )


@contextmanager
def watched_by(memory: Memory) -> Any:
    """The interpreter with a memory that sees every access of what runs inside."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    names = ("create_load", "create_store", "create_masked_load", "create_masked_store", "create_atomic_rmw",
             "create_atomic_cas", "set_grid_idx", "create_dot")  # fmt: skip
    own = {name: getattr(builder, name) for name in names}
    launch = executor.__call__
    calls = HostCalls(memory)
    whole = [False]  # whether the access that comes has no mask

    def load(self: Any, *given: Any) -> Any:
        whole[0] = True
        return own["create_load"](self, *given)

    def store(self: Any, *given: Any) -> Any:
        whole[0] = True
        return own["create_store"](self, *given)

    def has_mask() -> bool:
        found, whole[0] = not whole[0], False
        return found

    def masked_load(self: Any, pointers: Any, mask: Any, other: Any, *more: Any, **named: Any) -> Any:
        memory.touch("reads", pointers.data, mask.data, None, has_mask=has_mask())
        if other is None and not np.all(mask.data):
            dtype = interpreter._get_np_dtype(pointers.get_element_ty())
            other = _with_lanes_off(memory, interpreter.TensorHandle, pointers, mask, dtype)
        return own["create_masked_load"](self, pointers, mask, other, *more, **named)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        memory.touch("writes", pointers.data, mask.data, value.data, has_mask=has_mask())
        return own["create_masked_store"](self, pointers, value, mask, *more)

    def update(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *more: Any) -> Any:
        memory.touch("updates", pointers.data, mask.data, None, has_mask=True)
        return own["create_atomic_rmw"](self, operation, pointers, value, mask, *more)

    def swap(self: Any, pointers: Any, *more: Any) -> Any:
        memory.touch("updates", pointers.data, np.ones_like(pointers.data, bool), None, has_mask=True)
        return own["create_atomic_cas"](self, pointers, *more)

    def begin_program(self: Any, x: int, y: int, z: int) -> None:
        memory.grid = tuple(self.grid_dim)
        memory.program = (x * memory.grid[1] + y) * memory.grid[2] + z
        memory.idle += 1
        if memory.idle > MOST_IDLE:
            raise KernelFault(idle_sentence(memory.grid, memory.program - MOST_IDLE), 0)
        own["set_grid_idx"](self, x, y, z)

    def dot(self: Any, a: Any, b: Any, d: Any, precision: Any, *more: Any) -> Any:
        if "TF32" in str(precision) and a.data.dtype == np.float32:
            memory.tf32_line = memory.tf32_line or memory.line()
            a, b = (interpreter.TensorHandle(in_tf32(x.data), x.dtype) for x in (a, b))
        return own["create_dot"](self, a, b, d, precision, *more)

    def launched(self: Any, *given: Any, **named: Any) -> Any:
        calls.is_launching = True
        try:
            tensors = [(n, t) for n, t in [*zip(self.arg_names, given, strict=False), *named.items()]
                       if isinstance(t, Tensor)]  # fmt: skip
            memory.begin_launch(tensors)
            return launch(self, *given, **named)
        finally:
            calls.is_launching = False

    patched = (load, store, masked_load, masked_store, update, swap, begin_program, dot)
    for name, function in zip(names, patched, strict=True):
        setattr(builder, name, function)
    executor.__call__ = launched
    try:
        with calls:
            yield
    finally:
        for name, function in own.items():
            setattr(builder, name, function)
        executor.__call__ = launch
