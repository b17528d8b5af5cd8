"""Known-wrong versions of the ops along an index. The verification must reject every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernelworks.contract import Mutant
from kernelworks.templates.along_index import AlongIndex
from kernelworks.templates.mutants import generic

__all__ = ["mutants_of"]


def mutants_of(entry: AlongIndex) -> tuple[Mutant, ...]:
    names = tuple(entry.arguments)

    def changed(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            given = dict(zip(names, args, strict=True))
            wide = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
            return entry.reference(**wide | change(wide))[0].to(args[0].dtype)

        return run

    def turned(given: dict[str, Any]) -> dict[str, Any]:
        index = given["index"]
        return {"index": index.flip(given["dim"] if index.dim() > 1 else 0) if index.dim() else index}

    def next_one(given: dict[str, Any]) -> dict[str, Any]:
        size = given["x"].shape[given["dim"]] if given["x"].dim() else 1
        return {"index": (given["index"] + 1) % max(1, size)}

    def last_again(given: dict[str, Any]) -> dict[str, Any]:
        """The last index is taken for the one before."""
        index = given["index"].clone()
        if index.numel() > 1:
            index.view(-1)[-1] = index.view(-1)[-2]
        return {"index": index}

    tensors = ("x",)
    own = [
        Mutant("index turned", changed(turned), "indices are read from the other end"),
        Mutant("next one", changed(next_one), "each index is one too large"),
        Mutant("last index again", changed(last_again), "the last index is not read"),
    ]
    if entry.adds:
        own += [
            Mutant("overwritten", _overwritten(entry), "of equal indices one alone counts"),
            Mutant("without x", changed(lambda given: {"x": torch.zeros_like(given["x"])}), "sums begin at 0"),
            Mutant("bfloat16 sums", _narrow_sums(entry), "sums are kept in bfloat16"),
        ]
    if "alpha" in entry.arguments:
        own.append(Mutant("no alpha", changed(lambda given: {"alpha": 1.0}), "alpha does not scale"))
    return (*generic(entry.reference, tensors, names, entry.contract.results_in_order), *own)


def _overwritten(entry: AlongIndex) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        given = dict(zip(entry.arguments, args, strict=True))
        x, dim, index = given["x"].double(), given["dim"], given["index"].long()
        source = given[entry.source].double() * given.get("alpha", 1.0)
        if entry.rows:
            made = x.clone()
            made.index_copy_(dim, index, x.index_select(dim, index) + source)
        else:
            made = x.scatter(dim, index, x.gather(dim, index) + source)
        return made.to(args[0].dtype)

    return run


def _narrow_sums(entry: AlongIndex) -> Callable[..., Any]:
    """Two halves of the indices, each sum rounded to bfloat16."""

    def run(*args: Any) -> Any:
        given = dict(zip(entry.arguments, args, strict=True))
        made = entry.reference(
            **{n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
            | {"x": torch.zeros_like(args[0]).double()}
        )[0]
        return (made.bfloat16().double() + args[0].double()).to(args[0].dtype)  # fmt: skip

    return run
