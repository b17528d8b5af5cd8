"""paged_attention and cache_append beyond their contracts: a cache filled step by step, and as compilers have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from op_kernels import runnable_kernels
from torch import Tensor

import kernelworks as kw
from kernelworks.dispatch.op import OPS
from kernelworks.verify.parity import judge
from kernelworks.verify.reference import compute_reference

OP = OPS["paged_attention"]
KERNELS = [name for op, name in runnable_kernels() if op is OP and op.kernel(name).source is not None]
CASES = {case.name: case for case in OP.contract.cases}
PAGE, HEADS, GROUPED, DIM = 4, 2, 4, 24


def drawn(*shape: int, seed: int = 7) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Sequences:
    """Two sequences of one cache, whose blocks are handed out as they are needed; as an inference engine keeps them."""

    def __init__(self) -> None:
        self.caches = [torch.full((11, PAGE, HEADS, DIM), torch.nan) for _ in range(2)]
        self.free, self.lengths = [3, 8, 0, 10, 6, 1, 7, 9, 2, 5], [0, 0]
        self.table = torch.full((2, 5), -1)
        self.past: list[list[tuple[Tensor, Tensor, Tensor]]] = [[], []]

    def step(self, counts: tuple[int, int], seed: int, kernel: str) -> tuple[Tensor, Tensor]:
        """The next tokens of both: what the kernel makes of them, and what attention makes of all of each."""
        queries = [drawn(n, GROUPED, DIM, seed=seed + i) for i, n in enumerate(counts)]
        rows = [[drawn(n, HEADS, DIM, seed=seed + 2 + i + 2 * j) for i, n in enumerate(counts)] for j in range(2)]
        slots, wanted = [], []
        for i, n in enumerate(counts):
            for j in range(self.lengths[i], self.lengths[i] + n):
                if j % PAGE == 0:
                    self.table[i, j // PAGE] = self.free.pop()
                slots.append(int(self.table[i, j // PAGE]) * PAGE + j % PAGE)
            self.lengths[i] += n
            self.past[i].append((queries[i], rows[0][i], rows[1][i]))
            whole = [torch.cat(part).transpose(0, 1)[None] for part in zip(*self.past[i], strict=True)]
            seen = kw.attention(*whole, causal="top_left", kernel="reference")
            wanted.append(seen[0].transpose(0, 1)[len(whole[0][0, 0]) - n :])
        kw.cache_append(torch.cat(rows[0]), torch.cat(rows[1]), *self.caches, torch.tensor(slots), kernel=kernel)
        ends = torch.tensor([0, *counts]).cumsum(0)
        lengths = torch.tensor(self.lengths)
        got = kw.paged_attention(torch.cat(queries), *self.caches, ends, lengths, self.table, kernel=kernel)
        return got, torch.cat(wanted)


@pytest.mark.parametrize("kernel", [*KERNELS, "torch", "reference"])
def test_a_cache_is_filled_and_read_step_by_step(kernel: str) -> None:
    """A prompt, parts of one, single tokens and none: the same as attention of each whole sequence."""
    sequences = Sequences()
    for seed, counts in enumerate([(5, 1), (1, 1), (1, 6), (0, 1), (3, 4), (1, 1), (1, 0), (6, 5)]):
        got, want = sequences.step(counts, 10 * seed, kernel)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["lengths 0 and 1", "window 5", "pages of 3, prefill", "4 heads on 2, decode", "a wide table", "scale"]
)
def test_what_runs_under_transforms_computes_the_same(name: str) -> None:
    expected = compute_reference(OP, CASES[name], torch.float32)
    for found in (OP.composite(**expected.args), OP.native(*expected.positional(OP))):
        assert torch.allclose(found.double(), expected.outputs[0], atol=2e-6), name


def test_nothing_that_is_trained_is_taken() -> None:
    case = CASES["scale"].make(torch.Generator().manual_seed(0), torch.float32)
    for name in ("query", "key_cache"):
        trained = case | {name: case[name].clone().requires_grad_()}
        with pytest.raises(ValueError, match=f"{name} must not require grad"):
            kw.paged_attention(**trained)
        with torch.no_grad():
            torch.testing.assert_close(kw.paged_attention(**trained), kw.paged_attention(**case))
    rows, caches = drawn(2, 2, 3), [drawn(3, 2, 2, 3), drawn(3, 2, 2, 3)]
    with pytest.raises(ValueError, match="key must not require grad"):
        kw.cache_append(rows.clone().requires_grad_(), rows, *caches, torch.tensor([0, 1]))


def test_compiled_whole() -> None:
    def step(query: Tensor, rows: Tensor, caches: list[Tensor], slots: Tensor, *pages: Tensor) -> Any:
        kw.cache_append(rows, rows + 1, *caches, slots)
        return kw.paged_attention(query * 1, *caches, *pages).square()

    found = []
    for function in (step, torch.compile(step, backend="aot_eager", fullgraph=True)):
        caches = [torch.zeros(4, 2, 1, 8) for _ in range(2)]
        pages = (torch.tensor([0, 1, 3]), torch.tensor([1, 2]), torch.tensor([[2, 0], [3, 1]]))
        made = function(drawn(3, 2, 8), drawn(3, 1, 8), caches, torch.tensor([4, 6, 7]), *pages)
        found.append((made, *caches))
    torch.testing.assert_close(found[0], found[1])
    assert found[0][1].any()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["lengths few queries, many keys", "window 65, decode", "pages of 3, prefill"])
def test_threads_share_sequences(name: str, kernel: str) -> None:
    """Whichever thread takes a share of keys, and however few there are for each."""
    expected = compute_reference(OP, CASES[name], torch.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 7):
            torch.set_num_threads(threads)
            assert not judge(OP(*expected.positional(OP), kernel=kernel), expected)[1]
    finally:
        torch.set_num_threads(before)
