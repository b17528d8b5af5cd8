"""C++ rooms to loadable libraries: g++ at first use, cached by source, flags and compiler, never trusted unhashed."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelworks import environment
from kernelworks.build.cache import BuildError, entry
from kernelworks.build.sources import hash_of, with_includes

__all__ = ["TARGETS", "BuildError", "Target", "library", "source_hash", "toolchain"]

SIMD = Path(__file__).resolve().parent.parent / "simd"
COMMON_FLAGS = (
    "-std=gnu++20", "-O3", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-unknown-pragmas",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One instruction set that rooms are compiled for: the flags, and what the CPU must have to run the result."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]


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
def toolchain() -> str:
    """The compiler as certificates and cache keys name it, such as ``"g++ 12.2.0"``. Raises BuildError without one."""
    command = environment.compiler()
    if shutil.which(command) is None:
        raise BuildError(f"no C++ compiler: {command!r} is not on the PATH (install g++, or set KERNELWORKS_CXX)")
    done = subprocess.run([command, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{command} -dumpfullversion exited with {done.returncode}: {done.stderr.strip()[:300]}")
    return f"{Path(command).name} {done.stdout.strip()}"


@functools.cache
def source_hash(source: Path, target: str) -> str:
    """SHA-256 over the source, the headers of ours that it includes, and the target's flags."""
    return hash_of(" ".join((*COMMON_FLAGS, *TARGETS[target].flags)), with_includes(source, SIMD))


def _include_flags() -> list[str]:
    import tvm_ffi.libinfo as libinfo

    folders = {libinfo.find_include_path(), libinfo.find_dlpack_include_path(), str(SIMD)}
    return [f"-I{folder}" for folder in sorted(folders)]


def _compile(source: Path, target: Target, output: Path) -> None:
    command = [
        environment.compiler(), *COMMON_FLAGS, *target.flags, *_include_flags(), str(source), "-o", str(output),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"could not run {command[0]!r}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr.strip()[:4000]}")


def built(source: Path, target: str) -> Path:
    """The path of the library for one source and target, compiled if the cache has no intact entry for it.

    Raises BuildError: no compiler, the compiler failed, or the cache folder cannot be written.
    """
    wanted = TARGETS[target]
    key = hashlib.sha256(f"{source_hash(source, target)} {toolchain()}".encode()).hexdigest()[:20]
    record = {"source": source.name, "target": target, "toolchain": toolchain()}
    stem = f"{source.parent.name}-{source.stem}-{target}-{key}"
    return entry(stem, ".so", functools.partial(_compile, source, wanted), record)


_loaded: dict[tuple[Path, str], Any] = {}
_loading = threading.Lock()


def library(source: Path, target: str) -> Any:
    """The loaded library; exported functions are attributes: ``library(path, "avx512").silu_mul(out, gate, up, 2)``.

    Cost: a hash of the sources and of the cached library the first time in a process; a compile (0.3 to 3 s) if it
    was never built. Raises BuildError.
    """
    found = _loaded.get((source, target))
    if found is None:
        with _loading:
            found = _loaded.get((source, target))
            if found is None:
                import tvm_ffi

                found = tvm_ffi.load_module(str(built(source, target)))
                _loaded[(source, target)] = found
    return found
