"""The build cache under faults: no compiler, a failing one, a cache that cannot be written, damaged entries, races."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
import torch

from kernelworks.build import BuildError, cache, cpp
from kernelworks.build.cache import intact
from kernelworks.machine import environment

SOURCE = '#include "kernel.hpp"\nKW_EXPORT(answer) { args.tensor(0).ptr<float>()[0] = 42.0f; }\n'

CALL = """
import sys, torch
from pathlib import Path
from kernelworks.build import library
x = torch.zeros(1)
library(Path(sys.argv[1]), "scalar").answer(x)
print(x.item())
"""

FALLBACK = """
import json, warnings, torch
import kernelworks as kw
from kernelworks.diagnose.explain import explain
x, w = torch.randn(4, 32), torch.randn(32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    y = kw.rms_norm(x, w, eps=1e-6)
right = torch.allclose(y, torch.nn.functional.rms_norm(x, (32,), w, 1e-6), atol=1e-6)
told = explain("rms_norm", x, w, eps=1e-6)
print(json.dumps([right, told.kernel, told.declined, [str(c.message) for c in caught]]))
"""


# Each starts from the same moment, so that all of them miss the cache.
TEN = """
import os, sys
from pathlib import Path
from kernelworks.build.cpp import build_library
start, go = os.pipe()
children = []
for _ in range(10):
    children.append(os.fork())
    if not children[-1]:
        os.close(go)
        os.read(start, 1)
        os.write(1, f"{build_library(Path(sys.argv[1]), 'scalar')}\\n".encode())
        os._exit(0)
os.close(go)
sys.exit(any([os.waitpid(child, 0)[1] for child in children]))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    op_package = tmp_path / "op_package"
    op_package.mkdir()
    path = op_package / "answer.cpp"
    path.write_text(SOURCE)
    return path


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_library_is_built_once_and_found_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    first = cpp.build_library(source, "scalar")
    built_at = first.stat().st_mtime_ns
    assert cpp.build_library(source, "scalar") == first
    assert first.stat().st_mtime_ns == built_at


def test_another_source_header_or_flag_is_another_entry(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    first = cpp.source_hash(source, "scalar")
    assert cpp.source_hash(source, "avx2") != first
    (source.parent / "own.hpp").write_text("// nothing\n")
    source.write_text('#include "own.hpp"\n' + SOURCE)
    cpp.source_hash.cache_clear()
    second = cpp.source_hash(source, "scalar")
    (source.parent / "own.hpp").write_text("// something\n")
    cpp.source_hash.cache_clear()
    assert len({first, second, cpp.source_hash(source, "scalar")}) == 3


@pytest.mark.parametrize("damage", ["truncated", "altered", "no note", "torn note"])
def test_a_damaged_entry_is_never_loaded(
    damage: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    lib = cpp.build_library(source, "scalar")
    whole = lib.read_bytes()
    note = lib.with_suffix(".json")
    match damage:
        case "truncated":
            lib.write_bytes(whole[: len(whole) // 2])
        case "altered":
            lib.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "no note":
            note.unlink()
        case "torn note":
            note.write_text(note.read_text()[:20])
    assert cpp.build_library(source, "scalar") == lib
    assert json.loads(note.read_text())["sha256"]
    assert intact(lib, note)
    assert forked.python(str(source), code=CALL).stdout.strip() == "42.0"


def test_a_killed_build_leaves_no_entry(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    dies = _script(tmp_path / "dying-g++", 'case "$*" in *-dumpfullversion*) echo 12;; *) kill -9 $PPID;; esac')
    died = forked.python(str(source), code=CALL, KERNELWORKS_CACHE=str(cache), KERNELWORKS_CXX=dies)
    assert died.returncode == -9
    assert not list(cache.rglob("*.so"))
    again = forked.python(str(source), code=CALL, KERNELWORKS_CACHE=str(cache))
    assert again.stdout.strip() == "42.0", again.stderr


def test_a_sweep_that_comes_before_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another build's sweep takes a folder that was just made for one left by the dead: the next is taken."""
    made, opened = [], os.open

    def swept_first(path: Path, flags: int) -> int:
        made.append(path)
        if len(made) == 1:
            made[0].rmdir()
        return opened(path, flags)

    def make(*args: Any, **kwargs: Any) -> str:
        folder = tmp_path / f"{cache.SCRATCH}{len(made)}"
        folder.mkdir()
        return str(folder)

    monkeypatch.setattr(cache.tempfile, "mkdtemp", make)
    monkeypatch.setattr(cache.os, "open", swept_first)
    with cache._scratch(tmp_path) as folder:
        assert folder.is_dir() and folder == made[-1] and not made[0].exists()


def test_ten_processes_at_once(source: Path, tmp_path: Path) -> None:
    counted = tmp_path / "compiles"
    compiler = _script(
        tmp_path / "counting-g++", f'case "$*" in *-dumpfullversion*) ;; *) echo x >> {counted};; esac\nexec g++ "$@"'
    )
    env = {"KERNELWORKS_CACHE": str(tmp_path / "cache"), "KERNELWORKS_CXX": compiler}
    done = forked.python(str(source), code=TEN, **env)
    assert done.returncode == 0, done.stderr
    paths = done.stdout.splitlines()
    assert len(paths) == 10 and len(set(paths)) == 1 and Path(paths[0]).is_file()
    assert counted.read_text().count("x") == 1


@pytest.mark.parametrize("fault", ["no compiler", "failing compiler", "cache is a file", "full disk"])
def test_the_torch_kernel_runs_and_explain_says_why(fault: str, tmp_path: Path) -> None:
    env = {"KERNELWORKS_CACHE": str(tmp_path / "cache")}
    match fault:
        case "no compiler":
            env["KERNELWORKS_CXX"] = "no-such-compiler"
            text = "no C++ compiler: 'no-such-compiler'"
        case "failing compiler":
            env["KERNELWORKS_CXX"] = _script(
                tmp_path / "g++", 'case "$*" in *-dumpfullversion*) exec g++ "$@";; *) echo broken >&2; exit 1;; esac'
            )
            text = "broken"
        case "cache is a file":
            (tmp_path / "cache").write_text("in the way")
            text = "the build cache"
        case "full disk":
            (tmp_path / "cache").symlink_to("/dev/full")
            text = "the build cache"
    # As verified: only the build stands between the call and the kernel.
    code = "from kernelworks.dispatch import certificates as c\n"
    code += "c.invalid_reason = lambda op, kernel, kind=None: kernel.toolchain() and None\n"
    done = forked.python(code=code + FALLBACK, **env)
    assert done.returncode == 0, done.stderr
    right, kernel, declined, warned = json.loads(done.stdout)
    assert right
    assert kernel == "torch"
    assert any(text in reason for _, reason in declined)
    assert any("runs its 'torch' kernel" in message for message in warned)


def test_a_source_that_does_not_compile_says_what_the_compiler_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    source.write_text("this is not C++")
    cpp.source_hash.cache_clear()
    with pytest.raises(BuildError, match=r"answer.cpp:1:1: error"):
        cpp.build_library(source, "scalar")


def test_importing_looks_for_no_gpu_and_imports_no_triton() -> None:
    program = (
        "import sys, torch\n"
        "def asked(*args): raise AssertionError('a GPU was looked for')\n"
        "torch.cuda.is_available = torch.cuda.get_device_properties = torch.cuda.current_device = asked\n"
        "import kernelworks\n"
        "print('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "False\n", done.stderr[-2000:]


INTRINSICS = """#include <immintrin.h>
unsigned long long each(unsigned long long x, __m256 a, __m256i b) {
    a = _mm256_fmadd_ps(a, _mm256_set1_ps(_cvtsh_ss(3)), a);
    return _pext_u64(x, 7) + _lzcnt_u64(x) + _mm256_movemask_ps(a) + _mm256_movemask_epi8(_mm256_add_epi32(b, b));
}
"""
WIDE = """
__m512i wide(__m512 a, __m512i b, __m256i c, __m256 d) {  // of AVX-512 F, DQ, CD, BW, VL, and of two of these at once
    b = _mm512_add_epi8(_mm512_lzcnt_epi32(b), _mm512_castps_si512(_mm512_and_ps(a, _mm512_scalef_ps(a, a))));
    c = _mm256_add_epi8(_mm256_maskz_loadu_epi16(3, &c), _mm256_cvttps_epi64(_mm256_castps256_ps128(d)));
    return _mm512_add_epi32(_mm512_broadcastd_epi32(_mm256_castsi256_si128(_mm256_ternarylogic_epi32(c, c, c, 1))), b);
}
"""
MORE = {
    "avx2": "",
    "avx512": WIDE,
    "avx512_vnni": WIDE + "__m256i more(__m256i a) { return _mm256_dpbusd_epi32(a, a, a); }\n"
    "__m512i more(__m512i a) { return _mm512_dpbusd_epi32(a, a, a); }\n",
    "avx512_bf16": WIDE + "__m512bh more(__m512 a) { return _mm512_cvtne2ps_pbh(a, a); }\n"
    "__m256bh more(__m256 a) { return _mm256_cvtne2ps_pbh(a, a); }\n",
}


@pytest.mark.parametrize("target", MORE)
def test_a_target_reads_the_intrinsics_that_it_has(target: str) -> None:
    """One of each extension of the target; of those that it lacks nothing."""
    flags = [*cpp.COMMON_FLAGS, *cpp.TARGETS[target].flags, *cpp._include_flags(), "-x", "c++", "-"]
    command = [environment.compiler(), "-E", *flags]
    program = INTRINSICS + MORE[target]
    read = subprocess.run(command, input=program, capture_output=True, text=True, check=True).stdout
    lacking = {
        "_mm512_sin_ps",
        "_mm512_add_ph",
        "_tile_zero",
        "_mm512_dpbusd_epi32",
        "_mm512_dpbf16_ps",
        "_mm512_add_ps",
    }
    has = {"avx512": {"_mm512_add_ps"}, "avx512_vnni": {"_mm512_add_ps", "_mm512_dpbusd_epi32"}}
    has["avx512_bf16"] = {"_mm512_add_ps", "_mm512_dpbf16_ps"}
    declared = {name for name in lacking if re.search(rf"\b{name} \(", read)}
    assert declared == has.get(target, set())
    command = [environment.compiler(), "-fsyntax-only", "-Werror", *flags]
    subprocess.run(command, input=program, text=True, check=True)


@pytest.mark.parametrize("target", ["scalar", "avx512"])
def test_a_library_is_the_same_whichever_headers_are_read(target: str, tmp_path: Path) -> None:
    flags = [environment.compiler(), *cpp.COMMON_FLAGS, *cpp.TARGETS[target].flags]
    source = str(cpp.SIMD.parent / "ops" / "linalg" / "eigh" / "simd.cpp")
    for whole in (False, True):
        command = [*flags, *cpp._include_flags(whole=whole), source, "-o", str(tmp_path / f"{whole}.so")]
        subprocess.run(command, capture_output=True, check=True)
    assert (tmp_path / "True.so").read_bytes() == (tmp_path / "False.so").read_bytes()


def test_a_source_may_ask_for_more_of_the_standard_headers_than_kernels_need(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as functions that <cmath> brings along, and Bessel's."""
    monkeypatch.setenv("KERNELWORKS_CACHE", str(tmp_path / "cache"))
    source.write_text(SOURCE.replace("42.0f", "std::max(42.0f, float(std::cyl_bessel_j(0, 1.0)))"))
    cpp.source_hash.cache_clear()
    x = torch.zeros(1)
    cpp.library(source, "scalar").answer(x)
    assert x.item() == 42.0
