"""The kernel map: each family is a folder of op packages, one for each op.

An op is called ``kernelworks.NAME``, and lies in the op package ``FAMILY/NAME`` (without the underscore that says that
it writes to its arguments), or is an entry of a table, an op package that holds many (``TABLES``, ``SIBLINGS``). torch
knows all ops at once, by the schemas in ``generated.py`` (``define_all``); an op package is loaded when something of it
is asked for. The names are known without torch.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelworks.dispatch.registry import OP_PACKAGES, OPERATORS, FunctionPackage, load_op_package
from kernelworks.ops import generated
from kernelworks.ops.generated import TABLES

if TYPE_CHECKING:
    from kernelworks.dispatch.op import Op
    from kernelworks.ops.generated import *  # noqa: F403

__all__ = ["FAMILIES", "NAMES", "SIBLINGS", "define_all", "op_named", "ops_named", "take_tables", "unknown_op"]

FAMILIES: dict[str, tuple[str, ...]] = {
    "activation": (
        "gelu",
        "gelu_mul",
        "relu",
        "silu_mul",
    ),
    "attention": (
        "attention",
        "attention_fp8",
        "block_sparse_attention",
        "cache_append",
        "paged_attention",
        "varlen_attn",
    ),
    "communication": (
        "all_gather",
        "all_reduce",
        "reduce_scatter",
    ),
    "convolution": (
        "causal_conv1d",
        "causal_conv1d_update",
        "conv2d",
    ),
    "linalg": (
        "cholesky_solve",
        "csr_matmul",
        "eigh",
        "solve",
    ),
    "linear": (
        "linear",
        "linear_add",
        "linear_gelu",
        "linear_silu_mul",
        "rms_norm_linear",
    ),
    "lookup": (
        "embedding",
        "embedding_bag",
    ),
    "norm": (
        "add_layer_norm",
        "batch_norm",
        "group_norm",
        "instance_norm",
        "layer_norm",
        "rms_norm",
    ),
    "optimizer": (
        "adamw8bit_",
        "adamw_",
        "clip_grads_",
        "sgd_",
    ),
    "pooling": (
        "avg_pool2d",
    ),
    "position": (
        "rope",
    ),
    "quantization": (
        "dequantize",
        "quantize",
        "quantized_linear",
        "rowwise_dequantize",
        "rowwise_linear",
        "rowwise_quantize",
    ),
    "recurrent": (
        "gru",
        "lstm",
    ),
    "reduction": (
        "argmax",
        "argmin",
        "cosine_similarity",
        "cross_entropy",
        "linear_cross_entropy",
        "log_softmax",
        "nll_loss",
        "prod",
        "softmax",
        "sum",
        "triplet_margin_loss",
    ),
    "routing": (
        "combine",
        "grouped_linear",
        "router_topk",
    ),
    "scan": (
        "cumprod",
        "cumsum",
        "gated_delta_rule",
        "linear_attention",
        "logcumsumexp",
        "ssd",
    ),
    "selection": (
        "sort",
        "topk",
    ),
    "similarity": (
        "kernel_matmul",
        "kernel_matrix",
        "matern32_matmul",
    ),
    "spectral": (
        "hadamard_transform",
        "irfft",
        "rfft",
    ),
}  # fmt: skip

# Op packages that hold several ops of one template, and the names of these.
SIBLINGS: dict[str, tuple[str, ...]] = {
    "convolution.conv": ("conv1d", "conv3d"),
    "convolution.conv_transpose": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    "lookup.along_index": ("gather", "index_add", "index_select", "scatter_add"),
    "pooling.adaptive_avg_pool": ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d"),
    "pooling.adaptive_max_pool": ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d"),
    "pooling.avg_pool": ("avg_pool1d", "avg_pool3d"),
    "pooling.max_pool": ("max_pool1d", "max_pool2d", "max_pool3d"),
    "spectral.complex_fft": ("fft", "ifft"),
    "similarity.matern_table": ("matern12_matmul", "matern52_matmul"),
    "similarity.metric_matrix": ("laplacian_kernel", "linear_kernel", "polynomial_kernel"),
    "similarity.metric_table": ("laplacian_matmul", "polynomial_matmul"),
}

NAMES: tuple[str, ...] = ()


def take_tables(tables: Mapping[str, tuple[str, ...]]) -> None:
    """Puts the entries of tables (``family.op_package`` -> names) into their families, and says where each op lies."""
    global NAMES
    homes = {name: table for table, entries in tables.items() for name in entries}
    for table, entries in tables.items():
        family = table.split(".")[0]
        FAMILIES[family] = tuple(sorted({*FAMILIES[family], *entries}))
    NAMES = tuple(name for names in FAMILIES.values() for name in names)
    OP_PACKAGES.clear()
    for family, names in FAMILIES.items():
        for name in names:
            OP_PACKAGES[name] = f"{__name__}.{homes.get(name) or f'{family}.{name}'.rstrip('_')}"


take_tables(TABLES)
OPERATORS.update(generated.OPERATORS)


def define_all() -> None:
    """Has torch know every op by its schemas. Called once torch is imported."""
    from kernelworks.dispatch import torch_library
    from kernelworks.ops.generated import SCHEMAS

    for name, schemas in SCHEMAS.items():
        torch_library.define(name, schemas)


def unknown_op(name: str) -> str:
    """What is said of a name that no op has."""
    import difflib

    near = difflib.get_close_matches(name, NAMES, 3)
    guess = f"did you mean {' or '.join(near)}?" if near else f"`kernelworks map` lists the {len(NAMES)} that there are"
    return f"no op is named {name!r}; {guess}"


def op_named(name: str) -> "Op":
    """The op of this name. Raises ValueError that names what is near."""
    from kernelworks.dispatch.torch_library import OPS

    if name not in OPS:
        raise ValueError(unknown_op(name))
    return OPS[name]


def ops_named(name: str | None) -> "list[Op]":
    """The op of this name, or all of them in the order of the families."""
    return [op_named(each) for each in (NAMES if name is None else (name,))]


if not TYPE_CHECKING:  # to a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])
        from kernelworks.dispatch import torch_library

        function = getattr(load_op_package(OP_PACKAGES[name]), name)
        load_op_package("kernelworks.dispatch.signature").publish_function(function, torch_library.OPS[name])
        globals()[name] = function
        return function


class _Families(FunctionPackage):
    """The map, with an op where Python would put the family of its name."""

    hidden = frozenset(FAMILIES.keys() & set(NAMES))


sys.modules[__name__].__class__ = _Families
