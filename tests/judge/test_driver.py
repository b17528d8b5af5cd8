"""The driver's calls for memory that two processes see, against its own header: a library stands in for it that does
with memory of the host what the driver does with a device's, and takes nothing that the header does not have."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import triton
from torch import Tensor

from kernelworks.judge.roles import on_cuda

HEADERS = Path(triton.__file__).parent / "backends" / "nvidia" / "include"

# Handles are descriptors of files of memory, and addresses are mapped there. Each function is the header's.
DRIVER = """
#include <cuda.h>
#include <sys/mman.h>
#include <unistd.h>

static bool ours(const CUmemAllocationProp* p) {
    return p->type == CU_MEM_ALLOCATION_TYPE_PINNED && p->location.type == CU_MEM_LOCATION_TYPE_DEVICE
        && p->location.id == 0 && p->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        && p->win32HandleMetaData == nullptr && p->allocFlags.compressionType == 0 && p->allocFlags.usage == 0;
}

extern "C" {
int mapped = 0;

CUresult cuMemGetAllocationGranularity(size_t* step, const CUmemAllocationProp* p, CUmemAllocationGranularity_flags o) {
    *step = 2 << 20;
    return ours(p) && o == CU_MEM_ALLOC_GRANULARITY_MINIMUM ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* p,
                     unsigned long long flags) {
    if (!ours(p) || flags || size % (2 << 20)) return CUDA_ERROR_INVALID_VALUE;
    int file = memfd_create("allocation", 0);
    *handle = file;
    return ftruncate(file, size) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags) return CUDA_ERROR_INVALID_VALUE;
    *(int*)out = dup((int)handle);
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* file,
                                        CUmemAllocationHandleType type) {
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    *handle = dup((int)(long)file);
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* at, size_t size, size_t aligned, CUdeviceptr wanted,
                             unsigned long long flags) {
    if (aligned || wanted || flags) return CUDA_ERROR_INVALID_VALUE;
    *at = (CUdeviceptr)mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    if (offset || flags) return CUDA_ERROR_INVALID_VALUE;
    void* found = mmap((void*)at, size, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    mapped += 1;
    return found == (void*)at ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc* who, size_t count) {
    if (count != 1 || who->location.type != CU_MEM_LOCATION_TYPE_DEVICE || who->location.id != 0
        || who->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
    return mprotect((void*)at, size, PROT_READ | PROT_WRITE) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    return close((int)handle) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size) {
    mapped -= 1;
    return munmap((void*)at, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

CUresult cuCtxGetLimit(size_t* found, CUlimit which) {
    *found = 12345;
    return which == CU_LIMIT_PERSISTING_L2_CACHE_SIZE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER, encoding="utf-8")
    command = ["g++", "-shared", "-fPIC", "-O1", f"-I{HEADERS}", "driver.cpp", "-o", "libcuda.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "libcuda.so"))


@pytest.fixture
def there(driver: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    def bytes_of(behind: on_cuda._Range, device: str) -> Tensor:
        said = behind.__cuda_array_interface__
        assert (device, said["shape"], said["typestr"], said["version"]) == ("cuda:0", (behind.size,), "|u1", 2)
        held = (ctypes.c_ubyte * behind.size).from_address(said["data"][0])
        held.behind = behind
        return torch.frombuffer(held, dtype=torch.uint8)

    monkeypatch.setattr(on_cuda, "_driver", lambda: driver)
    monkeypatch.setattr(on_cuda, "_bytes", bytes_of)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    yield driver


def test_memory_of_a_device_is_seen_by_both_sides(there: ctypes.CDLL) -> None:
    memory = on_cuda.DeviceMemory(3_000_000)
    assert memory.size == 4 << 20
    other = on_cuda.DeviceMemory(memory.size, os.dup(memory.descriptor))
    memory.bytes[:] = 0xFF
    spot = (512, (3, 4), (8, 1), "float32")
    memory.tensor(spot).copy_(torch.arange(12.0).view(3, 4))
    assert torch.equal(other.tensor(spot), torch.arange(12.0).view(3, 4))
    assert bool((other.bytes[:512] == 0xFF).all()) and bool(other.tensor((528, (4,), (1,), "float32")).isnan().all())
    assert other.tensor((512, (0, 4), (4, 1), "float16")).shape == (0, 4)
    for beyond in ((memory.size - 4, (2,), (1,), "float32"), (-4, (2,), (1,), "float32"), (0, (2,), (-1,), "int8")):
        with pytest.raises(ValueError, match="does not lie"):
            other.tensor(beyond)


def test_what_is_dropped_is_given_back(there: ctypes.CDLL) -> None:
    count = ctypes.c_int.in_dll(there, "mapped")
    before, files = count.value, len(os.listdir("/proc/self/fd"))
    memory = on_cuda.DeviceMemory(1)
    tensor = memory.tensor((0, (4,), (1,), "int64"))
    memory.close()
    memory.close()
    assert len(os.listdir("/proc/self/fd")) == files  # the addresses keep what lies behind them
    tensor.fill_(7)
    assert int(tensor.sum()) == 28 and count.value == before + 1
    del tensor, memory
    gc.collect()
    assert count.value == before


def test_what_the_driver_refuses_is_said(there: ctypes.CDLL) -> None:
    assert on_cuda.persisting() == 12345
    with pytest.raises(RuntimeError, match="cuMemImportFromShareableHandle of the CUDA driver returned 1"):
        on_cuda._call("cuMemImportFromShareableHandle", None, None, ctypes.c_int(2))
