"""C++ op packages to loadable libraries: g++ at first use, cached by source, flags and compiler, never trusted
unhashed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks.build.cache import BuildError, entry, failure, remember
from kernelworks.build.compiler import compile_source, identity, toolchain
from kernelworks.build.constants import constants_of, write_variant
from kernelworks.build.loading import load_library
from kernelworks.build.sources import hash_of, with_includes
from kernelworks.machine import environment

__all__ = [
    "DIFFERING", "SIMD", "TARGETS", "BuildError", "Target", "differs", "flags_of", "library", "source_hash", "stand_in",
    "toolchain", "variant",
]  # fmt: skip

SIMD = Path(__file__).resolve().parent.parent / "simd"
INTRINSICS = Path(__file__).resolve().parent / "intrinsics"  # a compiler's headers, read as far as kernels need them
COMMON_FLAGS = (
    "-std=gnu++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas",
)  # fmt: skip


# What gcc and clang say of a name that no header has declared.
UNKNOWN_NAME = re.compile(
    r"error: .*(not a member of|was not declared|does not name a type|no member named|use of undeclared|unknown type)"
)


@dataclass(frozen=True)
class Target:
    """One instruction set that op packages are compiled for: the flags, and what the CPU must have to run the
    result."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


# Instructions whose results the makers of CPUs do not agree on to the last bit: approximations, whose tables are each
# maker's own; sums of products of 16-bit numbers, rounded where each maker rounds them; x87's functions. All others
# that a compiler makes of our sources are fixed by IEEE 754. What a disassembler calls them -> the intrinsic by which
# alone a source of ours asks for them (None: no source does). A test disassembles every library.
DIFFERING: Mapping[str, str | None] = {
    r"vdpbf16ps": "_dpbf16_ps",
    r"vdpphps|tdp(bf16|fp16)ps": None,
    r"v?r(cp|sqrt)(ss|ps|14[sp][sd]|28[sp][sd])|vexp2p[sd]": None,
    r"f(sin|cos|sincos|ptan|patan|2xm1|yl2x|yl2xp1)": None,
}


@functools.cache
def differs(source: Path, target: str) -> str:
    """The instruction that a library has and whose result is each maker's own; "" where there is none."""
    text = "".join(path.read_text(encoding="utf-8") for path in with_includes(source, SIMD))
    found = (name for name, asked in DIFFERING.items() if asked and asked in text)
    return next((name for name in found if target == "avx512_bf16"), "")


# Explicit flags: gcc 12 takes a Zen 5 for a Zen 3 under -march=native. The scalar target must stay scalar to be what
# it says it is, so the vectoriser is off there.
TARGETS = {
    t.name: t
    for t in (
        Target("scalar", ("-O2", "-fno-tree-vectorize"), frozenset()),
        Target("avx2", ("-march=x86-64-v3", "-mtune=generic"), frozenset({"avx2", "fma", "f16c"})),
        Target(
            "avx512",
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl"}),
        ),
        Target(
            "avx512_vnni",
            ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512vnni"),
            frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}),
        ),
        Target(
            "avx512_bf16",
            ("-march=x86-64-v4", "-mprefer-vector-width=512", "-mavx512bf16"),
            frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"}),
        ),
    )
}


@functools.cache
def source_hash(source: Path, target: str) -> str:
    """SHA-256 over the source, the headers of ours that it includes, the target's flags, and what of them the op
    package has otherwise (``constants``)."""
    return hash_of(" ".join(filter(None, flags_of(source, target))), with_includes(source, SIMD))


def flags_of(source: Path, target: str) -> tuple[str, ...]:
    """What a library is compiled with, and what of its sources the op package has otherwise."""
    return (*COMMON_FLAGS, *TARGETS[target].flags, constants_of(source, target).text)


def _include_flags(*, whole: bool = False) -> list[str]:
    """``whole``: the compiler's own headers, as they are."""
    import tvm_ffi.libinfo as libinfo

    folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path(), str(SIMD)}
    return [f"-I{folder}" for folder in sorted(folders if whole else {*folders, str(INTRINSICS)})]


def _compile(source: Path, target: Target, output: Path) -> None:
    constants = constants_of(source, target.name)
    if constants.text:
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            changed, shared = write_variant(source, constants.numbers, SIMD, Path(folder)), f"-I{folder}/simd"
            _compiled(changed, dataclasses.replace(target, flags=(*target.flags, *constants.flags, shared)), output)
        return
    _compiled(source, target, output)


def _compiled(source: Path, target: Target, output: Path) -> None:
    """What a source asks of the compiler's headers beyond what kernels need, it finds at the second attempt."""
    flags = (*COMMON_FLAGS, *target.flags)
    try:
        compile_source((*flags, *_include_flags()), source, target.name, output)
    except BuildError as error:
        if not UNKNOWN_NAME.search(str(error)):
            raise
        compile_source((*flags, *_include_flags(whole=True)), source, target.name, output)


def _stem(source: Path, target: str) -> str:
    key = hashlib.sha256(f"{source_hash(source, target)} {toolchain()}".encode()).hexdigest()[:20]
    return f"{source.parent.name}-{source.stem}-{target}-{key}"


def build_library(source: Path, target: str, *, unlike: str = "") -> Path:
    """The path of the library for one source and target, compiled if the cache has no intact entry for it.

    Raises BuildError: no compiler, the compiler failed (now, or within the hour) or took too long, or the cache folder
    cannot be written. ``unlike`` is the hash of a library that would not load and is not to come again.
    """
    wanted = TARGETS[target]
    record = {"source": source.name, "target": target, "toolchain": toolchain()}
    stem, make = _stem(source, target), functools.partial(_compile, source, wanted)
    return entry(stem, ".so", make, record, attempt=f"{stem}-{identity()}", unlike=unlike)


_loaded: dict[tuple[Path, str], Any] = {}
_failed: dict[tuple[Path, str, str, str], BuildError] = {}  # with the compiler's name and the cache's folder
_loading = threading.RLock()  # one library at a time; compilers work beside each other
_wanted: dict[tuple[Path, str, str, str], threading.Lock] = {}  # held by whoever compiles and loads such a library


@functools.cache
def _watch_forks() -> None:
    os.register_at_fork(after_in_child=_renew)


def _renew() -> None:
    global _loading
    _loading = threading.RLock()  # a thread of the parent may have held the old one: no thread of the child lets it go
    _wanted.clear()


def library(source: Path, target: str) -> Any:
    """The loaded library; exported functions are attributes: ``library(path, "avx512").silu_mul(out, gate, up, 2)``.

    Cost: a hash of the sources and of the cached library the first time in a process; a compile (0.3 to 3 s) if it
    was never built. Raises BuildError, and what failed once in a process is not tried again in it.
    """
    found = _loaded.get((source, target))
    if found is None:
        _watch_forks()
        key = (source, target, environment.compiler(), str(environment.cache_dir("build")))
        with _loading:
            alone = _wanted.setdefault(key, threading.Lock())
        with alone:
            found = _loaded.get((source, target))
            if found is None:
                if key in _failed:
                    raise _failed[key].with_traceback(None)
                try:
                    found = _loaded[source, target] = _load(source, target)
                except BuildError as error:
                    _failed[key] = error
                    raise
    return found


def variant(source: Path, target: str, flags: tuple[str, ...], shared: Path) -> Any:
    """The loaded library of a source that is none of ours as it lies, with further flags, and another folder in the
    place of the headers that all share. Raises BuildError."""
    wanted = dataclasses.replace(TARGETS[target], flags=(*TARGETS[target].flags, *flags, f"-I{shared}"))
    key = hash_of(" ".join((*COMMON_FLAGS, *wanted.flags[:-1], toolchain())), with_includes(source, shared))
    stem, make = f"{source.parent.name}-{target}-{key[:20]}", functools.partial(_compiled, source, wanted)
    return load_library(entry(stem, ".so", make, {"source": source.name, "target": target}, attempt=stem), source)


def stand_in(source: Path, target: str, found: Any) -> None:
    """From here on this process has that library for a source and target."""
    _loaded[source, target] = found


def _load(source: Path, target: str) -> Any:
    """A library that will not load is built anew, once: the file in the cache may have been damaged before it was
    hashed. What still will not load is remembered, but for a file system that lets nothing be loaded."""
    path = build_library(source, target)
    try:
        with _loading:
            return load_library(path, source)
    except BuildError as error:
        if error.about == str(path.parent):
            raise
    attempt = f"{path.stem}-load-{identity()}"
    known = failure(attempt)
    if known is not None:
        raise known
    again = build_library(source, target, unlike=hashlib.sha256(path.read_bytes()).hexdigest())
    try:
        with _loading:
            return load_library(again, source)
    except BuildError as error:
        lasting = BuildError(f"{error} (built anew, too)", about=f"{toolchain()} {error.about}", lasting=True)
        remember(attempt, lasting)
        raise lasting from error
