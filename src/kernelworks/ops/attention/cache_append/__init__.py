"""New keys and values into the pages of a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from kernelworks.build.kernels import cpp_kernels, python_kernel, triton_kernel
from kernelworks.build.sharing import choose_threads
from kernelworks.contract.arguments import schema_of
from kernelworks.contract.tensors import MEMORY, tensor_kind
from kernelworks.dispatch.op import Op, Pass
from kernelworks.dispatch.signature import Array
from kernelworks.ops.attention.cache_append.contract import ARGUMENTS, CONTRACT, check_values, composite, reference
from kernelworks.ops.attention.cache_append.mutants import MUTANTS

__all__ = ["OP", "cache_append"]

PACKAGE = Path(__file__).parent


def cache_append(
    key: Array, value: Array, key_cache: Array, value_cache: Array, slot_mapping: Array, *, kernel: str | None = None
) -> None:
    """Writes the keys and values of new tokens into the pages of a cache.

    ``key_cache[s // P, s % P] = key[t]`` and ``value_cache[s // P, s % P] = value[t]`` with ``s = slot_mapping[t]``. A
    token whose slot is -1 (a padded one) is skipped. vLLM's ``reshape_and_cache_flash``; token j of a sequence with the
    blocks ``b`` lies in slot ``b[j // P] * P + j % P``, where ``paged_attention`` finds it.

    Args:
        key: [T, Hkv, D], float32, bfloat16 or float16, any strides.
        value: [T, Hkv, Dv] of key's dtype, any strides.
        key_cache: [N, P, Hkv, D] of key's dtype, any strides; written to.
        value_cache: [N, P, Hkv, Dv] of key's dtype, any strides; written to.
        slot_mapping: [T], int32 or int64, each in [0, N P) or -1. Of two tokens with one slot either may stay.
        kernel: the name of one implementation; by default the dispatcher chooses.

    Returns None: the caches are overwritten. There is no gradient: what requires grad is refused while gradients are
    recorded.

    Error bound: none, the values are copied; slots that no token has keep every bit.
    Cost: no arithmetic; reads key, value and slot_mapping once and writes as much.
    Raises: IndexError for a slot that is neither one of the cache nor -1, before anything is written; on a GPU, where
    nothing waits for the answer, its token is skipped. TypeError, ValueError naming the argument; RuntimeError where
    ``kernel`` cannot run.
    Source: Kwon et al. 2023, arXiv:2309.06180.
    """
    OP.call(key, value, key_cache, value_cache, slot_mapping, None, kernel)


def _forward(
    lib: Any, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, out: Any = None
) -> None:
    kernel, threads = choose_threads(lib.append, key.numel() + value.numel())
    if not kernel(key, value, key_cache, value_cache, slot_mapping, threads):
        check_values(key_cache, slot_mapping)  # raises


def native(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor) -> None:
    """What a user of torch writes, and the look at slots that torch's indexing does not take: it counts negative ones
    from the end, and finds one past the end when others are written."""
    if key_cache.device.type == "cpu" and tensor_kind(slot_mapping) == MEMORY:
        check_values(key_cache, slot_mapping)
    there = slot_mapping >= 0
    slots, page = slot_mapping[there].long(), key_cache.shape[1]
    place = (slots // page, slots % page)
    key_cache.index_put_(place, key[there])
    value_cache.index_put_(place, value[there])


def _torch(*args: Any, out: Any = None) -> None:
    native(*args)


def _reference(*args: Any, out: Any = None) -> None:
    if args[0].device.type == "cpu":
        check_values(args[2], args[4])
    for cache, made in zip(args[2:4], reference(*args), strict=True):  # copied values need no other dtype
        cache.copy_(made)


def _schema() -> str:
    schema = schema_of(ARGUMENTS)
    for letter, name in (("a", "key_cache"), ("b", "value_cache")):
        schema = schema.replace(f"Tensor {name}", f"Tensor({letter}!) {name}")
    return f"cache_append({schema}, str? op_kernel=None) -> ()"


OP = Op(
    CONTRACT,
    [
        triton_kernel(PACKAGE, passes=("forward",), in_place=True),
        *cpp_kernels(PACKAGE, forward=_forward),
        python_kernel("torch", _torch),
        python_kernel("reference", _reference),
    ],
    op_package=__file__,
    forward=Pass(_schema(), lambda *args: None),
    composite=composite,
    native=native,
    mutants=MUTANTS,
)
