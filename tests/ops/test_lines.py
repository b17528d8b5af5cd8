"""Where a reduction's lines lie: every stride pattern, against the tensor itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernelworks.contract.row_layout import lines


def tensors() -> dict[str, Tensor]:
    x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    return {
        "contiguous": x,
        "transposed": x.mT,
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "permuted": x.permute(3, 0, 2, 1),
        "sliced": x[:, :, :, 1:4],
        "every other row": x[:, :, ::2],
        "every other column": x[..., ::2],
        "expanded": x[:, :1].expand(2, 6, 4, 5),
        "matrix": x.reshape(6, 20)[:, 3:17],
        "turned matrix": x.reshape(6, 20).t(),
        "turned slice": x.reshape(6, 20)[:, 3:17].t(),
        "of ones": x[:, :1, :, :1],
        "a vector": x[0, 0, :, 2],
    }


@pytest.mark.parametrize("name", tensors())
@pytest.mark.parametrize("ordered", [True, False])
def test_every_element_is_in_its_line(name: str, ordered: bool) -> None:
    x = tensors()[name]
    for dim in (*range(-x.dim(), x.dim()), None):
        found = lines(x, dim, ordered=ordered)
        assert found.inner > 1 or found.stride == 1
        strides = (found.outer_stride, found.stride, 1)
        seen = found.tensor.as_strided((found.outer, found.n, found.inner), strides)
        want = x.reshape(1, -1, 1) if dim is None else x.movedim(dim, -1).reshape(-1, x.shape[dim], 1)
        got = seen.transpose(1, 2).reshape(-1, found.n, 1)
        if dim is None and not ordered:
            got, want = got.sort(1)[0], want.sort(1)[0]
        assert torch.equal(got, want), dim


COPIED = {
    "contiguous": set(),
    "transposed": {0, 1, None},
    "permuted": {0, 1, 2, 3, None},
    "matrix": {None},
    "turned matrix": {None},
    "every other column": {0, 1, 2, 3, None},
}


@pytest.mark.parametrize("name", COPIED)
def test_a_view_wherever_strides_allow_it(name: str) -> None:
    x = tensors()[name]
    copied = {dim for dim in (*range(x.dim()), None) if lines(x, dim).tensor.data_ptr() != x.data_ptr()}
    assert copied <= COPIED[name]
    if name in ("transposed", "permuted", "turned matrix"):  # a whole piece of memory, in another order
        assert lines(x, None, ordered=False).tensor.data_ptr() == x.data_ptr()
