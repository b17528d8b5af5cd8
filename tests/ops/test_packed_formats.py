"""Packed formats against GGUF's definition, written down here a second time: in NumPy, and as bytes that the PyPI
package gguf 0.19.0 made. What contracts cannot say of the ops stands here too."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from op_kernels import asked_kernels
from telling_cases import SMOKE, telling
from torch import Tensor

import kernelworks as kw
from kernelworks.contract import INNER, INT8_BY_BLOCK, Kernel, Mutant
from kernelworks.contract.packed_blocks import LEVELS
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.dispatch.op import OPS
from kernelworks.templates.packed_blocks import draw_packed
from kernelworks.verify.checks import surviving_mutants

Numbers = np.ndarray[Any, Any]
NAMES = ("quantize", "dequantize", "quantized_linear")


def kernels(name: str) -> list[str]:
    return [
        k.name for k in OPS[name].kernels if k.source is None or (k.device == "cpu" and k in asked_kernels(OPS[name]))
    ]


# ---------------------------------------------------------------- the definition, again


def half(x: Numbers) -> bytes:
    with np.errstate(over="ignore"):
        return np.float32(x).astype(np.float16).tobytes()


def q8_0(x: Numbers) -> bytes:
    scale = np.abs(x).max() / np.float32(127)
    times = np.float32(0) if scale == 0 else np.float32(1) / scale
    scaled = x * times
    whole = [int(np.floor(abs(v)) + np.floor(2 * (abs(v) - np.floor(abs(v))))) * (1 if v > 0 else -1) for v in scaled]
    return half(scale) + bytes(w & 255 for w in whole)


def nibble_codes(x: Numbers, scale: Numbers, shift: float, most: int) -> list[int]:
    times = np.float32(0) if scale == 0 else np.float32(1) / scale
    return [min(most, int(np.float32(v * times) + np.float32(shift))) for v in x]


def paired(codes: list[int]) -> bytes:
    return bytes((low & 15) | (high & 15) << 4 for low, high in zip(codes[:16], codes[16:], strict=True))


def q4_0(x: Numbers) -> bytes:
    scale = x[np.abs(x).argmax()] / np.float32(-8)
    return half(scale) + paired(nibble_codes(x, scale, 8.5, 15))


def q5_0(x: Numbers) -> bytes:
    scale = x[np.abs(x).argmax()] / np.float32(-16)
    codes = nibble_codes(x, scale, 16.5, 31)
    return half(scale) + sum((code >> 4) << i for i, code in enumerate(codes)).to_bytes(4, "little") + paired(codes)


def ranged_codes(x: Numbers, most: int) -> tuple[bytes, list[int]]:
    least, scale = x.min(), (x.max() - x.min()) / np.float32(most)
    times = np.float32(0) if scale == 0 else np.float32(1) / scale
    codes = [min(most, int(np.float32((v - least) * times) + np.float32(0.5))) for v in x]
    return half(scale) + half(x[np.argmin(x)]), codes


def q4_1(x: Numbers) -> bytes:
    head, codes = ranged_codes(x, 15)
    return head + paired(codes)


def q5_1(x: Numbers) -> bytes:
    head, codes = ranged_codes(x, 31)
    return head + sum((code >> 4) << i for i, code in enumerate(codes)).to_bytes(4, "little") + paired(codes)


def un_q8_0(block: bytes) -> list[np.float32]:
    scale = np.float32(np.frombuffer(block[:2], np.float16)[0])
    return [scale * np.float32(b - 256 if b > 127 else b) for b in block[2:]]


def un_q4_0(block: bytes) -> list[np.float32]:
    scale = np.float32(np.frombuffer(block[:2], np.float16)[0])
    return [scale * np.float32(c - 8) for c in [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]]


def un_q5_0(block: bytes) -> list[np.float32]:
    scale, fifth = np.float32(np.frombuffer(block[:2], np.float16)[0]), int.from_bytes(block[2:6], "little")
    low = [b & 15 for b in block[6:]] + [b >> 4 for b in block[6:]]
    return [scale * np.float32((c | (fifth >> i & 1) << 4) - 16) for i, c in enumerate(low)]


def in_groups(codes: list[int]) -> bytes:
    return b"".join(paired(codes[i : i + 32]) for i in range(0, 128, 32))


def int4_128(x: Numbers) -> bytes:
    scale = x[np.abs(x).argmax()] / np.float32(-8)
    return half(scale) + in_groups(nibble_codes(x, scale, 8.5, 15))


def uint4_128(x: Numbers) -> bytes:
    with np.errstate(over="ignore", invalid="ignore"):
        least, most = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
        scale = np.float32(np.float16((most - least) / np.float32(15)))
        if scale == 0:
            return half(scale) + half(np.float32(0)) + bytes(64)
        zero = min(15, max(0, -int(np.rint(least / scale))))
        codes = [min(15, max(0, int(np.rint(v / scale)) + zero)) for v in x]
    return half(scale) + half(np.float32(zero)) + in_groups(codes)


def half_of(block: bytes, at: int) -> np.float32:
    return np.float32(np.frombuffer(block[at : at + 2], np.float16)[0])


def un_q4_1(block: bytes) -> list[np.float32]:
    scale, least = half_of(block, 0), half_of(block, 2)
    return [scale * np.float32(c) + least for c in [b & 15 for b in block[4:]] + [b >> 4 for b in block[4:]]]


def un_q5_1(block: bytes) -> list[np.float32]:
    scale, least, fifth = half_of(block, 0), half_of(block, 2), int.from_bytes(block[4:8], "little")
    low = [b & 15 for b in block[8:]] + [b >> 4 for b in block[8:]]
    return [scale * np.float32(c | (fifth >> i & 1) << 4) + least for i, c in enumerate(low)]


def un_iq4_nl(block: bytes) -> list[np.float32]:
    return [
        half_of(block, 0) * np.float32(LEVELS[c]) for c in [b & 15 for b in block[2:]] + [b >> 4 for b in block[2:]]
    ]


def six_bits(packed: bytes) -> list[tuple[int, int]]:
    """Scale and minimum of each of eight parts, from 12 bytes."""
    first = [(packed[j] & 63, packed[j + 4] & 63) for j in range(4)]
    return first + [
        ((packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4) for j in range(4, 8)
    ]


def ranged_parts(block: bytes, code: Callable[[int, int], int]) -> list[np.float32]:
    scale, less, found = half_of(block, 0), half_of(block, 2), []
    for part, (times, minimum) in enumerate(six_bits(block[4:16])):
        for i in range(32):
            found.append(scale * np.float32(times) * np.float32(code(part, i)) - less * np.float32(minimum))
    return found


def un_q4_k(block: bytes) -> list[np.float32]:
    return ranged_parts(block, lambda part, i: block[16 + part // 2 * 32 + i] >> part % 2 * 4 & 15)


def un_q5_k(block: bytes) -> list[np.float32]:
    def code(part: int, i: int) -> int:
        return block[48 + part // 2 * 32 + i] >> part % 2 * 4 & 15 | (block[16 + i] >> part & 1) << 4

    return ranged_parts(block, code)


def un_q6_k(block: bytes) -> list[np.float32]:
    found = []
    for n in range(256):
        low = block[n // 128 * 64 + n % 64] >> n % 128 // 64 * 4 & 15
        upper = block[128 + n // 128 * 32 + n % 32] >> n % 128 // 32 * 2 & 3
        times = np.frombuffer(block[192 + n // 16 : 193 + n // 16], np.int8)[0]
        found.append(half_of(block, 208) * np.float32(times) * np.float32((low | upper << 4) - 32))
    return found


def group_codes(packed: bytes) -> list[int]:
    return [packed[i // 32 * 16 + i % 16] >> i % 32 // 16 * 4 & 15 for i in range(128)]


def un_int4_128(block: bytes) -> list[np.float32]:
    return [half_of(block, 0) * np.float32(code - 8) for code in group_codes(block[2:])]


def un_uint4_128(block: bytes) -> list[np.float32]:
    scale, zero = half_of(block, 0), half_of(block, 2)
    return [scale * np.float32(code) - scale * zero for code in group_codes(block[4:])]


PACKED: dict[str, Callable[[Numbers], bytes]] = {
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q5_0": q5_0,
    "Q4_1": q4_1,
    "Q5_1": q5_1,
    "INT4_128": int4_128,
    "UINT4_128": uint4_128,
}
UNPACKED: dict[str, Callable[[bytes], list[np.float32]]] = {
    "Q8_0": un_q8_0, "Q4_0": un_q4_0, "Q5_0": un_q5_0, "Q4_1": un_q4_1, "Q5_1": un_q5_1, "IQ4_NL": un_iq4_nl,
    "Q4_K": un_q4_k, "Q5_K": un_q5_k, "Q6_K": un_q6_k, "INT4_128": un_int4_128, "UINT4_128": un_uint4_128,
}  # fmt: skip

# Of the numbers (i * 7919 % 61 - 30) / 8 for i from 0 to 31: halves, both signs, ties in size.
FROZEN = {
    "Q8_0": "8f27815526f8c99a6e3f11e2b485592afccd9f724415e7b8895d2f00d1a3774819eb",
    "Q4_0": "803720fdca9765321fecb9865320fedba875",
    "Q5_0": "8033c6318e7340eb953fd9731ec8620ca641fb953fda",
    "Q4_1": "bc3780c320fdca9764321edcb9865320fdca9865",
    "Q5_1": "7c3380c3c6718e7340eb953fd9731ec8620ca641fb9530da",
}
# SHA-256, the first 16 digits, of the bytes that ggml's `quantize_row_*_ref` makes of 64 blocks.
FROZEN_SEARCHES = {
    "IQ4_NL": "f8dc14a9d4ad4263", "Q4_K": "f1380b1c1e231933", "Q5_K": "e6f0384c2bb27e22", "Q6_K": "5837876ae953f5d5",
}  # fmt: skip
# SHA-256, the first 16 digits, of the numbers that gguf makes of 64 blocks of bytes.
FROZEN_NUMBERS = {
    "Q8_0": "c2b1dd6c4c891dc2",
    "Q4_0": "d6380d443cdf73f3",
    "Q5_0": "485308b1fff1aa11",
    "Q4_1": "5640d59dc7878f80",
    "Q5_1": "43c26e78a64c2ba4",
    "IQ4_NL": "9500795bb433f7b2",
    "Q4_K": "7211ab5e7f0caaf4",
    "Q5_K": "3419c0ca21b2cb90",
    "Q6_K": "83a403ad1100dab7",
}


def numbers() -> Numbers:
    return np.array([(i * 7919 % 61 - 30) / 8 for i in range(32)], np.float32)


@pytest.mark.parametrize("format", FROZEN)
def test_bytes_that_gguf_made(format: str) -> None:
    for kernel in kernels("quantize"):
        assert bytes(kw.quantize(torch.from_numpy(numbers()), format, kernel=kernel).numpy()).hex() == FROZEN[format]


def digits(x: Tensor) -> str:
    return hashlib.sha256(x.numpy().tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("format", FROZEN_SEARCHES)
def test_searches_end_where_those_of_ggml_do(format: str) -> None:
    block = FORMATS[format].block
    i = np.arange(64 * block)
    x = ((i * 7919 % 1021 - 510) / 64 * np.exp2(i // block % 9 - 4)).astype(np.float32)
    for kernel in kernels("quantize"):
        packed = kw.quantize(torch.from_numpy(x).view(64, block), format, kernel=kernel)
        assert digits(packed) == FROZEN_SEARCHES[format], kernel


@pytest.mark.parametrize("format", FORMATS)
def test_blocks_of_odd_numbers(format: str) -> None:
    """Zeros come back as zeros, a NaN makes all of its block NaN and leaves the next alone, and numbers whose scale
    float16 cannot hold come back as zeros or so."""
    block = FORMATS[format].block
    x = torch.randn(4, 2 * block, generator=torch.Generator().manual_seed(7))
    x[0], x[1, 3], x[2] = 0.0, float("nan"), 1e-9 * x[2]
    for kernel in kernels("quantize"):
        packed = kw.quantize(x, format, kernel=kernel)
        for decoder in kernels("dequantize"):
            back = kw.dequantize(packed, format, kernel=decoder)
            assert not back[0].any() and not back[2].abs().gt(1e-7).any(), (kernel, decoder)
            assert back[1, :block].isnan().all() and back[1, block:].isfinite().all(), (kernel, decoder)
            assert (back[3] - x[3]).abs().max() < x[3].abs().max() / 6, (kernel, decoder)


def blocks(size: int = 32) -> Numbers:
    """Blocks of every kind that GGUF defines: no NaN, no infinity."""
    rng = np.random.default_rng(3)
    made = rng.standard_normal((40, size), np.float32)
    made[0], made[1], made[2], made[3] = 0.0, -0.0, -1.5, 1.5
    made[4:8] = rng.integers(-16, 17, (4, size)) / np.float32(2)  # halves
    made[8:10] *= np.float32(1e-6)  # scales that are subnormal in float16
    made[10:12] *= np.float32(1e30)  # and ones that are infinite in it
    made[12, 3:] = 0.0
    made[13, 1], made[13, 2] = 4.0, -4.0
    return made


@pytest.mark.parametrize("format", FROZEN_NUMBERS)
def test_numbers_that_gguf_made(format: str) -> None:
    found = FORMATS[format]
    packed = torch.tensor([(i * 7919 + i // 7) % 251 for i in range(64 * found.nbytes)], dtype=torch.uint8)
    packed = packed.view(64, found.nbytes)
    for place in found.scales:
        packed[:, place + 1] &= 0xBF  # no infinity, no NaN
    for kernel in kernels("dequantize"):
        got = kw.dequantize(packed, format, kernel=kernel)
        assert digits(got) == FROZEN_NUMBERS[format], kernel


@pytest.mark.parametrize("format", PACKED)
def test_quantize_is_bit_exact(format: str) -> None:
    x = blocks(FORMATS[format].block)
    want = b"".join(PACKED[format](block) for block in x)
    for kernel in kernels("quantize"):
        assert bytes(kw.quantize(torch.from_numpy(x), format, kernel=kernel).numpy().ravel()) == want, kernel


@pytest.mark.parametrize("format", FORMATS)
def test_dequantize_is_bit_exact(format: str) -> None:
    """Any bytes, and the signs of zeros too; a NaN is a NaN."""
    size = FORMATS[format].nbytes
    packed = np.random.default_rng(5).integers(0, 256, (9600 // FORMATS[format].block, size), np.uint8)
    for place in FORMATS[format].scales:
        packed[:4, place + 1] |= 0x80
    with np.errstate(invalid="ignore", over="ignore"):
        want = np.array([UNPACKED[format](bytes(block)) for block in packed], np.float32)
    for kernel in kernels("dequantize"):
        got = kw.dequantize(torch.from_numpy(packed), format, kernel=kernel).numpy()
        same = (got.view(np.int32) == want.view(np.int32)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), kernel


# ---------------------------------------------------------------- what a kernel rounds inside


def linear_args(rows: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(rows, 96, generator=generator), torch.randn(20, 96, generator=generator)
    return x, kw.quantize(weight, "Q8_0", kernel="torch")


INT8 = [k.name for k in OPS["quantized_linear"].kernels if k.inner == INT8_BY_BLOCK]


def test_who_rounds_activations_serves_only_calls_that_allow_it() -> None:
    assert INT8
    x, weight = linear_args()
    here = [name for name in INT8 if name in kernels("quantized_linear")]
    for name in here:
        with pytest.raises(RuntimeError, match=r"rounds the activations to 8 bits.*activations='int8'"):
            kw.quantized_linear(x, weight, format="Q8_0", kernel=name)
        got = kw.quantized_linear(x, weight, format="Q8_0", activations="int8", kernel=name)
        assert not torch.equal(got, kw.quantized_linear(x, weight, format="Q8_0", kernel="torch"))
    said = dict(kw.explain("quantized_linear", x, weight, format="Q8_0").declined)
    assert all("activations='int8'" in said[name] for name in here), said


def test_a_kernel_names_what_it_rounds() -> None:
    with pytest.raises(ValueError, match="inner of kernel odd must be one of float32, input"):
        Kernel("odd", "avx2", {}.__getitem__, inner="bfloat8")
    assert all(kernel.inner in INNER for op in OPS.values() for kernel in op.kernels)


def test_mutants_are_rejected_within_the_wider_bound_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is off by as little as 8 bits allow, where they are allowed."""
    op = OPS["quantized_linear"]
    right = op.kernel("torch").load("forward")
    monkeypatch.setattr(op, "contract", dataclasses.replace(op.contract, cases=telling(op, SMOKE)))

    def off(x: Tensor, weight: Tensor, bias: Tensor | None, format: str, activations: str) -> Tensor:
        product = right(x, weight, None, format, activations) * (1 + (1e-4 if activations == "int8" else 1.0))
        return product if bias is None else product + bias

    monkeypatch.setattr(op, "mutants", (Mutant("off", off, "by little"),))
    assert surviving_mutants(op) == [f"off ({INT8_BY_BLOCK})"]
    monkeypatch.setattr(op, "mutants", (Mutant("off", off, "by little", right_within=INT8_BY_BLOCK),))
    assert surviving_mutants(op) == []


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize("format", FORMATS)
def test_the_same_bits_for_any_number_of_threads(format: str) -> None:
    generator, before = torch.Generator().manual_seed(2), torch.get_num_threads()
    weight = draw_packed(generator, (531, 512), format, scale=0.01)
    try:
        for rows in (1, 5, 23):
            x = torch.randn(rows, 512, generator=generator)
            for name in kernels("quantized_linear"):
                if name in ("torch", "reference"):
                    continue
                activations = "int8" if name in INT8 else "float32"
                found = []
                for threads in (1, 2, 3):
                    torch.set_num_threads(threads)
                    found.append(
                        kw.quantized_linear(x, weight, format=format, activations=activations, kernel=name)
                    )  # fmt: skip
                assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2]), (name, rows)
    finally:
        torch.set_num_threads(before)


def test_gradients_flow_into_x_and_bias_alone() -> None:
    x, weight = linear_args()
    bias = torch.randn(20)
    for kernel in (None, "scalar", "torch"):
        a, b = x.clone().requires_grad_(), bias.clone().requires_grad_()
        kw.quantized_linear(a, weight, b, format="Q8_0", kernel=kernel).sum().backward()
        want = kw.dequantize(weight, "Q8_0").sum(0)
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad, want.expand(3, -1))
        torch.testing.assert_close(b.grad, torch.full((20,), 3.0))
    assert not kw.quantize(x.clone().requires_grad_(), "Q4_0").requires_grad


def test_second_derivatives_and_transforms() -> None:
    x, weight = linear_args(2)
    wide = kw.dequantize(weight, "Q8_0")
    mapped = torch.vmap(lambda row: kw.quantized_linear(row, weight, format="Q8_0"))(x)
    torch.testing.assert_close(mapped, x @ wide.T)
    _, along = torch.func.jvp(lambda v: kw.quantized_linear(v, weight, format="Q8_0"), (x,), (x,))
    torch.testing.assert_close(along, x @ wide.T)


@pytest.mark.parametrize("name", NAMES)
def test_a_format_that_nobody_knows(name: str) -> None:
    args = {"quantize": (torch.ones(2, 32),), "dequantize": (torch.zeros(2, 34, dtype=torch.uint8),)}
    given = args.get(name, (torch.ones(2, 32), torch.zeros(2, 34, dtype=torch.uint8)))
    with pytest.raises(ValueError, match="format must be 'Q8_0'"):
        getattr(kw, name)(*given, format="q8_0")
    with pytest.raises(TypeError, match="format must be a str"):
        getattr(kw, name)(*given, format=8)
