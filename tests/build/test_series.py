"""Replays of calls of CUDA C++ kernels, tried where there is no GPU: a driver of the test's notes what is launched."""

from __future__ import annotations

import subprocess
from pathlib import Path

import forked
import pytest

# A tensor map is a hash of what it was encoded from, behind its address.
DRIVER = """
#include <stdint.h>
#include <string.h>
extern "C" {
int asked, launched, steps, counts[8];
uint64_t which[8];  // of a launch's parameters are maps, a bit each
uint64_t values[64][40], maps[64][40][16];
int cuCtxGetCurrent(void** h) { *h = (void*)1; return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuDevicePrimaryCtxRetain(void** h, int) { *h = (void*)1; return 0; }
int cuModuleLoadData(void** h, const void*) { *h = (void*)2; return 0; }
int cuModuleGetFunction(void** h, void*, const char*) { *h = (void*)(uint64_t)++asked; return 0; }
int cuFuncGetAttribute(int* v, int, void*) { *v = 0; return 0; }
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuGetErrorString(int, const char** text) { *text = "no"; return 0; }
int cuTensorMapEncodeTiled(void* map, int kind, unsigned rank, void* at, const uint64_t* shape, const uint64_t* strides,
                           const unsigned* box, const unsigned*, int, int, int, int) {
    uint64_t* m = (uint64_t*)map;
    memset(m, 0, 128);
    m[0] = (uint64_t)at;
    for (unsigned i = 0; i < rank; ++i) m[1 + i] = shape[i], m[6 + i] = box[i];
    for (unsigned i = 0; i + 1 < rank; ++i) m[11 + i] = strides[i];
    m[15] = kind;
    return 0;
}
READDRESS
int cuLaunchKernelEx(const void* config, void*, void** parameters, void**) {
    for (int i = 0; i < counts[launched % steps]; ++i) {
        values[launched][i] = *(uint64_t*)parameters[i];
        if (which[launched % steps] >> i & 1) memcpy(maps[launched][i], parameters[i], 128);
    }
    ++launched;
    return 0;
}
}
"""
REPLACES = "int cuTensorMapReplaceAddress(void* map, void* at) { *(uint64_t*)map = (uint64_t)at; return 0; }"

PROGRAM = """
import ctypes, gc, struct
import torch
from pathlib import Path
from torch import Tensor
from kernelworks.build import cuda, launcher
from kernelworks.build.launcher import recording
from kernelworks.build.series import make_replay
from kernelworks.ops.attention.attention import sm90, sm90_backward, sm90_backward_wide
from kernelworks.dispatch.mutation import as_tuple

torch.Tensor.get_device = lambda self: 0
cuda.cubin = lambda source: b"image"
for module in (sm90, sm90_backward, sm90_backward_wide):
    module._multiprocessors = lambda device: 132

def attend(length, dim, heads=4, kv=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    def made(heads, last=dim):
        return torch.randn(2, length, heads, last, generator=generator).bfloat16().transpose(1, 2)
    q, k, v, grad, output = made(heads), made(kv), made(kv).contiguous(), made(heads), made(heads)
    lse = torch.randn(2, heads, length, generator=generator)
    return (grad, q, k, v, output, lse, "top_left", None, None, None, [True, True, True, False], None, None)

def tensors(values):
    return [v for v in values if isinstance(v, Tensor) and v.numel()]

def named(args, results):
    return {t.data_ptr(): f"{kind}{i}" for kind, ts in (("a", args), ("o", results)) for i, t in enumerate(tensors(ts))}

kinds = {"forward": (sm90.forward, 64), "backward": (sm90_backward.backward, 128),
         "wide": (sm90_backward_wide.backward, 256)}
function, dim = kinds[KIND]
def asked(**how):
    args = attend(130, dim, **how)
    return (*args[1:4], "top_left", None, None, None, True) if KIND == "forward" else args

driver = ctypes.CDLL(str(Path("libcuda.so.1").resolve()), ctypes.RTLD_GLOBAL)  # before launch.cpp asks for it
values = (ctypes.c_uint64 * 40 * 64).in_dll(driver, "values")
maps = (ctypes.c_uint64 * 16 * 40 * 64).in_dll(driver, "maps")
launched = ctypes.c_int.in_dll(driver, "launched")
args, given_outs = asked(), None
def watched(*args, out=None):
    if given_outs is None:
        return function(*args, out=out)
    given_outs.append(out)
    return wanted

make_replay(watched, args)
gc.collect()
run = make_replay(watched, args)
assert run.__globals__["series"] == 0, "in the place of one that is gone"
with recording(dry=True) as plain:
    function(*args)
ctypes.c_int.in_dll(driver, "steps").value = len(plain)
for i, (_, _, given) in enumerate(plain):
    (ctypes.c_int * 8).in_dll(driver, "counts")[i] = len(given)
    boxes = [isinstance(a, Tensor) and cuda.find_box_map(a) is not None for a in given]
    (ctypes.c_uint64 * 8).in_dll(driver, "which")[i] = sum(1 << i for i, box in enumerate(boxes) if box)
assert run is not None and launched.value == 0, "nothing is launched by recording it"
for seed in (1, 2):
    args = asked(seed=seed)
    with recording(dry=True) as plain:
        wanted = function(*args)
    want = named(args, as_tuple(wanted))
    first = launched.value
    got = run(*args)
    assert launched.value == first + len(plain), (first, launched.value)
    have, got = named(args, as_tuple(got)), as_tuple(got)
    assert [(t.shape, t.stride(), t.dtype) for t in got] == [(t.shape, t.stride(), t.dtype) for t in as_tuple(wanted)]
    assert not named((), got).keys() & want.keys(), "results of their own"
    strange = set()
    for step, (_, grid, given) in enumerate(plain, first):
        for i, a in enumerate(given):
            value = values[step][i]
            if isinstance(a, Tensor) and (box := cuda.find_box_map(a)):
                encoded = list(maps[step][i])
                assert encoded[1:] == a.view(torch.int64).tolist()[1:], "a map of another shape"
                address, value = box[0], encoded[0]
            elif isinstance(a, Tensor):
                address = a.data_ptr()
            else:
                width = 32 if isinstance(a, float) else 64
                bits = int.from_bytes(struct.pack("<f", a), "little") if isinstance(a, float) else int(a or 0) % 2**64
                assert value % 2**width == bits, (step, i, a)
                continue
            if address in want:
                assert have[value] == want[address], (step, i, want[address])
            else:  # what lies between
                strange.add((address, value))
    assert len(strange) == len({a for a, _ in strange}) == len({v for _, v in strange}), strange

# ------------------------------------------------------------ where the call itself has to see to it
before, moved, first, given_outs = launched.value, list(args), args[0], []
moved[0] = torch.empty(first.numel() + 1, dtype=first.dtype)[1:].as_strided(first.shape, first.stride())
assert run(*moved) is wanted, "what is aligned otherwise"
assert run(*args, out=wanted) is wanted
torch.use_deterministic_algorithms(True)
assert run(*args) is wanted
assert given_outs == [None, wanted, None] and launched.value == before
torch.use_deterministic_algorithms(True, warn_only=True)  # as memory is poisoned where a kernel is verified
assert run(*args) is not wanted and launched.value == before + len(plain)
print("all hold")
"""

DECLINED = """
import gc
import torch
from kernelworks.build import cuda, launcher
from kernelworks.build.series import make_replay

torch.Tensor.get_device = lambda self: 0
kernel = cuda.Kernel(__import__("pathlib").Path("none.cu"), "f", threads=32)
kernel._numbers[0] = 7
asked = []
class Launcher:
    def series(self, device, numbers):
        asked.append(numbers.tolist())
        return 0
    run = None
    def forget_series(self, number):
        forgotten.append(number)
forgotten = []
import kernelworks.build.series as series
series.launcher = Launcher
x, y = torch.ones(4, 8), torch.ones(8)

def plain(x, y, out=None):
    made = torch.empty_like(x)
    kernel((2, 1, 1), x, y[2:], made, 5, None, 0.5)
    return made

run = make_replay(plain, (x, y))
(numbers,) = asked
assert run is not None and not forgotten
del run
gc.collect()
assert forgotten == [0], "its place is another's"
bits = int.from_bytes(__import__("struct").pack("<f", 0.5), "little")
assert numbers[0] == 3 and numbers[4:6] == [0, 1] and numbers[6:] == [
    7, 2, 1, 1, 6, 1, 0, 0, 1, 1, 8, 1, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, bits], numbers

def summed(x, y):
    return plain(x + 1, y)
def of_triton(x, y):
    launcher.launch_log.launches.append((object(), (1, 1, 1), (x,)))
    return plain(x, y)
def stateful(x, y):
    made = torch.empty_like(x)
    kernel((2, 1, 1), made, kept)
    return made
def nothing(x, y):
    return torch.empty_like(x)
def a_part(x, y):
    kernel((2, 1, 1), x)
    return torch.empty(8, 8)[4:]
kept = torch.ones(3)
for other in (summed, of_triton, stateful, nothing, a_part):
    assert make_replay(other, (x, y)) is None, other
assert make_replay(plain, (x, x[0])) is None, "which of the two an address means cannot be told"
print("all hold")
"""


@pytest.mark.parametrize("kind", ["forward", "backward", "wide"])
@pytest.mark.parametrize("replaces", [True, False])
def test_a_replay_launches_what_the_call_does(kind: str, replaces: bool, tmp_path: Path) -> None:
    """With a driver that changes a map's address, and with one that has to encode it anew."""
    (tmp_path / "driver.cpp").write_text(DRIVER.replace("READDRESS", REPLACES if replaces else ""))
    command = ["g++", "-shared", "-fPIC", "-O1", "-Wl,-soname,libcuda.so.1", "driver.cpp", "-o", "libcuda.so.1"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = forked.python(code=f"import os; os.chdir({str(tmp_path)!r})\nKIND = {kind!r}\n{PROGRAM}")
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]


def test_what_does_more_than_launch_is_not_replayed() -> None:
    done = forked.python(code=DECLINED)
    assert done.stdout.endswith("all hold\n"), done.stderr[-3000:]
