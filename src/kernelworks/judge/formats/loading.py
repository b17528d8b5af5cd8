"""Where foreign code is loaded: in the processes that may run it, never in the one that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelworks.machine.source_module import execute_file

__all__ = ["LoadedCandidate", "Modules", "extension", "module_of"]


def module_of(name: str, source: str, folder: Path) -> ModuleType:
    """A module of this text, from a file in ``folder``: Triton and tracebacks read its lines there."""
    path = folder / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return execute_file(name, path, is_imported=True)


class Modules:
    """A loaded problem. Its loader says of what ``init`` and ``inputs`` are made, and what ``reference`` is."""

    def __init__(self, module: ModuleType, entry: str) -> None:
        self.module, self.entry = module, entry


class LoadedCandidate:
    """A loaded candidate: ``make(*init)`` is what is called with the inputs."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make


def extension(name: str, sources: Mapping[str, str], folder: Path, flags: Mapping[str, Sequence[str]] = {}) -> Any:
    """A C++ or CUDA extension of torch from these texts, built in ``folder``."""
    from torch.utils.cpp_extension import load

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for relative, source in sources.items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        if path.suffix in (".cu", ".cpp", ".cc", ".c"):
            paths.append(str(path))
    return load(
        name, paths, extra_cflags=list(flags.get("cflags", ())), extra_cuda_cflags=list(flags.get("cuda_cflags", ())),
        extra_ldflags=list(flags.get("ld_flags", ())), build_directory=str(folder), verbose=False,
    )  # fmt: skip
