"""block_sparse_attention beyond its contract: the same as attention's with a mask, as FlexAttention's, compiled."""

from __future__ import annotations

import re
from typing import Any

import forked
import pytest
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.ops.attention.block_sparse_attention import baselines
from kernelworks.ops.attention.block_sparse_attention.contract import expand_mask, pairs_of
from kernelworks.verify.reference import compute_reference

OP = OPS["block_sparse_attention"]
LISTS = """
import torch
from kernelworks.ops.attention.block_sparse_attention.triton_lists import lists_of

mask = torch.rand(2, 2, 11, 140, generator=torch.Generator().manual_seed(3)) < 0.1
mask[:, :, 7] = False
ahead = torch.arange(140) > torch.arange(11)[:, None]
for causal in (False, True):
    for of_keys in (False, True):
        seen = mask & ~ahead if causal else mask
        seen = (seen.mT if of_keys else seen).flatten(0, 1)
        masks, rows, columns = seen.shape
        found = lists_of(mask, causal, of_keys=of_keys)
        counts = found.counts[: masks * rows].view(masks, rows)
        order = found.order[: 2 * masks * rows].view(masks, rows, 2)
        lists = found.lists[: masks * rows * columns].view(masks, rows, columns)
        assert torch.equal(counts, seen.sum(-1).int()) and not found.drawn[0]
        for m in range(masks):
            ranked = order[m, :, 0].long()
            assert torch.equal(ranked.sort().values, torch.arange(rows)) and (counts[m, ranked].diff() <= 0).all()
            for row, noted in order[m].tolist():
                want = seen[m, row].nonzero().flatten().tolist()
                assert lists[m, row, : len(want)].tolist() == want
                assert noted == (want or [0x7FFF])[-1] * 65536 + max(len(want), 1)
        assert (found.of_batch, found.of_head) == (2 * rows, rows)
print("listed")
"""
CASES = {case.name: case for case in OP.contract.cases}


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def test_all_blocks_are_attention_itself() -> None:
    q, k, v = drawn(2, 4, 200, 24), drawn(2, 2, 200, 24), drawn(2, 2, 200, 24)
    every = torch.ones(1, 1, 2, 2, dtype=torch.bool)
    got, lse = kw.block_sparse_attention(q, k, v, every, is_causal=True, enable_gqa=True, with_lse=True, scale=0.3)
    want, of_want = kw.attention(q, k, v, causal="top_left", scale=0.3, with_lse=True)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(lse, of_want)


def test_what_is_not_named_is_not_read() -> None:
    """Its gradient is 0, and queries that see nothing give 0 and take none."""
    q, k, v = (drawn(1, 2, 300, 16).requires_grad_() for _ in range(3))
    blocks = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 0, 1]], dtype=torch.bool)[None, None]
    output, lse = kw.block_sparse_attention(q, k, v, blocks, with_lse=True)
    assert (output[:, :, 128:256] == 0).all() and (lse[:, :, 128:256] == -torch.inf).all()
    grads = torch.autograd.grad(output, (q, k, v), drawn(1, 2, 300, 16))
    assert all((g[:, :, 128:256] == 0).all() and (g[:, :, :128] != 0).any() for g in grads)


def test_pairs_are_counted_as_they_are_seen() -> None:
    blocks = torch.tensor([[1, 1, 0], [0, 1, 1]], dtype=torch.bool)[None, None]
    seen = expand_mask(blocks, 200, 300)
    assert seen.shape == (1, 1, 200, 300) and seen[0, 0, 127, 255] and not seen[0, 0, 128, 127]
    assert pairs_of(blocks, 2, 3, 200, 300, False) == 6 * (128 * 256 + 72 * (128 + 44))
    assert pairs_of(blocks, 1, 1, 200, 300, True) == 128 * 129 // 2 + 72 * 73 // 2


def test_lists_hold_what_is_seen() -> None:
    """Ascending, and ranked by length, of rows and of columns: what all kernels on a GPU go by."""
    done = forked.python(code=LISTS, TRITON_INTERPRET="1")
    assert done.stdout.strip() == "listed", done.stderr[-2000:]


@pytest.mark.parametrize(
    "name", [n for n in CASES if n.startswith(("masks 2x4 of 4 heads on 2", "holes", "window, causal", "scale"))]
)
def test_the_baselines_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention, and what runs under transforms: other formulas, the same numbers."""
    expected = compute_reference(OP, CASES[name], torch.float32)
    args = {**expected.args, "with_lse": False}
    monkeypatch.setattr(baselines, "_compiled", lambda function: function)
    flex = baselines.by_flex(args)
    assert flex is not None
    for found in (flex(args["query"], args["key"], args["value"]), OP.composite(**args), OP.native(*args.values())):
        assert torch.allclose(found.double(), expected.outputs[0], atol=2e-6), name


def test_the_baseline_is_given_whole_blocks() -> None:
    """Blocks that need no comparison are listed as such: a baseline that compared them all would be a weaker one."""
    blocks = torch.tensor([[1, 1, 0], [1, 1, 1], [0, 1, 1]], dtype=torch.bool)[None, None]
    mask = baselines.flex_mask(blocks, 384, 384, True)
    assert mask.kv_num_blocks.tolist() == [[[1, 1, 1]]] and mask.full_kv_num_blocks.tolist() == [[[0, 1, 1]]]
    assert mask.full_kv_indices[0, 0, 2, 0] == 1
    mask = baselines.flex_mask(blocks, 384, 384, False)
    assert mask.kv_num_blocks.tolist() == [[[0, 0, 0]]] and mask.full_kv_num_blocks.tolist() == [[[2, 3, 2]]]


def test_the_pages_example_runs() -> None:
    example = re.search(r"^```python\n(.*?)^```", (OP.op_package / "README.md").read_text("utf-8"), re.M | re.S)
    assert example is not None
    found: dict[str, Any] = {}
    exec(example.group(1), found)
    q, k, v, at = (found[name] for name in ("query", "key", "value", "document"))
    causal = torch.ones(len(at), len(at), dtype=torch.bool).tril()
    want = kw.attention(q, k, v, mask=(causal & (at[:, None] == at))[None, None])
    torch.testing.assert_close(found["of_documents"], want)
    near = found["window"].repeat_interleave(128, 0).repeat_interleave(128, 1)
    torch.testing.assert_close(found["of_window"], kw.attention(q, k, v, mask=(causal & near)[None, None]))


def test_compiled_whole() -> None:
    def step(query: Tensor, key: Tensor, value: Tensor, blocks: Tensor) -> Any:
        output, lse = kw.block_sparse_attention(query * 1, key, value, blocks, is_causal=True, with_lse=True)
        return output.square().sum() + lse.detach()[:, :, :9].sum()

    args = [drawn(1, 2, 150, 8).requires_grad_() for _ in range(3)]
    blocks = torch.tensor([[1, 0], [1, 0]], dtype=torch.bool)[None, None]
    want = step(*args, blocks)
    got = torch.compile(step, backend="aot_eager", fullgraph=True)(*args, blocks)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, args), torch.autograd.grad(want, args), strict=True):
        torch.testing.assert_close(a, b)
