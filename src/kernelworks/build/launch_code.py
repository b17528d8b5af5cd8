"""What launches a kernel, as one text: everything of ours that its callables reach.

The walk begins at live callables (``Kernel.load``, ``Kernel.prepare``) and goes by function, not by file: from a
function to what its names are bound to, through imports, closures, ``functools.partial``, defaults and the objects that
methods belong to. A method is reached where its class is and something reached asks an attribute of its name of
anything. Values enter as they are (numbers, strings, tuples, dicts, frozen dataclasses by what is asked of them),
foreign modules by their qualified names, a source that a constant or a path names by its text. Names of ours, files and
their places do not enter (``source_units.py``).

The walk stops at ``OUTSIDE``: what only chooses, records, measures, explains, or turns a source into a library. What a
library is made of is the other half of a kernel's hash (``kernels.py``).
"""

from __future__ import annotations

import enum
import functools
import hashlib
import os
import re
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from kernelworks.build.source_index import FILES, NAME, PACKAGE, Files
from kernelworks.build.source_units import FREE, HERE, SOURCES, ParsedUnit
from kernelworks.contract import Kernel

__all__ = ["FORMAT", "Launches", "Walk", "WholeModule", "clear_hashes", "kernel_hash", "walk_kernel"]

# Where the walk stops: modules, whole, or what they name.
OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "build.cache": (), "build.compiler": (), "build.constants": (), "build.cpp": (), "build.loading": (),
    "build.configs": ("_read", "table_of"), "build.cuda": ("cubin", "toolchain"),
    "build.kernels": ("triton_toolchain",), "build.written_source": ("WrittenSource",),
    "contract.arguments": (), "contract.tensor_argument": (),
    "machine.environment": (), "machine": (), "machine.gpu": (),
}  # fmt: skip


@dataclass(frozen=True)
class Launches:
    """A module whose functions launch, one for each pass, and may prepare a launch; not imported to be read. Where it
    is one for several ops, ``prefix`` is what their names begin with."""

    module: str
    passes: tuple[str, ...]
    prefix: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.prefix}{name}" for name in (*self.passes, *(f"prepare_{p}" for p in self.passes)))


@dataclass(frozen=True)
class WholeModule:
    """A module, by the path of its file, of which every statement counts."""

    module: str


# ---------------------------------------------------------------- the walk


class Walk:
    """From some live callables to all that they reach. ``text`` is what it found."""

    def __init__(self, roots: Iterable[Any], files: Files = FILES) -> None:
        self.files = files
        self.lines: list[str] = []
        self.reached: dict[tuple[str, int], None] = {}  # module and unit
        self.sources: set[Path] = set()
        self.held: list[tuple[Any, str]] = []  # values that no file says: of an object's field, of a function's cell
        self.unread: list[str] = []  # what was met and cannot be told, for the test that there is nothing of the kind
        self._numbers: dict[Any, int] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._attributes: set[str] = set()
        self._classes: list[tuple[int, str, dict[str, int]]] = []
        self._objects: list[tuple[int, Any]] = []
        self._alive: list[Any] = []  # whose ids are keys
        self.lines.append(f"roots {' '.join(self._value(root) for root in roots)}")
        while self._queue:
            self._queue.popleft()()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def _node(self, key: Any, fill: Callable[[int], None]) -> str:
        if key not in self._numbers:
            number = self._numbers[key] = len(self._numbers)
            self._queue.append(lambda: fill(number))
        return f"#{self._numbers[key]}"

    # ------------------------------------------------------------ what lies in files

    def _name(self, module: str, name: str) -> str:
        """What a module's name is bound to."""
        if (found := _outside(module, name)) is not None:
            return found
        index = self.files.index(module)
        if index is None:
            self.unread.append(f"no module {module} for {name}")
            return f"unknown {name}"
        told = [self._unit(module, number) for number in _numbers(index["names"].get(name, ""))]
        if name in index["imports"]:
            told.append(self._from(*index["imports"][name].split(" ")))
        if not told:
            if self.files.path_of(f"{module}.{name}") is not None:
                return self._module(f"{module}.{name}")
            self.unread.append(f"{module} has no {name}")
            return f"unknown {name}"
        return "+".join(told)

    def _from(self, module: str, name: str, attribute: str = "") -> str:
        """What an import binds, or an attribute of that."""
        if module != NAME and not module.startswith(f"{NAME}."):
            return ".".join(filter(None, (module, name, attribute)))
        whole = f"{module}.{name}" if name else module
        if self.files.path_of(whole) is not None and not (name and self._binds(module, name)):
            return self._name(whole, attribute) if attribute else self._module(whole)
        if not attribute:
            return self._name(module, name)
        self._ask([attribute])
        return f"{self._name(module, name)}.{attribute}"

    def _binds(self, module: str, name: str) -> bool:
        index = self.files.index(module)
        return index is not None and name in index["names"]

    def _module(self, module: str) -> str:
        """A module that is handed on as it is: all of it."""
        if (found := _outside(module, "")) is not None:
            return found

        def fill(number: int) -> None:
            index = self.files.index(module)
            names = sorted(index["names"]) if index else []
            self.lines.append(f"{number} module {' '.join(f'{n}={self._name(module, n)}' for n in names)}")

        return self._node(("module", module), fill)

    def _unit(self, module: str, unit: int, cells: Mapping[str, Any] | None = None, key: Any = None) -> str:
        def fill(number: int) -> None:
            index = self.files.index(module)
            assert index is not None
            its = ParsedUnit(index["units"][unit])
            self.reached[module, unit] = None
            told = [self._ref(module, ref, cells or {}) for ref in its.refs]
            told += [f"file {found}" for name in its.files if (found := self._file(module, name))]
            self.lines.append(f"{number} {its.text} {' '.join(told)}")
            self._ask(its.attributes)
            if its.methods:
                self._class(number, module, its.methods)

        return self._node(key or (module, unit), fill)

    def _ref(self, module: str, ref: list[str], cells: Mapping[str, Any]) -> str:
        kind, *rest = ref
        if kind == HERE:
            return self._name(module, rest[0])
        if kind == FREE:
            return self._value(cells[rest[0]]) if rest[0] in cells else "free"
        return self._from(*rest)

    def _file(self, module: str, name: str) -> str:
        path = self.files.path_of(module)
        beside = path.parent / name if path is not None else None
        return self._source(beside) if beside is not None and beside.is_file() else ""

    def _source(self, path: Path) -> str:
        self.sources.add(path.resolve())
        return self.files.source(path)

    # ------------------------------------------------------------ methods and fields, by what is asked of anything

    def _ask(self, attributes: Iterable[str]) -> None:
        for name in attributes:
            if name in self._attributes:
                continue
            self._attributes.add(name)
            for number, module, methods in self._classes:
                self._method(number, module, methods, name)
            for number, found in self._objects:
                self._field(number, found, name)

    def _class(self, number: int, module: str, methods: dict[str, int]) -> None:
        self._classes.append((number, module, methods))
        for name in sorted(self._attributes & methods.keys()):
            self._method(number, module, methods, name)

    def _method(self, number: int, module: str, methods: dict[str, int], name: str) -> None:
        if name in methods:
            self.lines.append(f"{number}.{name} = {self._unit(module, methods[name])}")

    def _field(self, number: int, found: Any, name: str) -> None:
        if name in _fields(found.__class__):
            self.held.append((found, name))
            self.lines.append(f"{number}.{name} = {self._value(getattr(found, name))}")

    # ------------------------------------------------------------ live values

    def _value(self, v: Any) -> str:
        if v is None or v is ... or type(v) in (bool, int, float, complex, str, bytes):
            lies = isinstance(v, str) and v.startswith("/") and os.path.exists(v)
            return "path" if lies else f"{type(v).__name__} {v!a}"
        if isinstance(v, (tuple, list)):
            return f"{'tuple' if isinstance(v, tuple) else 'list'}[{', '.join(map(self._value, v))}]"
        if isinstance(v, (set, frozenset)):
            return f"set[{', '.join(sorted(map(self._value, v)))}]"
        if isinstance(v, Mapping):
            return f"dict[{', '.join(f'{self._value(k)}: {self._value(x)}' for k, x in v.items())}]"
        if isinstance(v, Kernel):
            return self._kernel(v)
        if isinstance(v, Path):
            return f"file {self._source(v)}" if SOURCES.fullmatch(v.name) and v.is_file() else "path"
        if isinstance(v, Launches):
            return self._launches(v)
        if isinstance(v, WholeModule):
            if self.files.index(v.module) is None:
                self.unread.append(f"no module {v.module}")
            return f"whole {self.files.module_digest(v.module)}"
        if isinstance(v, functools.partial):
            parts = self._value(v.func), self._value(v.args), self._value(v.keywords)
            return f"partial[{', '.join(parts)}]"
        if isinstance(v, (types.FunctionType, types.MethodType, type, types.ModuleType)) or callable(v):
            return self._callable(v)
        return self._object(v)

    def _kernel(self, v: Kernel) -> str:
        if self.files is FILES:
            return f"row {v.hash()}"
        inner = walk_kernel(v, self.files)
        self.reached |= inner.reached
        self.sources |= inner.sources
        self.held += inner.held
        self.unread += inner.unread
        return f"row {_digest(inner)}"

    def _launches(self, v: Launches) -> str:
        index = self.files.index(v.module)
        known = index["names"].keys() | index["imports"].keys() if index else ()
        return f"launches[{', '.join(f'{n}={self._name(v.module, n)}' for n in v.names if n in known)}]"

    def _callable(self, v: Any) -> str:
        if isinstance(v, types.MethodType) and isinstance(v.__func__, types.FunctionType):
            return f"method[{self._value(v.__self__)}, {self._function(v.__func__)}]"
        if isinstance(v, types.FunctionType):
            return self._function(v)
        wrapped = getattr(v, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            return f"wrapped[{type(v).__qualname__}, {self._function(wrapped)}]"
        if isinstance(v, types.ModuleType):
            return self._from(v.__name__, "")
        if isinstance(v, type):
            return self._of_class(v)
        if _ours(type(v)):
            return self._object(v)
        return _foreign(v)

    def _of_class(self, v: type) -> str:
        if not _ours(v):
            return f"{v.__module__}.{v.__qualname__}"
        if "." in v.__qualname__:
            self.unread.append(f"a class within another thing: {v.__module__}.{v.__qualname__}")
            return "class"
        return self._name(v.__module__, v.__qualname__)

    def _object(self, v: Any) -> str:
        if isinstance(v, torch.Tensor):
            return f"tensor {v.dtype} {tuple(v.shape)} {v.tolist() if v.device.type == 'cpu' else ''}"
        if isinstance(v, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
            return str(v)
        if isinstance(v, re.Pattern):
            return f"pattern {v.pattern!a} {v.flags}"
        if isinstance(v, enum.Enum):
            return f"{self._of_class(type(v))}.{v.name}"
        if not _ours(type(v)):
            return _foreign(v)
        if (stop := _outside(type(v).__module__, type(v).__qualname__)) is not None:
            return stop
        if not is_dataclass(v):
            self.unread.append(f"an object of {type(v).__module__}.{type(v).__qualname__}")
            return f"object {self._of_class(type(v))}"

        def fill(number: int) -> None:
            self.lines.append(f"{number} object {self._of_class(type(v))}")
            self._objects.append((number, v))
            for name in sorted(self._attributes):
                self._field(number, v, name)

        self._alive.append(v)
        return self._node(("object", id(v)), fill)

    def _function(self, f: types.FunctionType) -> str:
        """A function: by its module's name where it is bound to one, else with what it has of the function around."""
        if isinstance(text := f.__dict__.get("written"), str):
            return self._written(f, text)
        module = _module_of(f)
        if not module:
            return f"{f.__module__}.{f.__qualname__}"
        index = self.files.index(module)
        if index is None:
            self.unread.append(f"{f.__qualname__} of {module}, which is no file")
            return f"unknown {f.__qualname__}"
        above, _, name = f.__qualname__.rpartition(".")
        if not above and name in index["names"]:
            return self._name(module, name)
        if above and "<locals>" not in f.__qualname__:
            for unit in _numbers(index["names"].get(above, "")):
                if name in (methods := ParsedUnit(index["units"][unit]).methods):
                    return self._unit(module, methods[name])
        return self._nested(f, module, index)

    def _nested(self, f: types.FunctionType, module: str, index: dict[str, Any]) -> str:
        code = f.__code__
        said = _numbers(index["nested"].get(f"{code.co_firstlineno}:{code.co_name}", ""))
        found = list(zip(said[::2], said[1::2], strict=True))
        if not found:
            self.unread.append(f"{f.__qualname__} of {module}: it lies no more where it did")
            return f"unknown {f.__qualname__}"
        self._alive.append(f)
        cells = dict(zip(code.co_freevars, (_held(cell) for cell in f.__closure__ or ()), strict=True))
        self.held += [(f, name) for name in cells]
        units = [self._unit(module, u, cells, ("function", id(f), u)) for u in _which(code, found)]
        defaults = [*(f.__defaults__ or ()), *(f.__kwdefaults__ or {}).values()]
        return f"function[{'+'.join(units)}, {', '.join(map(self._value, defaults))}]"

    def _written(self, f: types.FunctionType, text: str) -> str:
        """A function whose text was made: that, and what its names stand for."""
        index = self.files.index_text(text)
        said = [ParsedUnit(unit) for unit in index["units"]]
        units, attributes = [unit.text for unit in said], sorted({name for unit in said for name in unit.attributes})
        self._ask(attributes)
        scope = {n: v for n, v in f.__globals__.items() if n not in index["names"] and n != "__builtins__"}
        return f"written[{f.__name__}, {units}, {attributes}, {self._value(scope)}]"


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _numbers(text: str) -> list[int]:
    return list(map(int, text.split()))


def _which(code: types.CodeType, found: list[tuple[int, int]]) -> Iterator[int]:
    """Of the functions that begin on a line, the unit of the one that ``code`` is; all where that cannot be told."""
    if len(found) > 1:
        places = (p for p in code.co_positions() if p[0] == code.co_firstlineno and p[2] is not None and p[3])
        first = min((p[2] for p in places if p[2] is not None), default=None)
        before = [one for one in found if first is not None and one[0] < first]
        if before:
            found = [max(before)]
    return (unit for _, unit in found)


@functools.cache
def _fields(v: type) -> frozenset[str]:
    return frozenset(f.name for f in fields(v))


def _ours(v: type) -> bool:
    return v.__module__ == NAME or v.__module__.startswith(f"{NAME}.")


@functools.cache
def _module_of_file(file: str) -> str:
    """The module that a file is: its name where it is of ours, its path where it is anyone's else but a library's."""
    path = Path(file).resolve()
    if path.is_relative_to(PACKAGE):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        return ".".join((NAME, *(parts[:-1] if parts[-1] == "__init__" else parts)))
    library = {"site-packages", "dist-packages"} & set(path.parts) or path.is_relative_to(Path(types.__file__).parent)
    return "" if library or not path.is_file() else str(path)


def _module_of(f: types.FunctionType) -> str:
    return _module_of_file(f.__code__.co_filename)


def _foreign(v: Any) -> str:
    """What is none of ours, by its name."""
    name = getattr(v, "__qualname__", None) or getattr(v, "__name__", None)
    if isinstance(name, str):
        return f"{getattr(v, '__module__', None) or ''}.{name}"
    return f"a {type(v).__module__}.{type(v).__qualname__}"


def _outside(module: str, name: str) -> str | None:
    """What stands for a thing at which the walk stops."""
    inner = module.removeprefix(f"{NAME}.")
    stop = OUTSIDE.get(inner)
    if stop is None:
        return None
    return f"outside {name or inner.rpartition('.')[2]}" if not stop or name in stop else None


# ---------------------------------------------------------------- a kernel's hash

FORMAT = 2  # of hashes: those of 1 left out the code that launches a kernel
MOST = 4096  # kernels whose hash a process remembers

_hashes: dict[tuple[Any, ...], tuple[Any, str]] = {}


def kernel_hash(made_of: Callable[[], tuple[Any, ...]], kernel: Kernel) -> str:
    """SHA-256 over all that a kernel's callables reach, and over what else it is made of: flags, configurations,
    sources, other kernels. Cost: one to three milliseconds the first time in a process; once the files were read on a
    machine."""
    beside = made_of()
    key = (
        id(kernel.load),
        id(kernel.prepare),
        repr([part.hash() if isinstance(part, Kernel) else part for part in beside]),
    )
    if key not in _hashes:
        if len(_hashes) >= MOST:
            _hashes.clear()
        _hashes[key] = (kernel.load, kernel.prepare), _digest(Walk((kernel.load, kernel.prepare, beside)))
    return _hashes[key][1]


def walk_kernel(kernel: Kernel, files: Files = FILES) -> Walk:
    """The walk that a kernel's hash is made of."""
    assert isinstance(kernel.hashed, functools.partial), f"{kernel.name} is not hashed by row_hash"
    return Walk((kernel.load, kernel.prepare, kernel.hashed.args[0]()), files)


def _digest(walk: Walk) -> str:
    return hashlib.sha256(f"{FORMAT}\n{walk.text}".encode()).hexdigest()


def clear_hashes() -> None:
    """Forgets all files and hashes, for when one has changed on disk."""
    FILES.forget()
    _hashes.clear()
