"""CUDA C++ as g++ can read it: shared arrays, launches and CUDA's headers, each rewritten on its own line.

    __shared__ float tile[32][33];   ->  a reference to memory that the runtime owns
    extern __shared__ float s[];     ->  a pointer to the launch's dynamic shared memory
    add<<<grid, block>>>(x, y, n);   ->  kw::launch({grid, block}, line, [=] { add(x, y, n); })
    #include <cuda_runtime.h>        ->  nothing: the emulator's header has it

All other words of CUDA are macros and functions of ``cuda_emulator.hpp``. No line is added or taken away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernelworks.learn.emulator.qualifiers import refusals

__all__ = ["NotTranslated", "translate"]

TEXT_TO_SKIP = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)'|^[ \t]*\#(?:[^\n\\]|\\.)*""", re.S | re.M
)
HEADER = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"](cuda\w*|device_launch_parameters|vector_types|math_constants"
    r"|cooperative_groups(?:/reduce|/scan)?)\.h[>\"]", re.M,
)  # fmt: skip
LIBRARY = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]((?:thrust|cub|cuda)/[\w./]+"
    r"|(?:cu(?:rand|blas|fft|sparse|solver|dnn)|mma|nccl)\w*\.h|cooperative_groups/memcpy_async\.h)[>\"]", re.M,
)  # fmt: skip
# Names that the C library has too, for something else.
INTRINSIC = re.compile(r"\b__(expf|exp10f|logf|log2f|log10f|sinf|cosf|tanf|powf)\s*\(")
NOT_EMULATED = {
    r"\basm\b": "PTX in asm() is not emulated",
    r"\b(this_grid|grid_group|this_cluster|cluster_group)\b": "groups of several blocks are not emulated: a block's "
    "threads and tiles of a warp are",
    r"\b(coalesced_threads|coalesced_group|labeled_partition|binary_partition)\b": "groups of whichever threads come "
    "along are not emulated: tiled_partition<32> is",
    r"\b(nvcuda|wmma)\b": "tensor cores are not emulated",
    r"\bcuda::(barrier|pipeline|memcpy_async)\b": "cuda::barrier and copies in the background are not emulated",
    r"\bcudaLaunch(Kernel|CooperativeKernel)\b": "cudaLaunchKernel is not emulated: write kernel<<<grid, block>>>(...)",
    r"\btexture\s*<": "texture references are not emulated (CUDA 12 has none): texture objects are",
    r"\b(surf[123]D\w*|cudaSurfaceObject_t)\b": "surfaces are not emulated",
    r"\b(tex3D|texCubemap|tex[12]DLayered|tex2Dgather|tex[123]DLod|tex[123]DGrad|cudaMalloc3DArray)\w*\b": "of "
    "textures those of one and two dimensions are emulated, without layers and levels",
    r"\bcuda(Graph\w+|StreamBeginCapture\w*)\b": "CUDA graphs are not emulated: launch one kernel after the other",
    r"\bcuda(IpcGet\w+|DeviceEnablePeerAccess|MemcpyPeer\w*)\b": "one GPU is emulated, in one process",
}  # fmt: skip
DECLARATOR = re.compile(r"^(?P<name>[A-Za-z_]\w*)\s*(?P<dimensions>(?:\[.*\])?)\s*$", re.S)
FIRST = re.compile(r"^(?P<type>.*[\s*&>])(?P<rest>[A-Za-z_]\w*\s*(?:\[.*\])?\s*)$", re.S)
ALIGNMENT = re.compile(r"__align__\s*\([^)]*\)|alignas\s*\([^)]*\)|__attribute__\s*\(\([^)]*\([^)]*\)\s*\)\)")


@dataclass
class NotTranslated(Exception):
    """A line of a CUDA source that the emulator cannot run, and why."""

    line: int
    text: str
    code: str = ""  # the line itself

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def _blank(text: str) -> str:
    """The text with comments, strings and preprocessor lines as blanks: the same length, the same lines."""

    def erase(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return TEXT_TO_SKIP.sub(erase, text)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _top_level(text: str, separator: str) -> list[str]:
    """The parts between separators that stand in no bracket."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(text):
        if c in "([{<":
            depth += 1
        elif c in ")]}>" and not (c == ">" and text[i - 1 : i] == "-"):
            depth -= 1
        elif c == separator and depth == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def _padded(made: str, original: str) -> str:
    """What replaces a piece of source, on as many lines."""
    return made.replace("\n", " ") + "\n" * original.count("\n")


def _shared(statement: str, line: int, number: int, at_file_scope: bool) -> str:
    """The declaration of shared arrays as references into the runtime's memory."""
    dynamic = re.search(r"\bextern\b", statement) is not None
    words = ALIGNMENT.sub(" ", re.sub(r"\b(__shared__|extern|static)\b", " ", statement)).strip()
    if at_file_scope and not dynamic:
        raise NotTranslated(
            line, "declare __shared__ arrays inside the kernel: the emulator knows none of a whole file"
        )
    parts = _top_level(words, ",")
    first = FIRST.match(parts[0].strip())
    if "=" in words:
        raise NotTranslated(
            line, "a __shared__ array has no values where it is made: the threads set it, and a barrier follows"
        )
    if first is None:
        raise NotTranslated(line, f"a __shared__ array is declared as `__shared__ float name[SIZE];`, not {words!r}")
    base, made = first["type"].strip(), []
    for i, part in enumerate([first["rest"], *parts[1:]]):
        declarator = DECLARATOR.match(part.strip())
        if declarator is None:
            raise NotTranslated(line, f"a __shared__ array is declared as `__shared__ float name[SIZE];`, not {part!r}")
        name, dimensions, known = declarator["name"], declarator["dimensions"], f"kw_type_{number}_{i}"
        if dynamic:
            rest = re.sub(r"^\[\s*\]", "", dimensions)
            made.append(
                f'typedef {base} {known}{rest}; {known}* const {name} = ({known}*)kw_dynamic_shared("{name}", {line});'
            )
            continue
        made.append(
            f"typedef {base} {known}{dimensions}; "
            f'{known}& {name} = kw::shared_array<{known}, {number * 16 + i}>("{name}", {line});'
        )
    return " ".join(made)


def _statement_begin(code: str, position: int) -> int:
    return max(code.rfind(c, 0, position) for c in ";{}") + 1


def _replace_shared(text: str) -> str:
    number = 0
    while True:
        code = _blank(text)
        match = re.search(r"\b__shared__\b", code)
        if match is None:
            return text
        begin, end = _statement_begin(code, match.start()), code.find(";", match.end())
        if end < 0:
            raise NotTranslated(_line(text, match.start()), "no `;` ends this __shared__ declaration")
        begin += len(code[begin:]) - len(code[begin:].lstrip())
        depth = code.count("{", 0, begin) - code.count("}", 0, begin)
        made = _shared(code[begin:end], _line(text, match.start()), number, depth == 0)
        text = text[:begin] + _padded(made, text[begin : end + 1]) + text[end + 1 :]
        number += 1


def _closing(code: str, opening: int) -> int:
    """The index of the bracket that closes the one at ``opening``, or -1."""
    depth = 0
    for i in range(opening, len(code)):
        depth += {"(": 1, ")": -1}.get(code[i], 0)
        if depth == 0:
            return i
    return -1


def _replace_launches(text: str) -> str:
    while True:
        code = _blank(text)
        opening = code.find("<<<")
        if opening < 0:
            return text
        line = _line(text, opening)
        middle = code.find(">>>", opening)
        call = code.find("(", middle) if middle > 0 else -1
        end = _closing(code, call) if call > 0 else -1
        if end < 0 or code[middle + 3 : call].strip():
            raise NotTranslated(line, "a launch is written kernel<<<grid, block>>>(arguments)")
        begin = _statement_begin(code, opening)
        before = code[begin:opening]
        kernel = re.search(r"[A-Za-z_][\w:]*\s*(<[^;{}()]*>)?\s*$", before)
        if kernel is None:
            raise NotTranslated(line, "a launch is written kernel<<<grid, block>>>(arguments)")
        begin += kernel.start()
        configuration, arguments = text[opening + 3 : middle], text[call + 1 : end]
        made = f"kw::launch(kw::Configuration({configuration}), {line}, [=] {{ {kernel[0].strip()}({arguments}); }})"
        text = text[:begin] + _padded(made, text[begin : end + 1]) + text[end + 1 :]


def translate(text: str, host: str = "") -> str:
    """A CUDA source as C++ for ``cuda_emulator.hpp``, with the lines where they were.

    ``host``: the name of the function that the CPU calls. Raises NotTranslated."""
    code = _blank(text)
    for pattern, why in NOT_EMULATED.items():
        match = re.search(pattern, code)
        if match:
            raise NotTranslated(_line(text, match.start()), why)
    library = LIBRARY.search(text)
    if library:
        raise NotTranslated(
            _line(text, library.start()), f"{library[1]} is not here: the emulator has CUDA's own words"
        )
    for position, why in refusals(code, text, host):
        line = _line(text, position)
        raise NotTranslated(line, why, text.splitlines()[line - 1].strip())
    text = INTRINSIC.sub(r"kw_\1(", HEADER.sub("", text))
    return _replace_launches(_replace_shared(text))
