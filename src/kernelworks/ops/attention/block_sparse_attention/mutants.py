"""Known-wrong versions of block_sparse_attention. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.ops.attention.block_sparse_attention.contract import CONTRACT, TEMPLATE
from kernelworks.templates.attention.mutants import Mutations

__all__ = ["MUTANTS"]

WRONG = Mutations(TEMPLATE, CONTRACT)


def _blocks(change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    """The right computation with other blocks."""
    return WRONG.before(lambda a: {"block_mask": change(a["block_mask"])})


def _transposed(blocks: Tensor) -> Tensor:
    """Queries for keys, where there are as many blocks of both."""
    return blocks.mT if blocks.shape[2] == blocks.shape[3] else blocks


def _without_last(blocks: Tensor) -> Tensor:
    """Each row's list ends one block early."""
    later = blocks.flip(-1).cumsum(-1).flip(-1)
    return blocks & (later > 1)


def _without_first(blocks: Tensor) -> Tensor:
    """Each row's list is read from its second block on."""
    return blocks & (blocks.cumsum(-1) > 1)


def _whole_blocks(a: dict[str, Any]) -> dict[str, Any]:
    """Keys of a last block that is short are left out."""
    short = a["key"].shape[2] % 128
    if not short:
        return {}
    blocks = a["block_mask"].clone()
    blocks[..., -1] = False
    return {"block_mask": blocks}


def _with_diagonal(a: dict[str, Any]) -> dict[str, Any]:
    """The block on the diagonal, which causal cuts, is seen whether the mask says so or not."""
    rows, columns = a["block_mask"].shape[2:]
    diagonal = torch.eye(rows, columns, dtype=torch.bool)
    return {"block_mask": a["block_mask"] | diagonal} if a["is_causal"] else {}


MUTANTS = (
    Mutant("blocks ignored", _blocks(torch.ones_like), "every block is seen"),
    Mutant("blocks turned", _blocks(torch.logical_not), "True hides"),
    Mutant("blocks transposed", _blocks(_transposed), "keys' blocks for queries'"),
    Mutant("next row's blocks", _blocks(lambda b: b.roll(-1, 2)), "a row of blocks reads the list of the next one"),
    Mutant("list read late", _blocks(_without_first), "a row's first block is passed over"),
    Mutant("list ends early", _blocks(_without_last), "a row's last block is left out"),
    Mutant("next block", _blocks(lambda b: b.roll(1, 3)), "the block behind the one that is seen"),
    Mutant("first head's blocks", _blocks(lambda b: b[:, :1]), "all heads take the first one's mask"),
    Mutant("first batch's blocks", _blocks(lambda b: b[:1]), "the whole batch takes the first one's mask"),
    Mutant("short block left out", WRONG.before(_whole_blocks), "keys behind the last whole block"),
    Mutant("diagonal always", WRONG.before(_with_diagonal), "causal's block on the diagonal is not looked up"),
    Mutant("causal ignored", WRONG.before(lambda a: {"is_causal": False}), "keys ahead are seen"),
    *WRONG.of_dense(
        "causal sees one more", "causal sees one less", "scale ignored", "missing scale", "wrong key-value head",
        "short tile", "sum not rescaled", "output not rescaled", "bfloat16 weights", "NaN for no keys", "stale tail",
        "zeros", "lse in base 2",
    ),
)  # fmt: skip
