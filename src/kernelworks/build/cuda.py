"""CUDA C++ op packages to kernels: NVRTC at first use, one cubin for each source, launched through ``launch.cpp``.

NVRTC comes with torch's CUDA builds and as ``pip install nvidia-cuda-nvrtc``; neither a GPU nor a toolkit is needed to
compile. Sources include nothing but their neighbours and the headers of ``kernelworks/tile``.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from kernelworks.build.cache import BuildError, entry, failure
from kernelworks.build.launcher import SERIALIZATION, check_status, launch_log, launcher, load
from kernelworks.build.sources import hash_of, with_includes
from kernelworks.machine import environment

__all__ = [
    "Kernel",
    "box_map",
    "build_cubin",
    "cubin",
    "cuobjdump",
    "find_box_map",
    "is_absent",
    "resources",
    "source_hash",
    "tensor_map",
    "toolchain",
]  # fmt: skip

TILE = Path(__file__).resolve().parent.parent / "tile"
ARCHITECTURE, SUFFIX = "sm_90a", ".cubin"
FLAGS = (f"--gpu-architecture={ARCHITECTURE}", "--std=c++20")
MOST_MAPS = 4096  # tensor maps kept; a training loop may meet many addresses

_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 0)


# ---------------------------------------------------------------- the compiler


@functools.cache
def _nvrtc() -> Any:
    """NVRTC, from the package beside torch or from the system. Raises BuildError where there is none."""
    found = importlib.util.find_spec("nvidia")
    folders = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    names = [str(path) for place in folders for path in sorted(place.glob("*/lib/libnvrtc.so.1?"), reverse=True)]
    for name in (*names, "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            # NVRTC opens its built-in headers by name alone, which finds them only where they are loaded already.
            for builtins in Path(name).parent.glob("libnvrtc-builtins.so.*") if "/" in name else ():
                ctypes.CDLL(str(builtins))
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise BuildError("no CUDA compiler: pip install nvidia-cuda-nvrtc (torch's CUDA builds bring it)")


@functools.cache
def toolchain() -> str:
    """The compiler as certificates and cache keys name it, such as ``"nvrtc 13.0"``. Raises BuildError without one."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    if _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)):
        raise BuildError("the CUDA compiler (NVRTC) does not answer")
    return f"nvrtc {major.value}.{minor.value}"


def _answer(size: str, get: str, program: ctypes.c_void_p) -> bytes:
    """What NVRTC holds of a program, by the names of the two functions that tell its size and copy it."""
    length = ctypes.c_size_t()
    getattr(_nvrtc(), size)(program, ctypes.byref(length))
    buffer = ctypes.create_string_buffer(length.value)
    getattr(_nvrtc(), get)(program, buffer)
    return buffer.raw


@functools.cache
def source_hash(source: Path) -> str:
    """SHA-256 over the source, the headers of ours that it includes, and the flags."""
    return hash_of(" ".join(FLAGS), with_includes(source, TILE))


def _compile(source: Path, output: Path) -> None:
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    text = source.read_text(encoding="utf-8").encode()
    options = [flag.encode() for flag in (*FLAGS, f"-I{source.parent}", f"-I{TILE}")]
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.name.encode(), 0, None, None):
        raise BuildError(f"NVRTC could not read {source.name}")
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status:
        log = _answer("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program).rstrip(b"\0").decode(errors="replace")
        raise BuildError(f"NVRTC ({toolchain()}) could not compile {source.name}:\n{log.strip()[:4000]}")
    output.write_bytes(_answer("nvrtcGetCUBINSize", "nvrtcGetCUBIN", program))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _stem(source: Path) -> str:
    key = hashlib.sha256(f"{source_hash(source)} {toolchain()}".encode()).hexdigest()[:20]
    return f"{source.parent.name}-{source.stem}-{ARCHITECTURE}-{key}"


def is_absent(source: Path) -> bool:
    """Whether the cache has no cubin of it and no failure is on record. Raises BuildError without a compiler."""
    stem = _stem(source)
    return not (environment.cache_dir("build") / f"{stem}{SUFFIX}").is_file() and failure(stem) is None


def build_cubin(source: Path) -> Path:
    """The path of the cubin of a source, compiled if the cache has no intact entry for it. Raises BuildError."""
    record = {"source": source.name, "target": ARCHITECTURE, "toolchain": toolchain()}
    return entry(_stem(source), SUFFIX, functools.partial(_compile, source), record)


@functools.cache
def cubin(source: Path) -> bytes:
    """The source compiled for sm_90a. Cost: 1 to 15 s the first time on a machine. Raises BuildError."""
    return build_cubin(source).read_bytes()


@functools.cache
def cuobjdump() -> str | None:
    """What reads cubins: Triton's, or the CUDA toolkit's; None where there is neither."""
    found = importlib.util.find_spec("triton")
    for place in (found.submodule_search_locations or ()) if found else ():
        beside = Path(place) / "backends/nvidia/bin/cuobjdump"
        if beside.is_file():
            return str(beside)
    return shutil.which("cuobjdump")


def resources(source: Path) -> dict[str, dict[str, int]]:
    """Of every kernel of a source: registers, stack and local bytes a thread (spills show there), static shared bytes.

    Runs nothing; reads the cubin. Raises BuildError, also where there is nothing to read it with.
    """
    tool = cuobjdump()
    if tool is None:
        raise BuildError("no cuobjdump: it is neither in Triton nor on the PATH")
    done = subprocess.run([tool, "-res-usage", str(build_cubin(source))], capture_output=True, text=True, check=True)
    found = re.findall(r"Function (\w+):\s+(REG:.*)", done.stdout)
    return {name: {k.lower(): int(v) for k, v in re.findall(r"(\w+):(\d+)", line)} for name, line in found}


# ---------------------------------------------------------------- launching


class Kernel:
    """One ``extern "C"`` kernel of a source: ``kernel((x, y, z), *arguments)`` on the current stream.

    ``arguments`` start with a tensor on the GPU. The kernel receives tensors as pointers (None as a null pointer),
    integers as ``long long``, floats as ``float``, and a tensor on the CPU by value: its bytes are the parameter.
    """

    __slots__ = ("_launch", "_numbers", "cluster", "flags", "name", "shared", "source", "threads")

    def __init__(
        self, source: Path, name: str, *, threads: int, shared: int = 0, cluster: int = 1, overlap: bool = False
    ) -> None:
        """``threads`` a block, ``shared`` dynamic bytes of shared memory a block, ``cluster`` blocks along x.

        ``overlap``: blocks may start while the kernel before still runs. Such a kernel must execute
        ``griddepcontrol.wait`` before it touches memory.
        """
        self.source, self.name, self.flags = source, name, SERIALIZATION if overlap else 0
        self.threads, self.shared, self.cluster = threads, shared, cluster
        self._numbers: dict[int, int] = {}
        self._launch: Callable[..., int] | None = None

    def __call__(self, grid: tuple[int, int, int], *arguments: Any) -> None:
        """Cost: about 2 us. Raises LaunchError."""
        if launch_log.launches is not None:
            launch_log.launches.append((self, grid, arguments))
            if launch_log.dry:
                return
        device = arguments[0].get_device()
        number = self._numbers.get(device)
        if number is None or self._launch is None:
            number = self._load(device, arguments[0])
            if number < 0 or self._launch is None:
                return
        status = self._launch(number, device, _stream(device), *grid, *arguments)
        if status:
            check_status(status, f"launching {self.name} on grid {grid}")

    def on(self, device: int) -> Callable[..., None]:
        """``launch(x, *arguments)``: a grid of x blocks on one GPU, quicker where pointers are passed as integers."""
        start, number, name = launcher().launch_function, self.number(device), self.name

        def launch(x: int, *arguments: Any) -> None:
            status = start(number, device, _stream(device), x, 1, 1, *arguments)
            if status:
                check_status(status, f"launching {name} on {x} blocks")

        return launch

    def number(self, device: int) -> int:
        """The launcher's, on one GPU; loaded where it was not."""
        return self._numbers[device] if device in self._numbers else self._load(device, None)

    def _load(self, device: int, first: Tensor | None) -> int:
        if first is not None and device < 0 and not first.is_meta:
            raise ValueError(f"{self.name} runs on CUDA tensors, got {first.device}")
        image = cubin(self.source)
        if device < 0:
            return -1  # meta tensors: compiled and not run
        loaded = load(
            image, self.name, device, threads=self.threads, shared=self.shared, cluster=self.cluster, flags=self.flags
        )
        self._launch = launcher().launch_function
        self._numbers[device] = loaded.number
        return loaded.number


_maps: dict[tuple[Any, ...], Tensor] = {}
ELEMENTS = (torch.float16, torch.bfloat16, torch.float32)  # in the order of launch.cpp


def _blank() -> Tensor:
    """Memory for a map, which is none of what a recorded call allocates."""
    with nullcontext() if launch_log.launches is None else _disable_current_modes():
        return torch.zeros(128, dtype=torch.uint8)


def tensor_map(
    matrix: Tensor, rows: int, columns: int, stride: int, box_rows: int, box_columns: int, fetched: int = 256
) -> Tensor:
    """A CUtensorMap of a row-major matrix of 16-bit or float32 numbers: 128 bytes on the CPU for a kernel's parameter.

    The matrix begins where the tensor does; ``stride`` lies between its rows, in elements. The box is what a bulk copy
    moves, at most 256 rows of at most 128 bytes; shared memory gets the 128-byte swizzle, and what lies outside the
    matrix is read as zero and not written. L2 fetches ``fetched`` bytes at a time, 128 or 256. The address and the row
    stride must be multiples of 16 bytes. Kept per address and shape. Raises LaunchError.
    """
    key = (matrix.data_ptr(), rows, columns, stride, matrix.dtype, box_rows, box_columns, fetched)
    found = _maps.get(key)
    if found is None:
        found = _blank()
        if not matrix.is_meta:
            kind, pitch = ELEMENTS.index(matrix.dtype), stride * matrix.element_size()
            sizes = (rows, columns, pitch, box_rows, box_columns, fetched)
            status = launcher().tensor_map(found, key[0], kind, *sizes, matrix.get_device())
            check_status(status, f"encoding a tensor map of {rows} x {columns}, row stride {stride}")
        if len(_maps) >= MOST_MAPS:
            _maps.clear()
        _maps[key] = found
    return found


def box_map(tensor: Tensor, box_rows: int, box_columns: int) -> Tensor:
    """A CUtensorMap of a [batch, head, row, column] tensor, for boxes that lie in one head; else as ``tensor_map``.

    Rows that a head does not have are read as zero and not written. The columns are contiguous; the address and the
    strides of dimensions longer than 1 are multiples of 16 bytes, and none is 0.
    """
    shape, strides = tensor.shape, tensor.stride()
    key = (tensor.data_ptr(), shape, strides, tensor.dtype, box_rows, box_columns)
    found = _maps.get(key)
    if found is None:
        found = _blank()
        if not tensor.is_meta:
            status = launcher().box_map(found, key[0], *_numbers_of(key), tensor.get_device())
            check_status(status, f"encoding a tensor map of {list(shape)}, strides {list(strides)}")
        if len(_maps) >= MOST_MAPS:
            _maps.clear()
        _maps[key] = found
    return found


def _numbers_of(key: tuple[Any, ...]) -> tuple[int, ...]:
    """What ``launch.cpp`` asks of a box map beside the address."""
    _, shape, strides, dtype, box_rows, box_columns = key
    size = dtype.itemsize
    # A dimension of 1 may have any stride in torch; here it is one that the driver takes.
    pitches = [strides[i] * size if shape[i] > 1 else 16 * -(-shape[3] * size // 16) for i in (2, 1, 0)]
    return ELEMENTS.index(dtype), *reversed(shape), *pitches, box_rows, box_columns


def find_box_map(made: Tensor) -> tuple[int, tuple[int, ...]] | None:
    """Of a map that ``box_map`` made: its address, and its numbers as ``launch.cpp`` takes them; None of another."""
    for key, found in list(_maps.items()) if made.device.type == "cpu" else ():
        if found is made:
            return (key[0], _numbers_of(key)) if isinstance(key[1], tuple) else None
    return None
