"""Packed formats against GGUF's definition, written down here a second time: in NumPy, and as bytes that the PyPI
package gguf 0.19.0 made. What contracts cannot say of the ops stands here too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from op_kernels import runs_here
from torch import Tensor

import kernelworks as kw
from kernelworks.contract import INNER, INT8_BY_BLOCK, Kernel, Mutant
from kernelworks.contract.packed_formats import FORMATS
from kernelworks.dispatch.op import OPS
from kernelworks.verify.checks import surviving_mutants

Numbers = np.ndarray[Any, Any]
NAMES = ("quantize", "dequantize", "quantized_linear")


def kernels(name: str) -> list[str]:
    return [k.name for k in OPS[name].kernels if k.source is None or (k.device == "cpu" and runs_here(k))]


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


PACKED: dict[str, Callable[[Numbers], bytes]] = {"Q8_0": q8_0, "Q4_0": q4_0, "Q5_0": q5_0}
UNPACKED: dict[str, Callable[[bytes], list[np.float32]]] = {"Q8_0": un_q8_0, "Q4_0": un_q4_0, "Q5_0": un_q5_0}

# Of the numbers (i * 7919 % 61 - 30) / 8 for i from 0 to 31: halves, both signs, ties in size.
FROZEN = {
    "Q8_0": "8f27815526f8c99a6e3f11e2b485592afccd9f724415e7b8895d2f00d1a3774819eb",
    "Q4_0": "803720fdca9765321fecb9865320fedba875",
    "Q5_0": "8033c6318e7340eb953fd9731ec8620ca641fb953fda",
}


def numbers() -> Numbers:
    return np.array([(i * 7919 % 61 - 30) / 8 for i in range(32)], np.float32)


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_that_gguf_made(format: str) -> None:
    for kernel in kernels("quantize"):
        assert bytes(kw.quantize(torch.from_numpy(numbers()), format, kernel=kernel).numpy()).hex() == FROZEN[format]


def blocks() -> Numbers:
    """Blocks of every kind that GGUF defines: no NaN, no infinity."""
    rng = np.random.default_rng(3)
    made = rng.standard_normal((40, 32), np.float32)
    made[0], made[1], made[2], made[3] = 0.0, -0.0, -1.5, 1.5
    made[4:8] = rng.integers(-16, 17, (4, 32)) / np.float32(2)  # halves
    made[8:10] *= np.float32(1e-6)  # scales that are subnormal in float16
    made[10:12] *= np.float32(1e30)  # and ones that are infinite in it
    made[12, 3:] = 0.0
    made[13, 1], made[13, 2] = 4.0, -4.0
    return made


@pytest.mark.parametrize("format", FORMATS)
def test_quantize_is_bit_exact(format: str) -> None:
    x = blocks()
    want = b"".join(PACKED[format](block) for block in x)
    for kernel in kernels("quantize"):
        assert bytes(kw.quantize(torch.from_numpy(x), format, kernel=kernel).numpy().ravel()) == want, kernel


@pytest.mark.parametrize("format", FORMATS)
def test_dequantize_is_bit_exact(format: str) -> None:
    """Any bytes, and the signs of zeros too; a NaN is a NaN."""
    size = FORMATS[format].nbytes
    packed = np.random.default_rng(5).integers(0, 256, (300, size), np.uint8)
    packed[:4, 1] |= 0x80
    with np.errstate(invalid="ignore"):
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
    weight = kw.quantize(torch.randn(531, 512, generator=generator), format)
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
