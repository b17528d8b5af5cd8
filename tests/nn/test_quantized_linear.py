"""QuantizedLinear: the bytes are the parameter."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import kernelworks as kw
from kernelworks.contract.packed_blocks import LEVELS
from kernelworks.contract.packed_formats import FORMATS


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_maps_as_its_dequantized_weight(format: str, bias: bool) -> None:
    linear = nn.Linear(256, 12, bias=bias)
    module = kw.nn.QuantizedLinear.from_linear(linear, format=format)
    x = torch.randn(5, 256, requires_grad=True)
    torch.testing.assert_close(module(x), nn.functional.linear(x, module.dequantized_weight(), linear.bias))
    module(x).sum().backward()
    assert x.grad is not None and module.weight.grad is None
    error = (module.dequantized_weight() - linear.weight).abs().max() / linear.weight.abs().max()
    # Of few bits the largest of the other sign is off by an eighth.
    limits = {"Q8_0": 0.005, "Q5_1": 0.06, "Q5_K": 0.06, "Q6_K": 0.06, "IQ4_NL": iq4_nl_error()}
    assert error < limits.get(format, 0.127)


def iq4_nl_error() -> float:
    """The most that IQ4_NL takes a number of a block away from itself, as a share of the block's largest.

    In units in which the largest number, y = -127, is its level, a number y has the nearest level q(y), and the scale
    is s = 1 + sum y^2 q (y - q) / sum y^2 q^2. The largest number adds nothing to the one sum and 127^4 to the other.
    Where the other 31 numbers are equal, s is furthest from 1: a sum of fractions over 127^4 is largest where each
    has the numerator and the denominator that are best for it. A number comes back as s q.
    """
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    y = torch.linspace(-127, 127, 254 * 64 + 1, dtype=torch.float64)  # half-way between levels lies on this grid
    y = torch.cat((y - 1e-9, y + 1e-9)).clamp(-127, 127)
    q = levels[(y[:, None] - levels).abs().argmin(1)]
    change = 31 * y**2 * q * (y - q) / (127**4 + 31 * y**2 * q**2)
    off = (torch.stack((1 + change.min(), 1 + change.max()))[:, None] * (1 + 2**-11) * q - y).abs()  # s in float16
    return float(off.max() / 127)


def test_state_dict_copies_and_pickles() -> None:
    module = kw.nn.QuantizedLinear.from_linear(nn.Linear(96, 7), format="Q4_0")
    x = torch.randn(2, 96)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), module(x), rtol=0, atol=0)
    fresh = kw.nn.QuantizedLinear(96, 7, format="Q4_0")
    assert not fresh(x).any()
    fresh.load_state_dict(module.state_dict())
    torch.testing.assert_close(fresh(x), module(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        kw.nn.QuantizedLinear(96, 7, format="Q8_0").load_state_dict(module.state_dict())


def test_nothing_outlives_a_change_of_the_bytes() -> None:
    module, other = (kw.nn.QuantizedLinear.from_linear(nn.Linear(64, 8), format="Q8_0") for _ in range(2))
    x = torch.randn(3, 64)
    module(x), other(x)
    module.weight.data.copy_(other.weight.data)
    module.bias.data.copy_(other.bias.data)
    torch.testing.assert_close(module(x), other(x), rtol=0, atol=0)
    module.weight.data[:] = 0
    torch.testing.assert_close(module(x), module.bias.expand(3, -1), rtol=0, atol=0)


def test_other_dtypes_and_optimizers() -> None:
    module = kw.nn.QuantizedLinear.from_linear(nn.Linear(64, 8)).bfloat16()
    assert module.weight.dtype == torch.uint8
    assert module(torch.randn(2, 64).bfloat16()).dtype == torch.bfloat16
    assert module(torch.randn(2, 64)).dtype == torch.float32  # as under autocast
    before = module.weight.clone()
    module(torch.randn(2, 64).bfloat16()).sum().backward()
    torch.optim.AdamW(module.parameters(), lr=1.0).step()
    assert torch.equal(module.weight, before)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="in_features must be a multiple of 32, the block of Q8_0; got 33"):
        kw.nn.QuantizedLinear(33, 4)
    with pytest.raises(ValueError, match="format must be 'Q8_0'"):
        kw.nn.QuantizedLinear(32, 4, format="Q9")
    with pytest.raises(ValueError, match="activations must be 'float32' or 'int8', got 'fp8'"):
        kw.nn.QuantizedLinear(32, 4, activations="fp8")


def checkpoint(k: int, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [K, N], zero points and scales [K / 128, N], and the numbers that they stand for, [N, K]."""
    generator = torch.Generator().manual_seed(5)
    codes = torch.randint(0, 16, (k, n), generator=generator)
    zeros = torch.randint(1, 17, (k // 128, n), generator=generator)
    scales = (torch.rand(k // 128, n, generator=generator) * 0.1).half()
    wide = (codes - zeros.repeat_interleave(128, 0)).float() * scales.float().repeat_interleave(128, 0)
    return codes, zeros, scales, wide.T


def in_eights(numbers: torch.Tensor, order: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6, 7)) -> torch.Tensor:
    """[..., 8 n] numbers of 4 bits as [..., n] of int32."""
    made = [
        [sum(int(row[8 * i + order[j]]) << 4 * j for j in range(8)) for i in range(len(row) // 8)] for row in numbers
    ]
    return torch.tensor(made, dtype=torch.int64).to(torch.int32)


def test_gptq_and_awq_keep_their_numbers() -> None:
    codes, zeros, scales, wide = checkpoint(256, 24)
    x, bias = torch.randn(3, 256), torch.randn(24)
    gptq = in_eights(codes.T).T.contiguous(), in_eights(zeros - 1), scales
    made = kw.nn.QuantizedLinear.from_gptq(*gptq, bias, g_idx=torch.arange(256) // 128)
    assert torch.equal(made.dequantized_weight(), wide)
    torch.testing.assert_close(made(x), nn.functional.linear(x, wide, bias))
    whole = zeros.clamp(max=15)
    other = wide + (zeros - whole).T.repeat_interleave(128, 1) * scales.float().T.repeat_interleave(128, 1)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    made = kw.nn.QuantizedLinear.from_awq(in_eights(codes, order), in_eights(whole, order), scales, activations="int8")
    torch.testing.assert_close(made.dequantized_weight(), other, rtol=0, atol=0)
    same = kw.nn.QuantizedLinear.from_gptq(gptq[0], in_eights(whole), scales, zeros_less_one=False)
    assert torch.equal(same.weight, made.weight)
    for wrong, said in (
        ((gptq[0][:, 1:], *gptq[1:]), r"qweight must be int32\[32, 24\], got int32\[32, 23\]"),
        ((gptq[0], gptq[1].float(), scales), r"qzeros must be int32\[2, 3\], got float32"),
        ((gptq[0], gptq[1], scales.float()), "scales must be float16"),
    ):
        with pytest.raises(ValueError, match=said):
            kw.nn.QuantizedLinear.from_gptq(*wrong)
    with pytest.raises(ValueError, match="another order is not packed"):
        kw.nn.QuantizedLinear.from_gptq(*gptq, g_idx=torch.arange(256) % 2)
