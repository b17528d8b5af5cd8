"""The machine code of a GPU's kernels, compiled here for sm_90: our counts beside those of another disassembler."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import triton

from kernelworks.climb.sass import mnemonic
from kernelworks.descend.device_code import (
    ADDRESSES,
    KernelCode,
    class_of,
    count_classes,
    device_loop,
    find_code,
    instructions,
    ir_operations,
    moved_bytes,
    ptx_operations,
    read_cache,
)
from kernelworks.descend.kernel_names import launch_sentences, maker_of, name_sentences
from kernelworks.ops import op_named

NVDISASM = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
HEADER = re.compile(r"^\.text\.(\S+):$", re.M)
CALLS = {  # an op and what its Triton kernel is called on
    "rms_norm": (([64, 4096], [4096]), (1e-5, None)),
    "silu_mul": (([8, 2816], [8, 2816]), ()),
    "linear": (([256, 512], [384, 512]), (None,)),
}


@pytest.fixture(scope="module")
def compiled() -> dict[str, KernelCode]:
    build: Any = importlib.import_module("kernelworks.build.triton")
    found = {}
    for op, (shapes, rest) in CALLS.items():
        tensors = [torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes]
        with build.compiling() as made:
            op_named(op).kernel("triton").load("forward")(*tensors, *rest)
        found[op] = KernelCode(made[0].name, made[0].threads, made[0].shared_bytes, made[0].cubin)
    return found


def by_nvdisasm(code: KernelCode, folder: Path) -> Counter[str]:
    """How many of each instruction, by the other tool; what only fills the end is left out, as there."""
    path = folder / "it.cubin"
    path.write_bytes(code.cubin)
    listing = subprocess.run([str(NVDISASM), "-c", str(path)], capture_output=True, text=True, check=True).stdout
    parts = HEADER.split(listing)
    body = dict(zip(parts[1::2], parts[2::2], strict=True))[code.name]
    texts = [text for _, text in re.findall(r"/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;", body)]
    names = (re.sub(r"^@!?U?P\w+\s+", "", text).split()[0] for text in texts)
    return Counter(name for name in names if name != "NOP")


@pytest.mark.parametrize("op", CALLS)
def test_instructions_are_those_of_nvdisasm(compiled: dict[str, KernelCode], op: str, tmp_path: Path) -> None:
    ours = Counter(".".join(mnemonic(text)) for _, text in instructions(compiled[op]))
    assert ours == by_nvdisasm(compiled[op], tmp_path) and ours.total() > 40


@pytest.mark.parametrize("op", CALLS)
def test_a_loop_is_told_by_its_counts(compiled: dict[str, KernelCode], op: str) -> None:
    code = compiled[op]
    whole = [text for _, text in instructions(code)]
    found = device_loop(code, moving=op != "linear")
    assert found is not None and found.kernel_instructions == len(whole)
    assert sum(found.counts.values()) == len(found.lines) <= len(whole)
    assert [kind for _, kind in found.lines] == [class_of(text) for text, _ in found.lines]
    assert found.counts == count_classes([text for text, _ in found.lines])
    assert "spill" not in count_classes(whole)
    assert code.registers > 0
    if op == "linear":
        assert found.counts["matrix product"] >= 1 and any("matrix units: " in said for said in found.explained)
    else:
        assert found.counts["load"] >= 1 and any("loads of memory" in said for said in found.explained)


def test_what_an_instruction_is_there_for() -> None:
    kinds = {
        "HGMMA.64x256x16.F32 R24, gdesc[UR8], R24": "matrix product", "@P0 FFMA R1, R2, R3, R1": "multiply-add",
        "HFMA2.MMA R33, -RZ, RZ, 1.875, 0": ADDRESSES, "LDG.E.128 R4, desc[UR4][R2.64]": "load",
        "@!P1 STL [R1], R2": "spill", "MUFU.EX2 R3, R3": "special function", "IMAD.WIDE R2, R3, 4, R4": ADDRESSES,
        "@P0 BRA 0x10": "jump", "UTMALDG.2D [UR4], [UR6]": "asynchronous copy", "SHFL.BFLY PT, R1": "shuffle",
    }  # fmt: skip
    assert {text: class_of(text) for text in kinds} == kinds
    loads = ("LDG.E.128 R4, a", "LDG.E R4, a", "LDG.E.64.CONSTANT R4, a", "LDG.E.U16 R4, a", "LDG.E.128 R8, a")
    assert moved_bytes(loads, "load") == {16: 2, 8: 1, 4: 1, 2: 1}


def test_code_is_found_in_a_cache(compiled: dict[str, KernelCode], tmp_path: Path) -> None:
    code = compiled["silu_mul"]
    for number, warps in enumerate((code.threads // 32, 2 * code.threads // 32)):
        folder = tmp_path / f"KEY{number}"
        folder.mkdir()
        (folder / "it.cubin").write_bytes(code.cubin)
        (folder / "it.json").write_text(json.dumps({"name": code.name, "num_warps": warps, "shared": 16}))
        (folder / "it.ttir").write_text(
            '%3 = tt.load %2 : tensor<4x!tt.ptr<f32>>\n"tt.reduce"(%3)\ntt.reduce.return %4'
        )
    (tmp_path / "KEY0" / "other.cubin").write_bytes(b"")  # without its description
    (tmp_path / "KEY0" / "broken.cubin").write_bytes(b"")
    (tmp_path / "KEY0" / "broken.json").write_text("{")
    codes = read_cache(tmp_path)
    assert [one.shared_bytes for one in codes] == [16, 16] and codes[0].where == "recorded"
    assert find_code(codes, code.name, threads=code.threads, registers=code.registers) == [codes[0]]
    assert find_code(codes, code.name, threads=7, registers=0) == [] == find_code(codes, "x", threads=0, registers=0)
    assert find_code(codes, code.name, threads=0, registers=code.registers + 3) == codes  # rounded up
    assert find_code(codes, code.name, threads=0, registers=code.registers - 1) == []
    assert ir_operations(codes[0].ttir) == {"tt.load": 1}
    assert ptx_operations(
        "  ld.global.v4.b32 {%r1}, [%rd1];\n @%p1 ld.global.v4.b32 {%r1}, [%rd1];\n add.s32 %r1;\n"
    ) == {"ld.global.v4.b32": 2}


NAMES = {
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT": ("cuBLAS", "a tile of 64 x 8, steps of 64 in 16 stages"),
    "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT": ("cuBLAS", "clusters of 2 x 1; split along what is summed"),
    "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>": (
        "cuBLAS", "a tile of 16 x 16 on the matrix units"),
    "void gemv2T_kernel_val<int, int, __nv_bfloat16>": ("cuBLAS", "a matrix times a vector"),
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>": ("torch", "4 at once"),
    "void at::native::elementwise_kernel<128, 4, at::native::foo>": ("torch", "one at a time"),
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>": ("torch", "a reduction"),
    "triton_poi_fused_mul_silu_3": ("inductor", "elements, each by itself; it holds mul silu"),
    "triton_red_fused__to_copy_mean_rsqrt_0": ("inductor", "a reduction in a loop"),
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits>": ("FlashAttention, in torch", "in parts"),
    "triton_poi_fused__scaled_dot_product_cudnn_attention_where_4": ("inductor", "each by itself"),
    "void splitKreduce_kernel<32, 16, int>": ("cuBLAS", "adds the parts"),
    "ncclDevKernel_AllReduce": ("NCCL", ""),
    "_forward": ("unknown", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_a_name_tells(name: str) -> None:
    maker, said = NAMES[name]
    found = "; ".join(name_sentences(name))
    assert maker_of(name) == maker and said in found and bool(found) == bool(said)


def test_what_a_launch_tells() -> None:
    assert launch_sentences((32, 1, 1), (128, 1, 1), 132) == ("32 blocks for 132 multiprocessors: the others idle",)
    assert launch_sentences((4096,), (128,), 132) == () == launch_sentences((), (), 132)
    assert "few warps" in launch_sentences((512, 1, 1), (32, 1, 1), 132)[0]
