"""Hotspots that look as if they had a rule's problem and have not, and some that have it and look otherwise."""

from __future__ import annotations

import dataclasses

import pytest
from rule_fixtures import BASE, FIXTURES

from kernelworks.diagnose.rules import RULES, View
from kernelworks.diagnose.rules.patterns import ADAM, CACHE, GATE, NORM, ROTARY

MATRIX, VECTOR = (4096, 4096), (4096,)
PAGES = {"at peak": 0.001, "allocation (page faults)": 0.009}
IMAGES, KERNEL = (8, 64, 56, 56), (64, 64, 3, 3)
FIRST, LAST = (200704, 3136, 56, 1), (200704, 1, 3584, 64)
Look = dict[str, object]

# rule -> what else has the problem
ALSO: dict[str, list[Look]] = {
    "gemv": [
        {"op": "matmul", "shapes": (MATRIX, VECTOR)}, {"op": "mv", "shapes": (MATRIX, VECTOR)},
        {"op": "matmul", "shapes": ((1, 4096), MATRIX)}, {"op": "mm", "shapes": (MATRIX, (4096, 2))},
        {"op": "addmv", "shapes": (VECTOR, MATRIX, VECTOR)}, {"op": "addmm", "shapes": (VECTOR, (4, 4096), MATRIX)},
    ],
    "decode_attention": [
        {"op": "scaled_dot_product_attention", "shapes": ((1, 1, 1, 128), (1, 1, 513, 128)), "threads": 8},
    ],
    "unfused_optimizer": [{"op": "lerp_", "shares": {ADAM: 1.0}, "device": "cpu"}],
    "decomposed_norm": [{"op": "mean", "shares": {NORM: 0.5}}],
    "strided_copies": [{"op": "reshape", "shapes": ((8, 4, 16),), "strides": ((64, 1, 4),)}],
    "upcast": [{"op": "to", "dtypes": ("float32",), "result": "bfloat16"}],
    "channels_first": [
        {"op": "conv2d", "shapes": (IMAGES, (64, 1, 3, 3)), "strides": (FIRST, (9, 9, 3, 1)), "bottleneck": "memory L3"}
    ],
}  # fmt: skip

# rule -> what looks like it
NOT: dict[str, list[Look]] = {
    "gemv": [
        {"op": "matmul", "shapes": (MATRIX, MATRIX)}, {"op": "matmul", "shapes": (VECTOR, VECTOR)},
        {"op": "linear", "shapes": ((1, 64), (64, 64))}, {"op": "addmm", "shapes": (MATRIX, MATRIX, MATRIX)},
        {"op": "mv", "shapes": (MATRIX, VECTOR), "bound": 0.009},
    ],
    "decode_attention": [
        {"op": "scaled_dot_product_attention", "shapes": ((64, 16, 1, 128), (64, 16, 513, 128))},
        {"op": "scaled_dot_product_attention", "shapes": ((1, 1, 1, 128), (1, 1, 32, 128)), "threads": 8},
    ],
    "stored_logits": [
        {"op": "to", "shapes": ((4096, 32000),), "source": "loss_utils.py:3", "device": "cuda"},
        {"op": "log_softmax", "shapes": ((4096, 1000),), "device": "cuda"},
    ],
    "decomposed_norm": [{"op": "mul", "siblings": frozenset({"pow", "mean", "add", "rsqrt", "mul", "to"})}],
    "decomposed_rope": [{"op": "neg", "siblings": frozenset({"neg", "cat", "mul", "add"})}, {"shares": {GATE: 1.0}}],
    "decomposed_gate": [{"op": "silu"}, {"op": "mul", "module": "layers.*.mlp"}, {"op": "silu", "shares": {NORM: 1.0}}],
    "growing_cat": [
        {"op": "cat", "shapes": ((2, 512, 7, 7), (2, 32, 7, 7))}, {"op": "cat", "shares": {ROTARY: 1.0}},
        {"op": "cat", "shapes": ((2, 8, 64), (2, 8, 32)), "shares": {CACHE: 1.0}},
    ],
    "float32_products": [
        {
            "op": "linear", "bottleneck": "compute", "dtypes": ("float32", "float32"), "unit": "bfloat16",
            "device": "cuda",
        },
        {"op": "linear", "bottleneck": "memory HBM", "device": "cuda"},
    ],
    "half_without_hardware": [
        {"op": "linear", "dtypes": ("float16", "float16"), "unit": "bfloat16", "bound": 1e-5},
        {"op": "embedding", "dtypes": ("float16", "int64"), "unit": "float16", "bound": 1e-5},
    ],
    "upcast": [
        {"op": "to", "dtypes": ("float32",), "result": "int64"}, {"op": "to", "dtypes": ("float32",), "result": "bool"},
        {"op": "to", "dtypes": ("float32",), "result": "float32"}, {"op": "to", "dtypes": ("bfloat16",), "result": ""},
        {"op": "to", "dtypes": ("float16",), "result": "bfloat16"},
    ],
    "strided_copies": [
        {"op": "clone", "strides": ((1024, 1), (1024, 1))}, {"op": "copy_", "strides": ((1, 64), (1024, 1))},
        {"op": "reshape", "strides": ((0, 1), (1024, 1))},
    ],
    "unfused_optimizer": [
        {"op": "lerp_", "device": "cpu"}, {"op": "_foreach_mul_", "device": "cpu"}, {"op": "_fused_adamw_"},
    ],
    "unfolded_batch_norm": [{"op": "batch_norm", "shares": {NORM: 1.0}}],
    "channels_first": [
        {"op": "conv2d", "shapes": (IMAGES, KERNEL), "strides": (LAST, LAST)},
        {"op": "conv2d", "shapes": (IMAGES, KERNEL), "strides": (FIRST, FIRST), "bound": 0.009},
        {"op": "conv2d", "shapes": (IMAGES, KERNEL), "strides": (FIRST, FIRST), "bottleneck": "dispatch"},
        {"op": "conv2d", "shapes": ((8, 1, 56, 56), KERNEL), "strides": ((3136, 3136, 56, 1), FIRST)},
        {"op": "conv1d", "shapes": ((8, 64, 56), (64, 64, 3)), "strides": ((3584, 56, 1), (192, 3, 1))},
        {"op": "relu", "shapes": (IMAGES,), "strides": (FIRST,)},
    ],
    "sync_in_loop": [{"op": "item", "calls": 1}, {"op": "max", "calls": 100}],
    "tiny_ops": [{"bottleneck": "memory DRAM"}], "released_memory": [{"op": "python"}],
}  # fmt: skip


def _view(look: Look) -> View:
    return dataclasses.replace(BASE, **look)  # type: ignore[arg-type]


def _cases(table: dict[str, list[Look]]) -> list[tuple[str, Look]]:
    return [(name, look) for name, looks in table.items() for look in looks]


@pytest.mark.parametrize(("name", "look"), _cases(ALSO), ids=lambda value: value if isinstance(value, str) else "")
def test_hit(name: str, look: Look) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    advice = rule.applies(_view(look))
    assert advice is not None and 0 <= advice.low <= advice.high <= BASE.seconds


@pytest.mark.parametrize(("name", "look"), _cases(NOT), ids=lambda value: value if isinstance(value, str) else "")
def test_miss(name: str, look: Look) -> None:
    rule = next(rule for rule in RULES if rule.name == name)
    assert rule.applies(_view(look)) is None


def test_pages_of_a_small_output_are_not_called_fresh_outputs() -> None:
    """A convolution with an output of 32 KB faults in memory that it works in: weights packed anew at each call."""
    rule = next(rule for rule in RULES if rule.name == "fresh_pages")
    small = rule.applies(_view({"op": "conv2d", "parts": PAGES, "written": 100 * 32e3}))
    large = rule.applies(_view({"op": "conv2d", "parts": PAGES, "written": 100 * 32e6}))
    assert small is not None and large is not None
    assert "outputs" in large.problem and "outputs" not in small.problem and "out=" not in small.action
    assert small.low == 0.0


def test_no_rule_takes_anothers_hit_as_found() -> None:
    """A hotspot that is part of one pattern has no other rule's pattern."""
    for pattern, name in ((NORM, "decomposed_norm"), (ROTARY, "decomposed_rope"), (GATE, "decomposed_gate")):
        view = dataclasses.replace(BASE, op="mul", shares={pattern: 1.0})
        hits = [rule.name for rule in RULES if rule.applies(view) is not None and rule.name.startswith("decomposed")]
        assert hits == [name]


def test_every_fixture_is_of_a_rule() -> None:
    names = {rule.name for rule in RULES}
    assert names == set(FIXTURES) and (set(ALSO) | set(NOT)) <= names
