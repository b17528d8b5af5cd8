"""Vendors' libraries that a ladder is compared with, each tuned as its own users would.

Every maker takes the inputs and a thread count and returns a call without arguments, or None where it does not run
here. The benchmark sets torch's thread count.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernelworks.machine import environment, machine
from kernelworks.ops.linear.linear.baselines import mkldnn

__all__ = ["openblas", "torch_mkldnn", "torch_mm"]

Inputs = dict[str, Tensor]
ROW_MAJOR, NO_TRANSPOSE = 101, 111  # cblas.h


def torch_mm(given: Inputs, threads: int) -> Callable[[], Tensor]:
    """torch's default: whatever BLAS it was built with, as it picks its own code path."""
    a, b = given["A"], given["B"]
    out = torch.empty(a.shape[0], b.shape[1])
    return lambda: torch.mm(a, b, out=out)


def torch_mkldnn(given: Inputs, threads: int) -> Callable[[], Tensor] | None:
    """oneDNN through ``to_mkldnn``; B is converted to its own layout once, outside the timing."""
    return mkldnn({"x": given["A"], "weight": given["B"].t().contiguous(), "bias": None})


@functools.cache
def _openblas() -> Any:
    """NumPy's OpenBLAS, loaded a second time with the core type that this CPU deserves; None where there is none.

    OpenBLAS reads its core type once, when it is loaded, and takes a Zen 5 for a Haswell: so a copy is loaded beside
    NumPy's own. Its idle threads are told to sleep at once, or they would run into the next variant's time.
    """
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        return None
    found = sorted((Path(spec.origin).parent.parent / "numpy.libs").glob("libscipy_openblas64*.so*"))
    if not found:
        return None
    core = "SkylakeX" if "avx512f" in machine().features else "Haswell"
    folder = environment.cache_dir("openblas")
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / f"{core}-{found[0].name}"
    if not copy.is_file() or copy.stat().st_size != found[0].stat().st_size:
        shutil.copy(found[0], copy)
    # Its own libraries lie beside NumPy's copy and are found by name once they are loaded.
    for needed in sorted(found[0].parent.glob("libquadmath*")) + sorted(found[0].parent.glob("libgfortran*")):
        ctypes.CDLL(str(needed), mode=ctypes.RTLD_GLOBAL)
    settings = {"OPENBLAS_CORETYPE": core, "OPENBLAS_THREAD_TIMEOUT": "4"}
    for name, value in settings.items():
        os.putenv(name, value)
    try:
        library = ctypes.CDLL(str(copy))
    except OSError:
        return None
    finally:
        for name in settings:
            os.unsetenv(name)
    gemm = library.scipy_cblas_sgemm64_
    whole, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    gemm.argtypes = [*[ctypes.c_int] * 3, *[whole] * 3, real, pointer, whole, pointer, whole, real, pointer, whole]
    gemm.restype = None
    return library


def openblas(given: Inputs, threads: int) -> Callable[[], Tensor] | None:
    """OpenBLAS as NumPy ships it, with the right core type."""
    library = _openblas()
    if library is None:
        return None
    a, b = given["A"], given["B"]
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n)

    def run() -> Tensor:
        library.scipy_cblas_sgemm64_(
            ROW_MAJOR, NO_TRANSPOSE, NO_TRANSPOSE, m, n, k, 1.0, a.data_ptr(), k, b.data_ptr(), n, 0.0,
            out.data_ptr(), n,
        )  # fmt: skip
        return out

    library.scipy_openblas_set_num_threads64_(threads)
    return run
