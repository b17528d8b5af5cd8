"""Which aten op has which formula.

An op that is not here counts as what it calls; where that is not here either, the op is reported as unmodelled.
In-place forms (``add_``) share the entry of the plain form.
"""

from __future__ import annotations

import torch

from kernelworks.diagnose import formulas as f
from kernelworks.diagnose.formulas_cuda import CUDA_FORMULAS

__all__ = ["FORMULAS", "VIEWS", "formula"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _each(names: str, formula: f.Formula) -> dict[str, f.Formula]:
    return dict.fromkeys(names.split(), formula)


# They move no data: a new way to look at the same bytes, an allocation, or a read of one number.
VIEWS = _words(
    """view _unsafe_view transpose t permute expand expand_as slice select as_strided unsqueeze squeeze detach alias
    unbind split split_with_sizes chunk narrow movedim swapaxes swapdims lift_fresh lift resolve_conj resolve_neg set
    view_as numpy_T mT unfold diagonal flatten unflatten positive real imag conj view_as_real view_as_complex empty
    empty_like empty_strided new_empty new_empty_strided resize resize_as item _local_scalar_dense is_nonzero size
    stride sym_size requires_grad is_floating_point _has_compatible_shallow_copy_type result_type can_cast record_stream
    _nnpack_available _use_cudnn_ctc_loss output_nr _version retain_grad broadcast_to broadcast_tensors unsafe_split
    hsplit vsplit dsplit tensor_split squeeze_copy swapdims _reshape_alias _assert_async is_pinned is_same_size
    _fused_sdp_choice _shape_as_tensor"""
)

BOOL = torch.bool
FORMULAS: dict[str, f.Formula] = {
    # arithmetic
    **_each(
        "add sub rsub mul div neg abs sign reciprocal sqrt rsqrt square relu floor ceil round trunc",
        f.elementwise(),
    ),
    **_each(
        "clamp clamp_min clamp_max minimum fmin fmax remainder fmod floor_divide threshold",
        f.elementwise(),
    ),
    **_each(
        "bitwise_and bitwise_or bitwise_xor bitwise_not __and__ __or__ __xor__ __lshift__ __rshift__",
        f.elementwise(),
    ),
    **_each("hardtanh hardsigmoid hardswish leaky_relu relu6 threshold_backward", f.elementwise(2)),
    **_each(
        "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf",
        f.elementwise(1, result=BOOL),
    ),
    **_each("isfinite isneginf isposinf isclose signbit", f.elementwise(1, result=BOOL)),
    **_each("addcmul addcdiv lerp sigmoid_backward tanh_backward", f.elementwise(3)),
    **_each(
        "where masked_fill nan_to_num heaviside copysign tril triu flip roll",
        f.elementwise(0),
    ),
    "maximum": f.maximum, "max": f.maximum, "min": f.maximum, "pow": f.power, "float_power": f.power,
    # elementary functions
    **_each("exp exp2 expm1 sinh cosh", f.elementwise(0, "exp")),
    **_each("sin cos tan asin acos atan atan2 erfinv digamma lgamma", f.elementwise(0, "exp")),
    **_each("log log2 log10 log1p logit", f.elementwise(0, "log")),
    "tanh": f.elementwise(0, "tanh"), "erf": f.elementwise(0, "erf"), "erfc": f.elementwise(0, "erf"),
    "sigmoid": f.elementwise(2, "exp"), "silu": f.elementwise(3, "exp"), "mish": f.elementwise(3, "exp", 3),
    "gelu": f.elementwise(4, "erf"), "elu": f.elementwise(2, "exp"), "softplus": f.elementwise(2, "exp", 2),
    "silu_backward": f.elementwise(7, "exp"), "gelu_backward": f.elementwise(8, "exp", 2),
    "log_sigmoid": f.elementwise(2, "exp", 2),
    "logaddexp": f.elementwise(3, "exp", 2), "xlogy": f.elementwise(1, "log"),
    # reductions
    **_each("sum nansum prod amax amin", f.reduction()),
    **_each("mean nanmean", f.reduction()),
    **_each("any all", f.reduction(result=BOOL)),
    **_each("argmax argmin", f.reduction(result=torch.int64)),
    "count_nonzero": f.reduction(result=torch.int64), "var": f.reduction(3), "std": f.reduction(3),
    "var_mean": f.reduction(3),
    "std_mean": f.reduction(3), "norm": f.reduction(2), "linalg_vector_norm": f.reduction(2),
    "logsumexp": f.reduction(3, functions=1), "cumsum": f.elementwise(1), "cumprod": f.elementwise(1),
    "sort": f.sorting,
    "argsort": f.sorting, "topk": f.top,
    # softmax, norms
    **_each("softmax _softmax log_softmax _log_softmax", f.softmax),
    "_softmax_backward_data": f.elementwise(4), "_log_softmax_backward_data": f.elementwise(3, "exp"),
    **_each("layer_norm native_layer_norm group_norm native_group_norm", f.norm(8)),
    **_each("batch_norm native_batch_norm _native_batch_norm_legit cudnn_batch_norm", f.norm(4)),
    **_each("rms_norm _fused_rms_norm", f.norm(4)),
    "native_layer_norm_backward": f.norm(14), "native_batch_norm_backward": f.norm(10),
    "native_group_norm_backward": f.norm(14),
    "_fused_rms_norm_backward": f.norm(11),
    # products
    "mm": f.mm, "bmm": f.mm, "addmm": f.addmm, "baddbmm": f.addmm, "addmv": f.addmm, "matmul": f.matmul,
    "mv": f.matmul, "dot": f.matmul,
    "vdot": f.matmul, "inner": f.linear, "linear": f.linear, "mkldnn_linear": f.linear, "_addmm_activation": f.addmm,
    **_each("convolution _convolution mkldnn_convolution convolution_overrideable", f.convolution),
    "convolution_backward": f.convolution_backward,
    **_each("scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu", f.attention),
    "_scaled_dot_product_flash_attention_for_cpu_backward": f.attention_backward,
    # copies and look-ups
    "copy": f.copy, "_copy_from": f.copy, "cat": f.joined, "_cat": f.joined, "concat": f.joined, "stack": f.joined,
    "repeat": f.repeated,
    "constant_pad_nd": f.padded, "arange": f.counted, "embedding": f.gathered(0, 1, rows=True),
    "gather": f.gathered(0, 2, rows=False),
    "index_select": f.gathered(0, 2, rows=True), "take_along_dim": f.gathered(0, 1, rows=False), "index": f.indexed,
    **_each(
        "scatter scatter_add scatter_reduce index_add index_copy index_put _index_put_impl",
        f.scattered,
    ),
    "embedding_dense_backward": f.embedding_backward, "nll_loss_forward": f.gathered(0, 1, rows=False),
    "nll_loss_nd": f.gathered(0, 1, rows=False), "nll_loss": f.gathered(0, 1, rows=False),
    "nll_loss_backward": f.loss_backward,
    # losses with a kernel of their own
    **_each("mse_loss mse_loss_backward", f.loop(3)),
    **_each("smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward", f.loop(4)),
    "binary_cross_entropy": f.loop(5, "log", 2), "binary_cross_entropy_backward": f.loop(5),
    **_each("multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward", f.loop(3)),
    "multilabel_margin_loss_backward": f.loop(3),
    **_each("fill zero", f.fresh()),
    **_each("normal uniform bernoulli random exponential", f.fresh(1)),
    "native_dropout": f.elementwise(2), "native_dropout_backward": f.elementwise(2),
    # pools, optimisers
    **_each(
        "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices avg_pool1d avg_pool2d avg_pool3d",
        f.pool,
    ),
    "max_pool2d_with_indices_backward": f.pool_backward,
    **_each("adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d", f.adaptive_pool),

    **_each(
        "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_neg _foreach_sqrt _foreach_abs _foreach_maximum "
        "_foreach_minimum _foreach_reciprocal _foreach_lerp _foreach_clamp_min _foreach_clamp_max",
        f.lists(),
    ),
    **_each("_foreach_addcmul _foreach_addcdiv", f.lists(3)),
    "_foreach_zero": f.zeroed,
    "_foreach_copy": f.lists(0), "_foreach_norm": f.lists(2, 0), "_fused_adamw": f.adamw, "_fused_adam": f.adamw,
    "_fused_sgd": f.lists(4),
    **CUDA_FORMULAS,
    **dict.fromkeys(VIEWS, f.nothing),
}  # fmt: skip


def formula(name: str) -> f.Formula | None:
    """The formula for an aten op by its full name (``aten::add_``), or None."""
    plain = name.removeprefix("aten::")
    if plain in FORMULAS:
        return FORMULAS[plain]
    if plain.endswith("_") and not plain.endswith("__"):
        return FORMULAS.get(plain[:-1])
    return None
