"""Instructions, loops and counts of machine code, against what objdump itself lists."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from kernelworks.build.code_listing import Instruction, loops_of
from kernelworks.descend.loop_sentences import explain_loop
from kernelworks.descend.machine_code import count_instructions, disassemble, hot_loop
from kernelworks.descend.symbols import CodeLocation, Mappings, demangle_names

DOT = """
#include <immintrin.h>
namespace kernels {
float dot(const float* x, const float* y, long n) {
    __m256 a = _mm256_setzero_ps(), b = a, c = a, d = a;
    for (long i = 0; i + 32 <= n; i += 32) {
        a = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), a);
        b = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), b);
        c = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 16), _mm256_loadu_ps(y + i + 16), c);
        d = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 24), _mm256_loadu_ps(y + i + 24), d);
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, _mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
    return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}
}
extern "C" long spin(long n) { volatile long at = 0; for (long i = 0; i < n; ++i) at = at + i; return at; }
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled for AVX2, which nothing here runs."""
    folder = tmp_path_factory.mktemp("machine-code")
    source, built = folder / "dot.cpp", folder / "dot.so"
    source.write_text(DOT, encoding="utf-8")
    compiler = shutil.which("g++")
    assert compiler is not None
    command = [compiler, "-O2", "-mavx2", "-mfma", "-fPIC", "-shared", str(source), "-o", str(built)]
    subprocess.run(command, check=True, capture_output=True)
    return built


def of(library: Path, function: str) -> CodeLocation:
    """Where it lies, as ``nm`` tells."""
    listed = subprocess.run(["nm", "-S", str(library)], capture_output=True, text=True, check=True).stdout
    line = next(line for line in listed.splitlines() if line.endswith(function))
    begin, size = (int(word, 16) for word in line.split()[:2])
    return CodeLocation(str(library), begin, function, begin, begin + size)


def test_instructions_are_those_that_objdump_lists(library: Path) -> None:
    place = of(library, "_ZN7kernels3dotEPKfS1_l")
    code = disassemble(place)
    command = ["objdump", "-d", "-M", "intel", f"--disassemble={place.function}", str(library)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if re.match(r"^ +[0-9a-f]+:\t", line)]
    listed = [line.split("\t")[2].split()[0] for line in lines if line.count("\t") >= 2]
    assert [one.name for one in code if one.name != "nop"] == [name for name in listed if name != "nop"]
    counts = count_instructions(code)
    assert counts.multiply_adds == sum("vfmadd" in line for line in lines) == 4
    assert counts.loads >= sum("vfmadd" in line and "[" in line for line in lines)


def test_the_hot_loop_of_a_dot_product_is_counted(library: Path) -> None:
    code = disassemble(of(library, "_ZN7kernels3dotEPKfS1_l"))
    fused = [one.address for one in code if one.name.startswith("vfmadd")]
    found = hot_loop(code, dict.fromkeys(fused, 10))
    assert found is not None and found.share == 1.0
    counts = count_instructions(found.body)
    assert (counts.multiply_adds, counts.loads, counts.stores, counts.flop, counts.vector_bits) == (4, 8, 0, 64, 256)
    said = explain_loop(counts, widest_bits=512)
    assert "4 multiply-adds, 8 loads (64 flop in vectors of 256 bits)" in said[0]
    assert any("2 loads a multiply-add" in line and "so loads bound it" in line for line in said)
    assert "its vectors have 256 bits, this CPU's have 512" in said


def test_a_loop_that_has_few_of_the_samples_is_not_hot(library: Path) -> None:
    code = disassemble(of(library, "_ZN7kernels3dotEPKfS1_l"))
    inside = next(one.address for one in code if one.name.startswith("vfmadd"))
    assert hot_loop(code, {code[0].address: 90, inside: 10}) is None
    assert hot_loop(code, {}) is None


def test_of_nested_loops_the_innermost_is_taken() -> None:
    code = [
        Instruction(0, "xor", "eax,eax"),
        Instruction(4, "add", "rbx,0x1"),
        Instruction(8, "vaddps", "ymm0,ymm0,YMMWORD PTR [rsi]"),
        Instruction(12, "jne", "8", 8),
        Instruction(16, "jne", "4", 4),
        Instruction(20, "jmp", "0 <f+0x0>", 40),
    ]
    assert loops_of(code) == [(2, 3), (1, 4)]
    found = hot_loop(code, {4: 1, 8: 2, 16: 1})
    assert found is not None and [one.address for one in found.body] == [8, 12] and found.share == 0.5


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("vmovups ymm0,YMMWORD PTR [rax]", {"loads": 1}),
        ("vmovups YMMWORD PTR [rax+rcx*4],ymm0", {"stores": 1}),
        ("mov QWORD PTR [rsp+0x8],rax", {"spills": 1}),
        ("vmovaps zmm3,ZMMWORD PTR [rsp+0x40]", {"reloads": 1}),
        ("add DWORD PTR [rdi],eax", {"loads": 1, "stores": 1}),
        ("cmp QWORD PTR [rdi],rax", {"loads": 1}),
        ("lea rax,[rdi+rcx*8]", {}),
        ("vfmadd231ss xmm0,xmm1,DWORD PTR [rsi]", {"loads": 1, "multiply_adds": 1, "flop": 2.0}),
        ("vfmadd213pd zmm0,zmm1,zmm2", {"multiply_adds": 1, "flop": 16.0}),
        ("vpdpbusd zmm0,zmm1,zmm2", {"multiply_adds": 1, "flop": 128.0}),
        ("vdpbf16ps ymm0,ymm1,YMMWORD PTR [rax]", {"multiply_adds": 1, "flop": 32.0, "loads": 1}),
        ("call 21b0", {"calls": 1}),
        ("vmulps ymm0,ymm1,ymm2", {"other_arithmetic": 1, "flop": 8.0}),
        ("vgatherdps ymm0,DWORD PTR [rax+ymm1*4],ymm2", {"gathers": 1, "loads": 1}),
    ],
)
def test_each_kind_of_instruction(text: str, counted: dict[str, float]) -> None:
    name, _, operands = text.partition(" ")
    counts = vars(count_instructions([Instruction(0, name, operands)]))
    got = {key: value for key, value in counts.items() if value and key not in ("instructions", "vector_bits")}
    assert got == counted


def test_an_address_is_found_with_its_function(library: Path) -> None:
    loaded = ctypes.CDLL(str(library))
    address = ctypes.cast(loaded.spin, ctypes.c_void_p).value
    assert address is not None
    place = Mappings().locate(address + 3)
    assert (place.file, place.function, place.address - place.begin) == (str(library), "spin", 3)
    assert place == of(library, "spin")._replace(address=place.address)
    assert Mappings().locate(8).file == ""


def test_names_are_written_as_their_author_wrote_them() -> None:
    names = ["_ZN7kernels3dotEPKfS1_l", "spin", "_ZN7kernels3dotEPKfS1_l._omp_fn.0"]
    assert demangle_names(names) == [
        "kernels::dot(float const*, float const*, long)",
        "spin",
        demangle_names(names[:1])[0],
    ]
