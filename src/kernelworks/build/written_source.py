"""C++ that lies in no file: ops that are entries of a table have their texts formed when a library is built.

All texts of a table are one source, and so one compile for each instruction set. Each op's kernels hang on its own
text, and on the headers that all include: another entry in the table changes no hash but its own.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.build.cpp import SIMD, differs, flags_of, library, toolchain
from kernelworks.build.cpp_text import bare
from kernelworks.build.kernels import cpu_guard
from kernelworks.build.launch_code import kernel_hash
from kernelworks.build.sharing import watch_forks
from kernelworks.contract import Kernel
from kernelworks.machine import environment

__all__ = ["WrittenSource", "written_kernels"]


@dataclass(frozen=True)
class WrittenSource:
    """A source that is formed of ``texts()`` behind a header of ``simd/``; ``name`` says whose it is."""

    name: str
    header: str
    texts: Callable[[], Iterable[str]]

    def path(self) -> Path:
        """The file that a compiler reads, in the cache folder, written where it does not lie there whole."""
        text = "\n".join((f'#include "{self.header}"', *self.texts()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = environment.cache_dir("build") / self.name / f"{digest}.cpp"
        if not path.is_file() or path.read_bytes() != text.encode():
            environment.write_whole(path, text, ".written-")
        return path


def written_kernels(
    source: WrittenSource, text: str, targets: Iterable[str], launches: Mapping[str, Callable[..., Any]], said: Path
) -> list[Kernel]:
    """One kernel per target, best first, of one of the texts of a source. ``launches`` by pass take the library and
    return what calls its functions; ``said`` is the file that says the op."""
    header = SIMD / source.header

    def made_of(target: str) -> tuple[Any, ...]:
        return (bare(text), header, *flags_of(header, target))

    return [
        Kernel(
            name=target,
            target=target,
            load=functools.partial(_load, source, target, launches),
            guard=functools.partial(cpu_guard, target, ()),
            source=said,
            hashed=functools.partial(kernel_hash, functools.partial(made_of, target)),
            toolchain=toolchain,
            passes=tuple(launches),
            differs=functools.partial(differs, header, target),
        )
        for target in targets
    ]


def _load(
    source: WrittenSource, target: str, launches: Mapping[str, Callable[..., Any]], pass_: str
) -> Callable[..., Any]:
    watch_forks()
    call: Callable[..., Any] = launches[pass_](library(source.path(), target))
    return call
