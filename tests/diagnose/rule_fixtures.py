"""For every rule a hotspot that has its problem and one that nearly has it."""

from __future__ import annotations

import dataclasses

from kernelworks.diagnose.account.account import ALLOCATION, CAUSE_UNKNOWN, MEMORY, USEFUL
from kernelworks.diagnose.rules import View
from kernelworks.diagnose.rules.patterns import CACHE as CACHE_PATTERN
from kernelworks.diagnose.rules.patterns import FOLDABLE, GATE, NORM, ROTARY

__all__ = ["FIXTURES"]

BASE = View(
    op="add", module="Model.layers.*", source="model.py:10", shapes=((64, 1024), (64, 1024)),
    dtypes=("float32", "float32"), calls=100, seconds=0.010, wall=0.100, bottleneck=CAUSE_UNKNOWN, bound=0.002,
    parts={USEFUL: 0.002, MEMORY: 0.008}, threads=2,
)  # fmt: skip


def _view(**changes: object) -> View:
    return dataclasses.replace(BASE, **changes)  # type: ignore[arg-type]


HALF = ("float16", "float16")
IMAGE = ((8, 64, 56, 56), (64, 64, 3, 3))
QUERY, CACHE = (1, 16, 1, 128), (1, 8, 513, 128)

# rule -> (hit, miss)
FIXTURES: dict[str, tuple[View, View]] = {
    "half_without_hardware": (
        _view(op="linear", dtypes=HALF, unit="float16", bound=0.0001),
        _view(op="linear", dtypes=("bfloat16", "bfloat16"), unit="bfloat16", bound=0.0001),
    ),
    "decode_attention": (
        _view(op="scaled_dot_product_attention", shapes=(QUERY, CACHE, CACHE), kernel="kw.attention: avx512"),
        _view(op="scaled_dot_product_attention", shapes=((1, 16, 512, 128), CACHE, CACHE)),
    ),
    "gemv": (
        _view(op="linear", shapes=((1, 1, 1024), (3072, 1024)), kernel="kw.linear: avx512"),
        _view(op="linear", shapes=((32, 128, 1024), (3072, 1024)), kernel="kw.linear: avx512"),
    ),
    "growing_cat": (
        _view(op="cat", shapes=(CACHE, (1, 8, 1, 128)), shares={CACHE_PATTERN: 1.0}),
        _view(op="cat", shapes=(CACHE, CACHE), shares={CACHE_PATTERN: 1.0}),
    ),
    "decomposed_norm": (_view(op="mul", shares={NORM: 1.0}), _view(op="mul", shares={GATE: 1.0})),
    "decomposed_rope": (_view(op="neg", shares={ROTARY: 1.0}), _view(op="neg")),
    "decomposed_gate": (_view(op="silu", shares={GATE: 0.5}, bound=0.009), _view(op="silu", shares={NORM: 0.5})),
    "sync_in_loop": (_view(op="item"), _view(op="item", calls=2)),
    "fresh_pages": (
        _view(op="relu", parts={USEFUL: 0.002, ALLOCATION: 0.006}),
        _view(op="relu", parts={USEFUL: 0.008, ALLOCATION: 0.001}),
    ),
    "slow_kernel": (_view(op="softmax", kernel="kw.softmax: avx512"), _view(op="softmax")),
    "upcast": (
        _view(op="to", dtypes=("bfloat16",), result="float32"),
        _view(op="to", dtypes=("bfloat16",), result="float64"),
    ),
    "strided_copies": (
        _view(op="contiguous", strides=((1, 64), (1024, 1))),
        _view(op="clone", strides=((1024, 1), (1024, 1))),
    ),
    "released_memory": (_view(op="free memory", parts={ALLOCATION: 0.010}), _view(op="python")),
    "python_between_ops": (
        _view(op="python", bottleneck="host"),
        _view(op="python", bottleneck="host", seconds=0.0001),
    ),
    "stored_logits": (
        _view(op="_log_softmax (backward)", shapes=((16384, 128256),), device="cuda"),
        _view(op="_log_softmax", shapes=((16384, 1000),), device="cuda"),
    ),
    "unfused_optimizer": (
        _view(op="_foreach_addcdiv_", siblings=frozenset({"_foreach_addcdiv_", "_foreach_mul_"}), device="cuda"),
        _view(op="_fused_adamw_", device="cuda"),
    ),
    "unfolded_batch_norm": (_view(op="batch_norm", shares={FOLDABLE: 1.0}), _view(op="batch_norm")),
    "channels_first": (
        _view(op="conv2d", shapes=IMAGE, strides=((200704, 3136, 56, 1), (576, 9, 3, 1)), bottleneck="compute"),
        _view(op="conv2d", shapes=IMAGE, strides=((200704, 1, 3584, 64), (576, 9, 3, 1)), bottleneck="compute"),
    ),
    "host_waits": (
        _view(op="synchronisation", device="cuda"),
        _view(op="synchronisation", calls=1, device="cuda"),
    ),
    "launch_bound": (
        _view(op="launch latency", device="cuda"),
        _view(op="launch latency", seconds=0.0001, device="cuda"),
    ),
    "device_allocation": (_view(op="cudaMalloc", device="cuda"), _view(op="synchronisation", device="cuda")),
    "float32_products": (
        _view(op="mm", bottleneck="compute", device="cuda"),
        _view(op="mm", bottleneck="compute", unit="bfloat16", device="cuda"),
    ),
    "tiny_kernels": (_view(bottleneck="launch", device="cuda"), _view(bottleneck="launch", calls=3, device="cuda")),
    "tiny_ops": (_view(bottleneck="dispatch"), _view(bottleneck="dispatch", calls=3)),
}
