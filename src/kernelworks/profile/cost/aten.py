"""Which aten op has which formula.

An op that is not here counts as what it calls; if that is not here either, the op is reported as unmodelled.
In-place forms (``add_``) share the entry of the plain form.
"""

from __future__ import annotations

import torch

from kernelworks.profile.cost import formulas as f
from kernelworks.profile.cost import linalg as g
from kernelworks.profile.cost import products as p
from kernelworks.profile.cost import windows as w

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
    # arithmetic; what torch tags as pointwise and is not here counts one flop an element (``schema``)
    **_each(
        "add sub rsub mul div neg abs sign reciprocal sqrt rsqrt square relu floor ceil round trunc clamp clamp_min "
        "clamp_max minimum fmin fmax remainder fmod floor_divide threshold bitwise_and bitwise_or bitwise_xor "
        "bitwise_not __and__ __or__ __xor__ __lshift__ __rshift__ __iand__ __ior__ __ixor__ __ilshift__ __irshift__",
        f.elementwise(),
    ),
    **_each("hardtanh hardsigmoid hardswish leaky_relu relu6 threshold_backward", f.elementwise(2)),
    **_each(
        "eq ne lt le gt ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isneginf isposinf "
        "isclose signbit",
        f.elementwise(1, result=BOOL),
    ),
    **_each("addcmul addcdiv lerp sigmoid_backward tanh_backward", f.elementwise(3)),
    **_each("where masked_fill nan_to_num heaviside copysign tril triu flip roll", f.elementwise(0)),
    "maximum": f.maximum, "max": f.maximum, "min": f.maximum, "pow": f.power, "float_power": f.power,
    "_prelu_kernel": f.loop(2), "_prelu_kernel_backward": f.loop(3), "rrelu_with_noise": f.loop(2),
    # elementary functions
    **_each(
        "exp exp2 expm1 sinh cosh sin cos tan asin acos atan atan2 asinh acosh atanh erfinv digamma lgamma polygamma "
        "i0 sinc igamma igammac special_i0e special_i1 special_i1e special_ndtri special_log_ndtr special_erfcx "
        "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 "
        "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 special_airy_ai "
        "special_spherical_bessel_j0 special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_zeta",
        f.elementwise(0, "exp"),
    ),
    **_each("log log2 log10 log1p logit special_entr special_xlog1py", f.elementwise(0, "log")),
    "polar": f.loop(2, "exp", 2), "complex": f.loop(0),
    "tanh": f.elementwise(0, "tanh"), **_each("erf erfc", f.elementwise(0, "erf")),
    "sigmoid": f.elementwise(2, "exp"), "silu": f.elementwise(3, "exp"), "mish": f.elementwise(6, "exp"),
    "gelu": f.elementwise(4, "erf"), "elu": f.elementwise(2, "exp"), "softplus": f.elementwise(2, "exp", 2),
    "silu_backward": f.elementwise(7, "exp"), "gelu_backward": f.elementwise(8, "exp", 2),
    "mish_backward": f.elementwise(10, "exp"), "elu_backward": f.loop(3, "exp"), "celu": f.loop(2, "exp"),
    "softplus_backward": f.loop(3, "exp"), "logit_backward": f.loop(3), "hardswish_backward": f.loop(3),
    "hardsigmoid_backward": f.loop(2), "hardtanh_backward": f.loop(2),
    **_each("hardshrink_backward softshrink_backward leaky_relu_backward", f.loop()),
    "glu": f.loop(1.5, "exp", 0.5), "glu_backward": f.loop(3, "exp", 0.5),
    "log_sigmoid": f.elementwise(2, "exp", 2), "log_sigmoid_forward": f.scan(2),
    "log_sigmoid_backward": f.loop(4, "exp"),
    **_each("logaddexp logaddexp2", f.elementwise(3, "exp", 2)), "xlogy": f.elementwise(1, "log"),
    # reductions and scans
    **_each("sum nansum prod amax amin mean nanmean any all argmax argmin count_nonzero aminmax trace", f.reduction()),
    **_each("var std var_mean std_mean", f.reduction(3)), **_each("norm linalg_vector_norm", f.reduction(2)),
    "logsumexp": f.reduction(3, functions=1), "logcumsumexp": f.loop(3, "exp"), "_logcumsumexp": f.loop(3, "exp"),
    **_each("cumsum cumprod", f.elementwise(1)),
    **_each("cummax cummin _cummax_helper _cummin_helper", f.scan()),
    **_each("median nanmedian kthvalue topk hash_tensor", f.scan()),
    **_each("sort argsort msort mode unique_dim _unique2 _unique", f.scan(log=True)), "unique_consecutive": f.scan(),
    **_each("searchsorted bucketize isin", f.sorted_search), "equal": f.loop(1), "renorm": f.loop(3),
    **_each("bincount histc histogram", f.loop(2)), "segment_reduce": f.loop(1), "_segment_reduce_backward": f.loop(1),
    # softmax, norms
    **_each("softmax _softmax log_softmax _log_softmax", f.softmax),
    "_softmax_backward_data": f.loop(4), "_log_softmax_backward_data": f.loop(3, "exp"),
    **_each("layer_norm native_layer_norm group_norm native_group_norm", f.norm(8)),
    **_each(
        "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "_batch_norm_with_update _batch_norm_no_update _batch_norm_impl_index miopen_batch_norm instance_norm",
        f.norm(4),
    ),
    **_each("rms_norm _fused_rms_norm", f.norm(4)),
    **_each("native_layer_norm_backward native_group_norm_backward", f.norm_backward(14)),
    **_each("native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward", f.norm_backward(10)),
    "_fused_rms_norm_backward": f.norm_backward(11),
    "_weight_norm_interface": f.loop(3), "_weight_norm_interface_backward": f.loop(6),
    # products
    **_each("mm bmm _int_mm _scaled_mm _sparse_addmm", p.mm), "addr": p.outer,
    **_each("addmm baddbmm addbmm addmv _addmm_activation", p.addmm), **_each("matmul mv dot vdot", p.matmul),
    **_each("inner linear mkldnn_linear", p.linear), "_trilinear": p.bilinear,
    **_each("_cdist_forward cdist _pdist_forward", p.distances),
    **_each("_cdist_backward _pdist_backward", f.loop(4)),
    **_each(
        "convolution _convolution mkldnn_convolution convolution_overrideable cudnn_convolution "
        "cudnn_convolution_transpose",
        w.convolution,
    ),
    "convolution_backward": w.convolution_backward,
    **_each(
        "scaled_dot_product_attention _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention",
        p.attention,
    ),
    **_each(
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention_backward",
        p.attention_backward,
    ),
    **_each("_transformer_encoder_layer_fwd _native_multi_head_attention", p.encoder_layer),
    **_each("mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward", p.recurrent),
    **_each("_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl", f.loop(3, "exp", 1.25)),
    **_each("_thnn_fused_gru_cell _thnn_fused_gru_cell_backward", f.loop(3, "exp")),
    # factorisations, transforms
    "cholesky": g.factorization(1 / 3), "linalg_cholesky_ex": g.factorization(1 / 3),
    "cholesky_inverse": g.factorization(2 / 3),
    **_each("linalg_lu_factor_ex linalg_lu _linalg_det _linalg_slogdet", g.factorization(2 / 3)),
    **_each("linalg_ldl_factor_ex", g.factorization(1 / 3)), "linalg_inv_ex": g.factorization(2),
    "lu_unpack": f.data_movement,
    **_each("geqrf linalg_householder_product", g.factorization(-2 / 3, 2)), "linalg_qr": g.factorization(-4 / 3, 4),
    "_linalg_eigh": g.factorization(9), "linalg_eig": g.factorization(25), "_linalg_eigvals": g.factorization(10),
    "_linalg_svd": g.factorization(8, 4), "linalg_polar": g.factorization(10, 6),
    "linalg_matrix_exp": g.factorization(14), "linalg_lstsq": g.factorization(-2 / 3, 2),
    "ormqr": g.factorization(0, 4), "linalg_pinv": g.factorization(8, 4),
    "_linalg_solve_ex": g.linear_solve(2, 2 / 3), **_each("linalg_lu_solve linalg_ldl_solve", g.linear_solve(2)),
    "_cholesky_solve_helper": g.linear_solve(2), **_each("linalg_solve_triangular triangular_solve", g.linear_solve(1)),
    "linalg_cross": f.loop(3), **_each("_fft_c2c _fft_r2c _fft_c2r", g.fourier),
    # copies and look-ups
    **_each("copy _copy_from", f.copy), **_each("cat _cat concat stack", f.concatenation),
    **_each("arange linspace logspace", f.sequence),
    **_each(
        "repeat constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d "
        "replication_pad3d channel_shuffle native_channel_shuffle pixel_shuffle pixel_unshuffle im2col diag_embed "
        "select_scatter slice_scatter diagonal_scatter as_strided_scatter masked_scatter max_unpool2d max_unpool3d "
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d "
        "_upsample_nearest_exact3d block_diag select_backward slice_backward diagonal_backward "
        "repeat_interleave nonzero_static put kron embedding_renorm",
        f.data_movement,
    ),
    **_each(
        "unfold_backward col2im reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward "
        "replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward upsample_nearest1d_backward "
        "upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward "
        "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward embedding_sparse_backward "
        "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_per_sample_weights_backward "
        "value_selecting_reduction_backward "
        "masked_select_backward cumprod_backward renorm_backward",
        f.loop(1),
    ),
    **_each("gather index_select take_along_dim take masked_select nonzero", f.gather()), "index": f.indexing,
    "embedding": f.gather(), **_each("embedding_bag _embedding_bag _embedding_bag_forward_only", f.embedding_bag),
    **_each(
        "scatter scatter_add scatter_reduce index_add index_copy index_put _index_put_impl index_reduce",
        f.scatter,
    ),
    "index_fill": f.data_movement, "embedding_dense_backward": f.embedding_backward,
    **_each("nll_loss_forward nll_loss_nd nll_loss nll_loss2d nll_loss2d_forward", f.nll_loss),
    **_each("nll_loss_backward nll_loss2d_backward", f.loss_backward),
    # losses with a kernel of their own
    **_each("mse_loss mse_loss_backward", f.loop(3)),
    **_each("smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward", f.loop(4)),
    "binary_cross_entropy": f.loop(5, "log", 2), "binary_cross_entropy_backward": f.loop(5),
    **_each("soft_margin_loss soft_margin_loss_backward", f.loop(4, "exp")),
    **_each("multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward", f.loop(3)),
    "multilabel_margin_loss_backward": f.loop(3), **_each("ctc_loss _ctc_loss _ctc_loss_backward", f.ctc),
    # filled
    **_each("fill zero", f.fresh()),
    **_each("normal uniform bernoulli random exponential cauchy geometric log_normal", f.fresh(1)),
    **_each("multinomial poisson binomial _standard_gamma _sample_dirichlet", f.loop(1)),
    **_each("native_dropout native_dropout_backward", f.loop(2)),
    # windows
    **_each(
        "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d "
        "avg_pool3d",
        w.pool,
    ),
    **_each(
        "max_pool2d_with_indices_backward max_pool3d_with_indices_backward adaptive_max_pool2d_backward "
        "adaptive_max_pool3d_backward fractional_max_pool2d_backward fractional_max_pool3d_backward",
        w.pool_backward,
    ),
    **_each(
        "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward",
        w.average_pool_backward,
    ),
    **_each(
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d "
        "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        w.adaptive_pool,
    ),
    **_each("fractional_max_pool2d fractional_max_pool3d", f.loop(1)),
    **_each("upsample_linear1d upsample_linear1d_backward", w.interpolation(2)),
    **_each(
        "upsample_bilinear2d upsample_bilinear2d_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward",
        w.interpolation(4),
    ),
    **_each("upsample_trilinear3d upsample_trilinear3d_backward", w.interpolation(8)),
    **_each(
        "upsample_bicubic2d upsample_bicubic2d_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward "
        "_upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward",
        w.interpolation(16),
    ),
    **_each("grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward grid_sampler_3d_backward", w.grid_sample),
    # lists of tensors
    **_each("_foreach_addcmul _foreach_addcdiv _foreach_lerp", f.lists(3)), "_foreach_zero": f.foreach_zero,
    "_foreach_copy": f.foreach_copy, "_foreach_norm": f.lists(2, 1), "_fused_adamw": f.adamw, "_fused_adam": f.adamw,
    "_fused_sgd": f.lists(4), "_fused_adagrad": f.lists(6),
    **dict.fromkeys(VIEWS, f.nothing),
}  # fmt: skip


def formula(name: str) -> f.Formula | None:
    """The formula for an aten op by its full name (``aten::add_``), or None."""
    plain = name.removeprefix("aten::")
    if plain in FORMULAS:
        return FORMULAS[plain]
    if plain.endswith("_") and not plain.endswith("__"):
        plain = plain[:-1]
        if plain in FORMULAS:
            return FORMULAS[plain]
    return f.lists() if plain.startswith("_foreach_") else None
