"""What cache_append promises: every token's key and value in its slot, and no other slot touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from kernelworks.contract import Case, Contract, Cost, Request
from kernelworks.contract.arguments import Arguments, Error, check_of, errors_of
from kernelworks.contract.cases import draw, normal
from kernelworks.contract.limits import IndicesOf
from kernelworks.contract.tensor_argument import T
from kernelworks.ops.attention.paged_attention.contract import INDICES, refuse_gradients

__all__ = ["ARGUMENTS", "CONTRACT", "check_values", "composite", "in_slots", "reference"]

ARGUMENTS: Arguments = {
    "key": T("Tk Hkv D"),
    "value": T("Tk Hkv Dv", like="key"),
    "key_cache": T("N P Hkv D", like="key", where=("P >= 1",)),
    "value_cache": T("N P Hkv Dv", like="key"),
    "slot_mapping": T("Tk", dtypes=INDICES),
}
_check = check_of(ARGUMENTS)


def check(**call: Any) -> None:
    _check(**call)
    refuse_gradients(call)


def check_values(key_cache: Tensor, slot_mapping: Tensor) -> None:
    """Raises IndexError unless every slot is one of the cache, or -1. Waits for a GPU: for kernels on the CPU."""
    slots = key_cache.shape[0] * key_cache.shape[1]
    wrong = ((slot_mapping < -1) | (slot_mapping >= slots)).nonzero()
    if len(wrong):
        place = int(wrong[0])
        raise IndexError(
            f"slot_mapping must be in [0, {slots}), the cache's slots, or -1; got {int(slot_mapping[place])} at {place}"
        )


def in_slots(rows: Tensor, cache: Tensor, slot_mapping: Tensor) -> Tensor:
    """The cache with each row in its slot, as a tensor of its own, without a look at any value: what is nowhere to be
    written goes to a slot more, which is dropped."""
    slots = cache.shape[0] * cache.shape[1]
    flat = torch.cat((cache.flatten(0, 1), cache.new_zeros(1, *cache.shape[2:])))
    place = torch.where(slot_mapping < 0, slots, slot_mapping).long()
    return flat.index_put((place,), rows)[:-1].view(cache.shape)


def reference(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> tuple[Tensor, ...]:
    return in_slots(key, key_cache, slot_mapping), in_slots(value, value_cache, slot_mapping)


def composite(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """Whole caches are read and written: what a transform can look into."""
    key_cache.copy_(in_slots(key, key_cache, slot_mapping))
    value_cache.copy_(in_slots(value, value_cache, slot_mapping))


def bound(args: dict[str, Any], outputs: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    return tuple(torch.zeros_like(output) for output in outputs)  # the values are copied


def cost(request: Request) -> Cost:
    """If every token has a slot."""
    key, value, slots = (request.args[name] for name in ("key", "value", "slot_mapping"))
    rows = float(key.nbytes + value.nbytes)
    return Cost(0.0, 0.0, rows + slots.nbytes, rows)


def dims(request: Request) -> dict[str, int]:
    key, cache = request.args["key"], request.args["key_cache"]
    return {"T": key.shape[0], "Hkv": key.shape[1], "D": key.shape[2], "P": cache.shape[1]}


def _make(
    generator: Generator, dtype: torch.dtype, tokens: int, *, heads: int = 2, dim: int = 5, value_dim: int = 0,
    page: int = 4, blocks: int = 5, kind: str = "normal", ints: torch.dtype = torch.int32, skipped: int = -1,
    in_order: bool = False, blank: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Slots in a drawn order, or one behind the other from the middle of a page; ``skipped`` tokens have none, a
    quarter of them unless it is said. A third
    of the caches was never written to if some of it is ``blank``: NaN."""
    value_dim, slots = value_dim or dim, blocks * page
    skipped = tokens // 4 if skipped < 0 else skipped
    order = torch.randperm(slots, generator=generator)
    chosen = torch.arange(page // 2, page // 2 + tokens) if in_order else order[:tokens]
    chosen = chosen.to(ints)
    chosen[torch.randperm(tokens, generator=generator)[:skipped]] = -1
    caches = {
        name: normal(generator, dtype, blocks, page, heads, size)
        for name, size in (("key_cache", dim), ("value_cache", value_dim))
    }
    for cache in caches.values():
        cache.flatten(0, 1)[order[: slots // 3 * blank]] = torch.nan
    return {
        "key": draw(kind, generator, dtype, tokens, heads, dim),
        "value": draw(kind, generator, dtype, tokens, heads, value_dim), **caches, "slot_mapping": chosen,
    }  # fmt: skip


def _case(name: str, tokens: int, *, layouts: bool = False, **made: Any) -> Case:
    return Case(name, lambda g, d: _make(g, d, tokens, **made), layouts=layouts)


def _cases() -> Iterator[Case]:
    yield _case("no blanks", 9, blank=False, skipped=2)
    for tokens in (0, 1, 2, 3, 4, 5, 7, 8, 9):  # about the borders of pages
        yield _case(f"tokens {tokens}", tokens, layouts=tokens == 5)
        if tokens:
            yield _case(f"tokens {tokens} in order", tokens, in_order=True)
    for page, blocks in ((1, 20), (3, 9), (16, 3), (64, 2), (20, 1)):
        for tokens in sorted({16, page - 1, page, page + 1} & set(range(1, page * blocks - page // 2 + 1))):
            made = {"page": page, "blocks": blocks, "in_order": page == 16}
            yield _case(f"pages of {page}, tokens {tokens}", tokens, layouts=page == 3, **made)
    for dim in (1, 3, 8, 15, 17, 33, 64, 127, 256):
        yield _case(f"D={dim}", 5, dim=dim, heads=3)
    for heads in (1, 5, 32):
        yield _case(f"{heads} heads", 9, heads=heads, dim=24)
    yield _case("values of another size", 9, dim=24, value_dim=17, layouts=True)
    for skipped in (0, 1, 5, 9):
        yield _case(f"{skipped} of 9 skipped", 9, skipped=skipped)
    yield _case("slots of 64 bits", 9, ints=torch.int64, skipped=3)
    yield _case("every slot", 20)
    for kind in ("tiny", "huge", "subnormal", "zeros", "inf", "negative_inf", "nan"):
        yield _case(kind, 9, kind=kind)
    yield _case("large", 300, heads=8, dim=128, page=16, blocks=40)


def _with(**changed: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        rows, caches = torch.ones(3, 2, 8), torch.ones(4, 2, 2, 8)
        made = {"key": rows, "value": rows.clone(), "key_cache": caches, "value_cache": caches.clone()}
        return made | {"slot_mapping": torch.tensor([7, -1, 0])} | changed

    return make


SLOT = "slot_mapping must be in [0, 8), the cache's slots, or -1"
ERRORS: tuple[Error, ...] = (
    *errors_of(ARGUMENTS),
    ("a slot beyond the cache", _with(slot_mapping=torch.tensor([7, 8, 0])), IndexError, f"{SLOT}; got 8 at 1"),
    ("a slot below -1", _with(slot_mapping=torch.tensor([7, 1, -2])), IndexError, f"{SLOT}; got -2 at 2"),
    (
        "a slot below -1, of 32 bits",
        _with(slot_mapping=torch.tensor([-5, 1, 0], dtype=torch.int32)),
        IndexError,
        f"{SLOT}; got -5 at 0",
    ),
)

CONTRACT = Contract(
    name="cache_append",
    family="attention",
    formula="key_cache[s / P, s % P] <- key[t] and value_cache[s / P, s % P] <- value[t] with s = slot_mapping[t], of "
    "every token t whose slot is not -1",
    source="Kwon et al., Efficient Memory Management for Large Language Model Serving with PagedAttention, 2023 "
    "(arXiv:2309.06180)",
    outputs=("key_cache", "value_cache"),
    differentiable=(),
    mutates=("key_cache", "value_cache"),
    check=check,
    reference=reference,
    bound=bound,
    cost=cost,
    dims=dims,
    cases=tuple(_cases()),
    bench_cases=tuple(
        Case(
            f"{tokens} tokens of Hkv8 D128",
            lambda g, d, n=tokens: _make(g, d, n, heads=8, dim=128, page=16, blocks=-(-n // 16) + 64,
                                     in_order=n > 64, blank=False, skipped=0),
            dtypes=(torch.bfloat16,),
        )
        for tokens in (16, 2048)
    ),
    device_cases=(_case("4099 tokens", 4099, heads=8, dim=128, page=16, blocks=300, skipped=30),),
    errors=ERRORS,
    limits={"slot_mapping": IndicesOf("key_cache", 0)},
)  # fmt: skip
