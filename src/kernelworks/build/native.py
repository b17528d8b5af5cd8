"""The C++ entry of the ops (``dispatch/native/``): a Python extension, compiled once for the installed torch.

It takes some 20 s to compile, so no call of an op waits for it: a detached process builds it (``background.py``), or
the verbs that take seconds anyway do (``provide``). If the cache has it, ops take it at their first call. Without it
every call goes through Python, with the same results, some microseconds later.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.autograd import forward_ad, profiler

from kernelworks.build.cache import BuildError, entry, failure, intact
from kernelworks.build.compiler import compile_source, identity, toolchain
from kernelworks.build.loading import open_library
from kernelworks.build.sources import hash_of, with_includes
from kernelworks.contract.tensors import MEMORY_KEYS
from kernelworks.machine import environment

__all__ = [
    "TORCH", "BuildError", "build", "build_seconds", "fallback_reason", "find_extension", "is_absent", "is_buildable",
    "is_missing", "provide", "stem",
]  # fmt: skip

SOURCE = Path(__file__).resolve().parent.parent / "dispatch" / "native" / "native.cpp"
FLAGS = (
    "-std=gnu++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra",
    "-Wno-missing-field-initializers", "-Wno-unused-parameter",
    "-DAT_PER_OPERATOR_HEADERS",  # torch's headers then declare the operators that they call, not all 2000
)  # fmt: skip
COMPILED_AUTOGRAD = "-DKW_COMPILED_AUTOGRAD"
TORCH = Path(torch.__file__).resolve().parent
NOT_BUILT = "it is not built yet: processes that call ops have it built beside, `kernelworks verify` builds it at once"
LIBRARIES = ("-ltorch_python", "-ltorch_cpu", "-lc10")

_lock, _importing = threading.RLock(), threading.Lock()
_imported: dict[Path, ModuleType] = {}
_loaded: dict[str, ModuleType | str] = {}  # by cache folder: the module, or why there is none


def _abi() -> str:
    """What a compiled extension fits: this torch and this Python, no others."""
    python = f"{sys.implementation.cache_tag} {sysconfig.get_config_var('EXT_SUFFIX')} {platform.machine()}"
    return f"{python} torch {torch.__version__} {torch.version.git_version}"


@functools.cache
def _sources() -> str:
    return hash_of(" ".join((*FLAGS, COMPILED_AUTOGRAD, *LIBRARIES)), with_includes(SOURCE, SOURCE.parent))


def stem() -> str:
    """The name of its entry in the cache: another one for other sources, torch, Python or compiler. Raises BuildError
    without a compiler."""
    key = hashlib.sha256(f"{_sources()} {_abi()} {toolchain()}".encode()).hexdigest()[:20]
    return f"native-{key}"


def _folders() -> tuple[Path, Path, Path]:
    """Where the headers are. Raises BuildError."""
    folders = (TORCH / "include", TORCH / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    for header in (folders[0] / "torch/csrc/autograd/function.h", folders[2] / "Python.h"):
        if not header.is_file():
            raise BuildError(f"{header} is not there (install Python's and torch's headers)", about=str(header))
    return folders


def _compile(output: Path) -> None:
    folders = _folders()
    flags = [*FLAGS, *(word for folder in folders for word in ("-isystem", str(folder)))]
    # Behind the source, since that is what asks for them; by the names that torch has loaded them under.
    make = functools.partial(
        compile_source, source=SOURCE, target="torch", output=output, behind=(f"-L{TORCH / 'lib'}", *LIBRARIES)
    )
    try:
        make([*flags, COMPILED_AUTOGRAD])
    except BuildError as error:
        if "exited with" not in str(error) or not error.lasting:
            raise
        make(flags)  # what compiled autograd asks of a node changes more often than the rest of torch


BUILD_S = 45.0  # seconds that a build takes beside other work, on two cores


def provide(progress: Callable[[str], None] | None = None) -> ModuleType | None:
    """The extension for verbs that a user waits for anyway: built where it is not, unless the environment forbids it.

    None where it cannot be; ``fallback_reason`` says why, and calls go through Python.
    """
    made = find_extension()
    if made is None and _may_build():
        if progress is not None:
            progress("compiling the C++ entry of the ops, once for this torch: about 20 s of a free core")
        made = build()
    return made


def build() -> ModuleType | None:
    """The extension, compiled where the cache has none. None where it cannot be."""
    return _use(True)


def find_extension(again: bool = False) -> ModuleType | None:
    """The extension, where it was compiled before. Cost: a hash of one file, the first time in a process; what was not
    there then is only looked for ``again`` if that is asked for."""
    folder = _folder()
    if again and is_missing():
        try:
            found = _load(False)  # with no lock held: no call waits for it
        except (BuildError, ImportError) as error:
            found = str(error)
        with _lock:
            if _loaded.get(folder) == NOT_BUILT:
                _loaded[folder] = found
    return _use(False)


def is_missing() -> bool:
    """Whether it was looked for, and nothing else is known than that it is not built."""
    return _loaded.get(_folder()) == NOT_BUILT


def is_absent() -> bool:
    """Whether the cache has no file of it and no failure is on record. Unlike ``is_buildable`` it opens none. Raises
    BuildError without a compiler or headers."""
    _folders()
    name = stem()
    return not (environment.cache_dir("build") / f"{name}.so").is_file() and failure(f"{name}-{identity()}") is None


def build_seconds() -> float:
    """What ``provide`` would take here: 0 if the extension is there, also since it was last looked for, or cannot be
    built."""
    find_extension(again=True)
    return BUILD_S if _may_build() and is_buildable() else 0.0


def _may_build() -> bool:
    """Whether the environment leaves it to verbs to build."""
    return environment.native() in ("background", "build")


def is_buildable() -> bool:
    """Whether it could be built and is not: a compiler and headers are there, and no failure is on record."""
    try:
        find_extension()
        _folders()
        return is_missing() and failure(f"{stem()}-{identity()}") is None
    except BuildError:
        return False


def fallback_reason() -> str:
    """Why calls go through Python; "" where they go through C++."""
    if environment.native() == "0":
        return "KERNELWORKS_NATIVE is 0"
    find_extension()
    known = _loaded.get(_folder(), "")
    return known if isinstance(known, str) else ""


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    global _lock, _importing
    # A thread of the parent may have held the old ones: no thread of the child lets them go.
    _lock, _importing = threading.RLock(), threading.Lock()


def _folder() -> str:
    return str(environment.cache_dir("build"))


def _use(may_build: bool) -> ModuleType | None:
    if environment.native() == "0":
        return None
    folder = _folder()
    _watch_forks()
    with _lock:
        known = _loaded.get(folder)
        if known is None or (may_build and isinstance(known, str)):
            try:
                known = _load(may_build)
            except (BuildError, ImportError) as error:
                known = str(error)
            _loaded[folder] = known
    return known if isinstance(known, ModuleType) else None


def _load(may_build: bool) -> ModuleType | str:
    if not hasattr(torch._C, "_dispatch_keys") or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it needs Python's lock"
    name = stem()
    path = environment.cache_dir("build") / f"{name}.so"
    if may_build:
        record = {"source": SOURCE.name, "target": _abi(), "toolchain": toolchain()}
        path = entry(name, ".so", _compile, record, attempt=f"{name}-{identity()}")
    elif not intact(path, path.with_suffix(".json")):
        return NOT_BUILT
    with _importing:
        if path not in _imported:
            _imported[path] = _import(path)
        return _imported[path]


def _import(path: Path) -> ModuleType:
    open_library(path)  # a file cut short ends no process
    name = "kernelworks.native"
    loader = importlib.machinery.ExtensionFileLoader(name, str(path))
    spec: Any = importlib.util.spec_from_file_location(name, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.setup(MEMORY_KEYS, profiler, forward_ad)
    return module
