"""What rowwise_linear's contract cannot say: a prepared call hands the kernel bytes, also of float8."""

from __future__ import annotations

import pytest
import torch

from kernelworks.ops.quantization.rowwise_linear import OP
from kernelworks.ops.quantization.rowwise_linear.triton import ROWS


@pytest.mark.parametrize("of", [torch.int8, torch.float8_e4m3fn], ids=["int8", "float8"])
def test_a_prepared_call_hands_on_bytes(of: torch.dtype) -> None:
    """A replay would know the weight by its address and hand on float8, which the kernel does not compile for."""
    x, scale = torch.empty(1, 40, device="meta"), torch.empty(9, device="meta")
    weight = torch.empty(9 * 40 + 1, dtype=of, device="meta")[1:].view(9, 40)
    call = OP.kernel("triton").prepare("forward", (x, weight, scale, None))
    assert call is not None and call(x, weight, scale, None).shape == (1, 9)
    signatures = [dict(key[1]) for launch in ROWS._launches.values() for key in launch._seen]
    assert signatures and {signature["weight"] for signature in signatures} == {"*u8"}
