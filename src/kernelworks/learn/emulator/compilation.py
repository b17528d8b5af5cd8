"""A CUDA source as a library for the CPU, and the program that runs it: both built by g++ and cached.

The source is compiled with ``-fsanitize=thread``, which inserts a call before each load and store, and
``-fsanitize=bounds``, which inserts one where an index leaves its array. Neither sanitizer is linked: the runtime has
these functions itself.
"""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelworks.build.cache import entry
from kernelworks.build.compiler import compile_source, identity, toolchain
from kernelworks.learn.emulator.translation import translate

__all__ = ["LINES", "build_program", "build_sources", "source_lines"]

FOLDER = Path(__file__).resolve().parent
HEADER = FOLDER / "cuda_emulator.hpp"
RUNTIME = FOLDER / "runtime.cpp"
HEADERS = tuple(
    FOLDER / name
    for name in (
        "memory.hpp",
        "fibres.hpp",
        "shadow.hpp",
        "traffic.hpp",
        "warps.hpp",
        "scheduler.hpp",
        "atomics.hpp",
        "hooks.hpp",
        "printing.hpp",
        "intrinsics.hpp",
        "cooperative_groups.hpp",
        "host_runtime.hpp",
        "textures.hpp",
    )
)
RUNTIME_FLAGS = ("-std=gnu++20", "-O2", "-fno-exceptions", "-rdynamic", "-fPIE", "-pie")
PATTERN_INIT, ZERO_INIT = "-ftrivial-auto-var-init=pattern", "-ftrivial-auto-var-init=zero"
# Without optimization each access of the source is one that is seen: none is merged, split or moved. A local that
# nobody set has a value that nobody expects.
SOURCE_FLAGS = (
    "-std=gnu++20", "-O0", "-g1", "-fPIC", "-shared", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing",
    "-fno-stack-protector", "-fstack-clash-protection", "-ffp-contract=off", PATTERN_INIT,
    "-Werror=return-type", "-Werror=uninitialized", "-Wno-unknown-pragmas", "-fsanitize=thread", "-fsanitize=bounds",
    "--param=tsan-instrument-func-entry-exit=0", "--param=tsan-distinguish-volatile=1", "-nodefaultlibs",
)  # fmt: skip
LINES = 10000  # at most, of one source of several
FIRST_GENERATED_LINE = 1000 * LINES  # the number of the first line that is ours
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<[^>]+>", re.M)
LIBRARIES = ("-lstdc++", "-lm", "-lc", "-lgcc", "-lgcc_s")


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join((*parts, toolchain())).encode()).hexdigest()[:20]


@functools.cache
def _runtime_text() -> str:
    return "\0".join(path.read_text(encoding="utf-8") for path in (HEADER, RUNTIME, *HEADERS))


def build_program() -> Path:
    """The emulator itself: 3 s the first time on a machine. Raises BuildError."""
    stem = f"cuda-emulator-{_key(_runtime_text(), *RUNTIME_FLAGS)}"

    def make(output: Path) -> None:
        compile_source(RUNTIME_FLAGS, RUNTIME, "the CUDA emulator", output, ("-ldl",))

    return entry(stem, ".so", make, {"source": RUNTIME.name}, attempt=f"{stem}-{identity()}")


def _attempt(text: str, number: int, symbol: str) -> str:
    """One text under its own names: its function is ``symbol_NUMBER``, its lines begin at ``number * LINES + 1``."""
    return (
        f"namespace attempt_{number} {{\n#define {symbol} {symbol}_{number}\n#line {number * LINES + 1}\n"
        f"{INCLUDE.sub('', translate(text, symbol))}\n#line {FIRST_GENERATED_LINE}\n#undef {symbol}\n}}\n"
    )


def build_sources(texts: Sequence[str], name: str, declaration: str, types: Sequence[str], zeros: bool = False) -> Path:
    """One library of several CUDA sources, of which each defines the host function ``declaration`` that launches.

    ``types``: of its parameters. ``zeros``: a local that nobody set is 0. A compiler takes longer to start than for a
    source, so the tests hand it many at once.
    Raises NotTranslated, BuildError.
    """
    found = re.search(r"(\w+)\s*\(", declaration)
    if found is None:
        raise ValueError(f"not a declaration of a function: {declaration!r}")
    symbol, arguments = found[1], ", ".join(f"*({type_}*)kw_given[{i}]" for i, type_ in enumerate(types))
    numbers = range(len(texts))
    parts = [line for text in texts for line in INCLUDE.findall(translate(text))]
    parts += [f'extern "C" {declaration.replace(symbol, f"{symbol}_{n}", 1)};' for n in numbers]
    parts += [_attempt(text, n, symbol) for n, text in enumerate(texts)]
    parts.append(f"#line {FIRST_GENERATED_LINE}")
    parts += [f'extern "C" void kw_entry_{n}(void** kw_given) {{ {symbol}_{n}({arguments}); }}' for n in numbers]
    parts.append(f'extern "C" {{ extern const unsigned kw_arguments; const unsigned kw_arguments = {len(types)}; }}\n')
    whole = "\n".join(parts)
    chosen = [ZERO_INIT if zeros and flag == PATTERN_INIT else flag for flag in SOURCE_FLAGS]
    stem = f"learn-cuda-{_key(whole, _runtime_text(), *chosen)}"

    def make(output: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / name
            source.write_text(whole, encoding="utf-8")
            flags = (*chosen, "-include", str(HEADER), "-x", "c++")
            compile_source(flags, source, "the CUDA emulator", output, LIBRARIES)

    return entry(stem, ".so", make, {"source": name}, attempt=f"{stem}-{identity()}")


def source_lines(library: Path, offsets: Iterable[int], name: str) -> dict[int, int]:
    """The line of the source that each offset in the library stands for; 0 where none is known."""
    wanted = sorted(set(offsets) - {0})
    tool = shutil.which("addr2line")
    if tool is None or not wanted:
        return dict.fromkeys(wanted, 0)
    # A return address stands behind its call.
    given = "".join(f"{offset - 1:#x}\n" for offset in wanted)
    command = [tool, "-a", "-i", "-e", str(library)]
    found = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False).stdout
    lines, current = dict.fromkeys(wanted, 0), 0
    for said in found.splitlines():
        if said.startswith("0x"):
            current = int(said, 16) + 1
            continue
        match = re.match(r"(.*):(\d+)", said)
        if match and Path(match[1]).name == name and int(match[2]) < FIRST_GENERATED_LINE and not lines.get(current):
            lines[current] = int(match[2]) % LINES
    return lines
