"""The GPU this process runs on, as the driver reports it. Asked only when something on a GPU is asked for."""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Gpu", "gpu", "has_gpu", "may_have_gpu", "utilization"]

# One of these is there if torch can see a GPU: of NVIDIA's drivers (for Linux, for WSL, for Jetson), of AMD's.
DRIVERS = ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/dxg", "/dev/nvhost-gpu", "/dev/nvmap", "/dev/kfd")


@dataclass(frozen=True)
class Gpu:
    """One GPU, as far as choosing, verifying and measuring kernels depends on it.

    ``kind`` names the sort of GPU that a certificate speaks for: compute capability and model. ``driver`` and
    ``power_limit_w`` do not enter it, but measured peaks are kept by them: they change how quick a kernel is, not
    whether it is right. Both are empty if the management library (nvidia-ml-py) is not installed.
    """

    kind: str
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    uuid: str
    driver: str
    power_limit_w: float


def may_have_gpu() -> bool:
    """False if torch cannot see a CUDA device since there is no driver of one. Known without torch."""
    if "torch" in sys.modules:
        return has_gpu()
    return any(Path(name).exists() for name in DRIVERS)


def has_gpu() -> bool:
    """Whether torch sees a CUDA device."""
    import torch

    return torch.cuda.is_available()


def utilization(uuid: str) -> float | None:
    """The share of the last moments, 0 to 1, in which any process had a kernel on this GPU; None if the management
    library is not installed or does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
    except pynvml.NVMLError:
        return None


def _managed(uuid: str) -> tuple[str, float]:
    """Driver version and power limit in watts."""
    try:
        import pynvml
    except ImportError:
        return "", 0.0
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        return str(pynvml.nvmlSystemGetDriverVersion()), pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:
        return "", 0.0


@functools.cache
def gpu(index: int | None = None) -> Gpu:
    """The GPU of this number (by default the current one). Raises RuntimeError if there is none."""
    import torch

    if not has_gpu():
        raise RuntimeError("no CUDA device: torch.cuda.is_available() is False")
    if index is None:
        return gpu(torch.cuda.current_device())
    found = torch.cuda.get_device_properties(index)
    name = re.sub(r"[^a-z0-9]+", "_", found.name.lower()).strip("_")
    uuid = str(getattr(found, "uuid", ""))
    driver, watts = _managed(uuid)
    return Gpu(
        kind=f"sm_{found.major}{found.minor}-{name}",
        name=found.name,
        capability=(found.major, found.minor),
        multiprocessors=found.multi_processor_count,
        l2_bytes=int(getattr(found, "L2_cache_size", 0)),
        memory_bytes=found.total_memory,
        uuid=uuid,
        driver=driver,
        power_limit_w=watts,
    )
