"""Running a user's module again and leaving no trace: copies of its arguments, and its state put back after each run.

``copy.deepcopy`` cannot be used for either: it raises at generators, locks and tensors that are not leaves, and a
copied module's closures go on calling the original's submodules.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import random
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.build.digest import look
from kernelworks.contract.tensors import is_plain, version_of
from kernelworks.profile.generators import (
    copy_generator,
    generator_state,
    is_generator,
    set_generator_state,
)

__all__ = [
    "NARROW",
    "State",
    "as_made",
    "duplicate",
    "fixed_seed",
    "is_overwritten",
    "keeps",
    "map_tensors",
    "moved_parameters",
    "put_values",
    "to_float64",
    "wide",
]

AS_THEY_ARE = (
    str, bytes, int, float, complex, bool, type(None), type, torch.dtype, torch.device, torch.Size, FunctionType,
    BuiltinFunctionType, MethodType, ModuleType, nn.Module,
)  # fmt: skip
CONTAINERS = (dict, list, set, collections.deque)
NARROW = (torch.float32, torch.bfloat16, torch.float16)
SEED = 20
MOST_BYTES = 1 << 30
ALIGNMENT = 16  # bytes, to which compilers ask where a tensor begins
MOST_APART = 8  # times its elements, over which a tensor that is copied as it lies may spread: parts of a joint product
LIBRARY_PACKAGES = {"kernelworks", "torch", *sys.stdlib_module_names} - {"__main__"}
DEEPEST, MOST_OBJECTS = 4, 1024  # attributes are put back to this depth, and of so many objects


def duplicate(value: Any) -> Any:
    """A copy that shares no tensor with ``value``; what cannot be copied (a lock, a file, a module) is shared."""
    return map_tensors(value, _twin)


def to_float64(value: Any) -> Any:
    """The same with every floating-point tensor in float64 and every complex one in complex128."""
    return map_tensors(value, lambda t: _wide(_twin(t)))


def is_overwritten(tensor: Tensor) -> bool:
    """Whether a tensor's memory has become another's: a result of ``torch.compile``'s CUDA graphs, a gradient among
    them, after their next run. Whatever reads or writes it raises."""
    if tensor.layout is not torch.strided:
        return False
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return True
    return False


def _twin(tensor: Tensor) -> Tensor:
    """A leaf of the same values, strides and alignment; a subclass stays one."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = _copy_in_place_alike(tensor.detach())
    if tensor.requires_grad and not made.is_inference():
        made.requires_grad_()
    return made


def _copy_in_place_alike(tensor: Tensor) -> Tensor:
    """A copy that lies as the tensor does, gaps and repeats too (``ids[:, :-1]``, ``x.expand(...)``): compiled code is
    for the strides that it was compiled with, and for others all of it is compiled again. Contiguous if the memory
    between the first and the last element is many times its own."""
    if not is_plain(tensor) or not tensor.numel():
        return tensor.clone()
    aside = tensor.data_ptr() % ALIGNMENT // tensor.itemsize
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if (_is_dense(tensor) and not aside) or extent > MOST_APART * tensor.numel():
        return tensor.clone()
    memory = tensor.new_empty(aside + extent)
    memory[aside:].copy_(tensor.as_strided((extent,), (1,)))
    return tensor.new_empty(0).set_(memory.untyped_storage(), aside, tensor.shape, tensor.stride())


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements fill their memory, each once, in whatever order of dimensions: a clone lies alike then."""
    filled = 1
    for step, n in sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1):
        if step != filled:
            return False
        filled *= n
    return True


def _wide(tensor: Tensor) -> Tensor:
    wanted = wide(tensor.dtype)
    if wanted is tensor.dtype:
        return tensor
    with torch.inference_mode(tensor.is_inference()):
        return tensor.detach().to(wanted).requires_grad_(tensor.requires_grad and not tensor.is_inference())


def wide(dtype: torch.dtype) -> torch.dtype:
    """float64 for the dtypes that programs compute in; others (float8 and integers) are what they are."""
    if dtype in NARROW:
        return torch.float64
    return torch.complex128 if dtype in (torch.complex64, torch.complex32) else dtype


def map_tensors(
    value: Any, change: Callable[[Tensor], Tensor], seen: dict[int, Any] | None = None, *, in_place: bool = False
) -> Any:
    """A copy of ``value`` with its tensors changed; what stands in it twice stands in the copy twice. ``in_place``
    containers and objects are written to and no copies; a tuple is a new one if something in it is."""
    if isinstance(value, AS_THEY_ARE):
        return value
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)][0]

    def keep(made: Any) -> Any:
        seen[id(value)] = (made, value)  # the value too: its number must not be another's
        return made

    def mapped(item: Any) -> Any:
        return map_tensors(item, change, seen, in_place=in_place)

    def write(into: Callable[..., None], key: Any, item: Any, *more: Any) -> None:
        new = mapped(item)
        if new is not item or not in_place:  # a copy may have been made without it
            into(made, key, new, *more)

    if isinstance(value, Tensor):
        return keep(change(value))
    if is_generator(value):
        return keep(value if in_place else copy_generator(value))
    if isinstance(value, tuple):
        items = [mapped(item) for item in value]
        same = in_place and all(new is old for new, old in zip(items, value, strict=True))
        return keep(value if same else _tuple_like(value, items))
    try:
        made = keep(value if in_place else copy.copy(value))
    except Exception:  # a lock, a file, a socket
        return keep(value)
    if isinstance(made, dict):
        for key in list(made):
            write(_put, key, value[key], dict)
    elif isinstance(made, (list, collections.deque)):
        for index, item in enumerate(value):
            write(_put, index, item, list if isinstance(made, list) else collections.deque)
    space = getattr(value, "__dict__", None)
    if isinstance(space, dict) and (in_place or getattr(made, "__dict__", None) is not space):
        for name, item in list(space.items()):
            write(_set, name, item)
    for name in _slots(type(value)):
        with contextlib.suppress(AttributeError, TypeError):  # it has none
            write(_set, name, getattr(value, name))
    return made


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    """A tuple of the same kind. Its own ``__new__`` is passed over: it may take other arguments than the items."""
    try:
        made = tuple.__new__(type(value), items)
    except TypeError:  # of torch's results, which C makes
        made = type(value)(items)
    with contextlib.suppress(AttributeError):
        made.__dict__.update(value.__dict__)
    return made


def _put(made: Any, key: Any, item: Any, kind: Any) -> None:
    """Writes an item, also if the container's class lets nobody."""
    try:
        made[key] = item
    except Exception:  # whatever such a class raises
        kind.__setitem__(made, key, item)


def _set(made: Any, name: str, item: Any) -> None:
    """Sets an attribute; a frozen dataclass is written past its guard."""
    with contextlib.suppress(AttributeError, TypeError):
        object.__setattr__(made, name, item)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        names = base.__dict__.get("__slots__", ())
        yield from (n for n in ((names,) if isinstance(names, str) else names) if n not in ("__dict__", "__weakref__"))


# ---------------------------------------------------------------- a module's state


@dataclasses.dataclass
class _Saved:
    tensor: Tensor
    data: Tensor  # what it held: the very storage, for float64 takes its place meanwhile
    copy: Tensor | None  # None of a parameter of a large module: who writes those in a forward keeps what he wrote
    version: int


class State:
    """What a module is before we run it: attributes, buffers, parameters, modes, and what objects hold that it keeps
    (a cache with a position, say). ``restore()`` puts all of it back.

    Memory: a copy of its tensors; of parameters only if they hold less than a gigabyte.
    """

    def __init__(self, module: nn.Module, *beside: Any) -> None:
        """``beside``: objects that its calls are given, and may write into."""
        self._large = sum(p.nbytes for p in module.parameters()) > MOST_BYTES
        self._spaces: list[tuple[Any, dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        self._tensors: dict[int, _Saved] = {}
        self._generators: list[tuple[Any, Any]] = []
        self._objects: set[int] = set()
        for each in module.modules():
            self._spaces.append((each, dict(each.__dict__)))
            for value in each.__dict__.values():
                self._see(value)
        for each in beside:
            self._see(each)

    def _see(self, value: Any, depth: int = 0) -> None:
        if isinstance(value, Tensor):
            if id(value) not in self._tensors:
                with torch.inference_mode(value.is_inference()), torch.no_grad():
                    left = self._large and isinstance(value, nn.Parameter)
                    copied = None if left else value.detach().clone()
                    self._tensors[id(value)] = _Saved(value, value.data, copied, version_of(value))
        elif is_generator(value):
            self._generators.append((value, generator_state(value)))
        elif isinstance(value, CONTAINERS):
            self._contents.append((value, copy.copy(value)))
            for item in value.values() if isinstance(value, dict) else value:
                if isinstance(item, Tensor) or is_generator(item) or keeps(item):
                    self._see(item, depth)
        elif depth < DEEPEST and keeps(value) and id(value) not in self._objects and len(self._objects) < MOST_OBJECTS:
            self._objects.add(id(value))
            self._spaces.append((value, dict(value.__dict__)))
            for item in value.__dict__.values():
                self._see(item, depth + 1)

    def restore(self) -> None:
        for saved in self._tensors.values():
            with torch.inference_mode(saved.version < 0), torch.no_grad():
                if _moved(saved):
                    saved.tensor.data = saved.data
                written = saved.version < 0 or version_of(saved.tensor) != saved.version
                if saved.copy is not None and (written or not _unwritten(saved)):
                    put_values(saved.tensor, saved.copy)
                    saved.version = version_of(saved.tensor)
        for generator, state in self._generators:
            set_generator_state(generator, state)
        for container, content in self._contents:
            if isinstance(container, list):
                container[:] = content
            elif not _same(container, content):
                container.clear()
                (container.extend if isinstance(container, collections.deque) else container.update)(content)
        for holder, space in self._spaces:
            if not _same(holder.__dict__, space):
                holder.__dict__.clear()
                holder.__dict__.update(space)

    def widen(self) -> None:
        """Every tensor of the module in float64, in place, so that whoever holds the module or its parameters sees
        them. Until ``restore()``. Memory: eight bytes an element."""
        for saved in self._tensors.values():
            wanted = wide(saved.tensor.dtype)
            if wanted is not saved.tensor.dtype:
                # a tensor made in inference mode stays one, or it is neither: it has no version for torch to look at
                with torch.inference_mode(saved.version < 0), torch.no_grad():
                    saved.tensor.data = saved.data.to(wanted)

    def tensors(self) -> list[Tensor]:
        """The tensors that are no parameters: what a run may have changed."""
        return [s.tensor for s in self._tensors.values() if not isinstance(s.tensor, nn.Parameter)]


def put_values(tensor: Tensor, values: Tensor) -> None:
    """Writes into a tensor in place; of an expanded one each element once, since torch writes into no other."""
    for dim, step in enumerate(tensor.stride() if tensor.layout is torch.strided else ()):
        if not step and tensor.shape[dim] > 1:
            tensor, values = tensor.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    tensor.copy_(values)


def as_made(tensor: Tensor) -> contextlib.AbstractContextManager[None]:
    """The mode in which it was made: given memory of the other mode, an inference tensor would be neither."""
    return torch.inference_mode(tensor.is_inference())


def keeps(value: Any) -> bool:
    """Whether it is a plain object of attributes. Those of the standard library (a lock, a queue, a logger) and of
    torch's have users of their own."""
    if isinstance(value, (*AS_THEY_ARE, Tensor)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return str(type(value).__module__).partition(".")[0] not in LIBRARY_PACKAGES


def _unwritten(saved: _Saved) -> bool:
    """Whether a tensor holds what it held: compiled code, ``.data`` and NumPy write and count no version."""
    if saved.copy is None or saved.tensor.layout is not torch.strided:
        return True
    return torch.equal(saved.tensor, saved.copy)


def _moved(saved: _Saved) -> bool:
    """Whether another memory, size or order was put in its place."""
    if saved.tensor.layout is not torch.strided or saved.data.layout is not torch.strided:
        return saved.tensor.dtype is not saved.data.dtype
    return look(saved.tensor) != look(saved.data)


def _same(container: Any, content: Any) -> bool:
    if isinstance(content, dict):
        return len(container) == len(content) and all(k in container and container[k] is v for k, v in content.items())
    return len(container) == len(content) and all(a is b for a, b in zip(container, content, strict=True))


MOVE_SCALE = 0.25  # values move by this share of a parameter's mean size; of 1 if all are 0


@contextlib.contextmanager
def moved_parameters(module: nn.Module) -> Iterator[bool]:
    """Other values in a module's parameters of floating point, of the same size; their own again afterwards. Gives
    whether there are any. Of a large module, whose parameters ``State`` does not copy either, none are moved."""
    held = {id(p): p for p in module.parameters() if p.is_floating_point() and not p.is_inference()}.values()
    if sum(p.nbytes for p in held) > MOST_BYTES:
        held = {}.values()
    before = [(p, p.detach().clone()) for p in held]
    sources = {device: torch.Generator(device).manual_seed(SEED) for device in {p.device for p, _ in before}}
    try:
        with torch.no_grad():
            for p, value in before:
                size = value.abs().mean().item() or 1.0
                drawn = torch.rand(p.shape, generator=sources[p.device], device=p.device)
                p.add_((MOVE_SCALE * size * (drawn - 0.25)).to(p))  # a mean of its own, which sums show
        yield bool(before)
    finally:
        with torch.no_grad():
            for p, value in before:
                p.copy_(value)


# ---------------------------------------------------------------- the process's state


@contextlib.contextmanager
def fixed_seed() -> Iterator[None]:
    """The same random numbers each time, of torch, Python and NumPy; and the program's own again afterwards."""
    python, numpy = random.getstate(), sys.modules.get("numpy")
    state = numpy.random.get_state() if numpy is not None else None
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=list(gpus)):
        torch.manual_seed(SEED)
        random.seed(SEED)
        if numpy is not None:
            numpy.random.seed(SEED)
        try:
            yield
        finally:
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(state)
            torch.set_default_dtype(dtype)
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
