"""Ops as type checkers see them, and their schemas for torch. Written by `make docs`: changes are lost."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelworks.ops.activation.gelu import gelu as gelu
    from kernelworks.ops.activation.gelu_mul import gelu_mul as gelu_mul
    from kernelworks.ops.activation.relu import relu as relu
    from kernelworks.ops.activation.silu_mul import silu_mul as silu_mul
    from kernelworks.ops.activation.table import celu as celu
    from kernelworks.ops.activation.table import elu as elu
    from kernelworks.ops.activation.table import hardshrink as hardshrink
    from kernelworks.ops.activation.table import hardsigmoid as hardsigmoid
    from kernelworks.ops.activation.table import hardswish as hardswish
    from kernelworks.ops.activation.table import hardtanh as hardtanh
    from kernelworks.ops.activation.table import leaky_relu as leaky_relu
    from kernelworks.ops.activation.table import logsigmoid as logsigmoid
    from kernelworks.ops.activation.table import mish as mish
    from kernelworks.ops.activation.table import quick_gelu as quick_gelu
    from kernelworks.ops.activation.table import relu6 as relu6
    from kernelworks.ops.activation.table import selu as selu
    from kernelworks.ops.activation.table import sigmoid as sigmoid
    from kernelworks.ops.activation.table import silu as silu
    from kernelworks.ops.activation.table import softplus as softplus
    from kernelworks.ops.activation.table import softshrink as softshrink
    from kernelworks.ops.activation.table import softsign as softsign
    from kernelworks.ops.activation.table import tanh as tanh
    from kernelworks.ops.activation.table import tanhshrink as tanhshrink
    from kernelworks.ops.activation.table import threshold as threshold
    from kernelworks.ops.attention.attention import attention as attention
    from kernelworks.ops.attention.attention_fp8 import attention_fp8 as attention_fp8
    from kernelworks.ops.attention.block_sparse_attention import block_sparse_attention as block_sparse_attention
    from kernelworks.ops.attention.cache_append import cache_append as cache_append
    from kernelworks.ops.attention.paged_attention import paged_attention as paged_attention
    from kernelworks.ops.attention.varlen_attn import varlen_attn as varlen_attn
    from kernelworks.ops.communication.all_gather import all_gather as all_gather
    from kernelworks.ops.communication.all_reduce import all_reduce as all_reduce
    from kernelworks.ops.communication.reduce_scatter import reduce_scatter as reduce_scatter
    from kernelworks.ops.convolution.causal_conv1d import causal_conv1d as causal_conv1d
    from kernelworks.ops.convolution.causal_conv1d_update import causal_conv1d_update as causal_conv1d_update
    from kernelworks.ops.convolution.conv import conv1d as conv1d
    from kernelworks.ops.convolution.conv import conv3d as conv3d
    from kernelworks.ops.convolution.conv2d import conv2d as conv2d
    from kernelworks.ops.convolution.conv_transpose import conv_transpose1d as conv_transpose1d
    from kernelworks.ops.convolution.conv_transpose import conv_transpose2d as conv_transpose2d
    from kernelworks.ops.convolution.conv_transpose import conv_transpose3d as conv_transpose3d
    from kernelworks.ops.linalg.cholesky_solve import cholesky_solve as cholesky_solve
    from kernelworks.ops.linalg.csr_matmul import csr_matmul as csr_matmul
    from kernelworks.ops.linalg.eigh import eigh as eigh
    from kernelworks.ops.linalg.solve import solve as solve
    from kernelworks.ops.linear.linear import linear as linear
    from kernelworks.ops.linear.linear_add import linear_add as linear_add
    from kernelworks.ops.linear.linear_gelu import linear_gelu as linear_gelu
    from kernelworks.ops.linear.linear_silu_mul import linear_silu_mul as linear_silu_mul
    from kernelworks.ops.linear.rms_norm_linear import rms_norm_linear as rms_norm_linear
    from kernelworks.ops.lookup.along_index import gather as gather
    from kernelworks.ops.lookup.along_index import index_add as index_add
    from kernelworks.ops.lookup.along_index import index_select as index_select
    from kernelworks.ops.lookup.along_index import scatter_add as scatter_add
    from kernelworks.ops.lookup.embedding import embedding as embedding
    from kernelworks.ops.lookup.embedding_bag import embedding_bag as embedding_bag
    from kernelworks.ops.norm.add_layer_norm import add_layer_norm as add_layer_norm
    from kernelworks.ops.norm.batch_norm import batch_norm as batch_norm
    from kernelworks.ops.norm.group_norm import group_norm as group_norm
    from kernelworks.ops.norm.instance_norm import instance_norm as instance_norm
    from kernelworks.ops.norm.layer_norm import layer_norm as layer_norm
    from kernelworks.ops.norm.rms_norm import rms_norm as rms_norm
    from kernelworks.ops.optimizer.adamw import adamw_ as adamw_
    from kernelworks.ops.optimizer.adamw8bit import adamw8bit_ as adamw8bit_
    from kernelworks.ops.optimizer.clip_grads import clip_grads_ as clip_grads_
    from kernelworks.ops.optimizer.optimizer_table import adadelta_ as adadelta_
    from kernelworks.ops.optimizer.optimizer_table import adagrad_ as adagrad_
    from kernelworks.ops.optimizer.optimizer_table import adam_ as adam_
    from kernelworks.ops.optimizer.optimizer_table import lion_ as lion_
    from kernelworks.ops.optimizer.optimizer_table import muon_momentum_ as muon_momentum_
    from kernelworks.ops.optimizer.optimizer_table import rmsprop_ as rmsprop_
    from kernelworks.ops.optimizer.sgd import sgd_ as sgd_
    from kernelworks.ops.pooling.adaptive_avg_pool import adaptive_avg_pool1d as adaptive_avg_pool1d
    from kernelworks.ops.pooling.adaptive_avg_pool import adaptive_avg_pool2d as adaptive_avg_pool2d
    from kernelworks.ops.pooling.adaptive_avg_pool import adaptive_avg_pool3d as adaptive_avg_pool3d
    from kernelworks.ops.pooling.adaptive_max_pool import adaptive_max_pool1d as adaptive_max_pool1d
    from kernelworks.ops.pooling.adaptive_max_pool import adaptive_max_pool2d as adaptive_max_pool2d
    from kernelworks.ops.pooling.adaptive_max_pool import adaptive_max_pool3d as adaptive_max_pool3d
    from kernelworks.ops.pooling.avg_pool import avg_pool1d as avg_pool1d
    from kernelworks.ops.pooling.avg_pool import avg_pool3d as avg_pool3d
    from kernelworks.ops.pooling.avg_pool2d import avg_pool2d as avg_pool2d
    from kernelworks.ops.pooling.max_pool import max_pool1d as max_pool1d
    from kernelworks.ops.pooling.max_pool import max_pool2d as max_pool2d
    from kernelworks.ops.pooling.max_pool import max_pool3d as max_pool3d
    from kernelworks.ops.position.rope import rope as rope
    from kernelworks.ops.quantization.dequantize import dequantize as dequantize
    from kernelworks.ops.quantization.quantize import quantize as quantize
    from kernelworks.ops.quantization.quantized_linear import quantized_linear as quantized_linear
    from kernelworks.ops.quantization.rowwise_dequantize import rowwise_dequantize as rowwise_dequantize
    from kernelworks.ops.quantization.rowwise_linear import rowwise_linear as rowwise_linear
    from kernelworks.ops.quantization.rowwise_quantize import rowwise_quantize as rowwise_quantize
    from kernelworks.ops.recurrent.gru import gru as gru
    from kernelworks.ops.recurrent.lstm import lstm as lstm
    from kernelworks.ops.reduction.argmax import argmax as argmax
    from kernelworks.ops.reduction.argmin import argmin as argmin
    from kernelworks.ops.reduction.cosine_similarity import cosine_similarity as cosine_similarity
    from kernelworks.ops.reduction.cross_entropy import cross_entropy as cross_entropy
    from kernelworks.ops.reduction.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from kernelworks.ops.reduction.log_softmax import log_softmax as log_softmax
    from kernelworks.ops.reduction.loss_table import binary_cross_entropy_with_logits as binary_cross_entropy_with_logits
    from kernelworks.ops.reduction.loss_table import hinge_embedding_loss as hinge_embedding_loss
    from kernelworks.ops.reduction.loss_table import huber_loss as huber_loss
    from kernelworks.ops.reduction.loss_table import kl_div as kl_div
    from kernelworks.ops.reduction.loss_table import l1_loss as l1_loss
    from kernelworks.ops.reduction.loss_table import mse_loss as mse_loss
    from kernelworks.ops.reduction.loss_table import smooth_l1_loss as smooth_l1_loss
    from kernelworks.ops.reduction.nll_loss import nll_loss as nll_loss
    from kernelworks.ops.reduction.prod import prod as prod
    from kernelworks.ops.reduction.reduction_table import amax as amax
    from kernelworks.ops.reduction.reduction_table import amin as amin
    from kernelworks.ops.reduction.reduction_table import logsumexp as logsumexp
    from kernelworks.ops.reduction.reduction_table import mean as mean
    from kernelworks.ops.reduction.reduction_table import norm as norm
    from kernelworks.ops.reduction.reduction_table import std as std
    from kernelworks.ops.reduction.reduction_table import var as var
    from kernelworks.ops.reduction.softmax import softmax as softmax
    from kernelworks.ops.reduction.sum import sum as sum
    from kernelworks.ops.reduction.triplet_margin_loss import triplet_margin_loss as triplet_margin_loss
    from kernelworks.ops.routing.combine import combine as combine
    from kernelworks.ops.routing.grouped_linear import grouped_linear as grouped_linear
    from kernelworks.ops.routing.router_topk import router_topk as router_topk
    from kernelworks.ops.scan.cumprod import cumprod as cumprod
    from kernelworks.ops.scan.cumsum import cumsum as cumsum
    from kernelworks.ops.scan.gated_delta_rule import gated_delta_rule as gated_delta_rule
    from kernelworks.ops.scan.linear_attention import linear_attention as linear_attention
    from kernelworks.ops.scan.logcumsumexp import logcumsumexp as logcumsumexp
    from kernelworks.ops.scan.ssd import ssd as ssd
    from kernelworks.ops.selection.sort import sort as sort
    from kernelworks.ops.selection.topk import topk as topk
    from kernelworks.ops.similarity.kernel_matmul import kernel_matmul as kernel_matmul
    from kernelworks.ops.similarity.kernel_matrix import kernel_matrix as kernel_matrix
    from kernelworks.ops.similarity.matern32_matmul import matern32_matmul as matern32_matmul
    from kernelworks.ops.similarity.matern_table import matern12_matmul as matern12_matmul
    from kernelworks.ops.similarity.matern_table import matern52_matmul as matern52_matmul
    from kernelworks.ops.similarity.metric_matrix import laplacian_kernel as laplacian_kernel
    from kernelworks.ops.similarity.metric_matrix import linear_kernel as linear_kernel
    from kernelworks.ops.similarity.metric_matrix import polynomial_kernel as polynomial_kernel
    from kernelworks.ops.similarity.metric_table import laplacian_matmul as laplacian_matmul
    from kernelworks.ops.similarity.metric_table import polynomial_matmul as polynomial_matmul
    from kernelworks.ops.spectral.complex_fft import fft as fft
    from kernelworks.ops.spectral.complex_fft import ifft as ifft
    from kernelworks.ops.spectral.hadamard_transform import hadamard_transform as hadamard_transform
    from kernelworks.ops.spectral.irfft import irfft as irfft
    from kernelworks.ops.spectral.rfft import rfft as rfft

    __all__ = [
        "adadelta_",
        "adagrad_",
        "adam_",
        "adamw8bit_",
        "adamw_",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_avg_pool3d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
        "add_layer_norm",
        "all_gather",
        "all_reduce",
        "amax",
        "amin",
        "argmax",
        "argmin",
        "attention",
        "attention_fp8",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "batch_norm",
        "binary_cross_entropy_with_logits",
        "block_sparse_attention",
        "cache_append",
        "causal_conv1d",
        "causal_conv1d_update",
        "celu",
        "cholesky_solve",
        "clip_grads_",
        "combine",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "cosine_similarity",
        "cross_entropy",
        "csr_matmul",
        "cumprod",
        "cumsum",
        "dequantize",
        "eigh",
        "elu",
        "embedding",
        "embedding_bag",
        "fft",
        "gated_delta_rule",
        "gather",
        "gelu",
        "gelu_mul",
        "group_norm",
        "grouped_linear",
        "gru",
        "hadamard_transform",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "hinge_embedding_loss",
        "huber_loss",
        "ifft",
        "index_add",
        "index_select",
        "instance_norm",
        "irfft",
        "kernel_matmul",
        "kernel_matrix",
        "kl_div",
        "l1_loss",
        "laplacian_kernel",
        "laplacian_matmul",
        "layer_norm",
        "leaky_relu",
        "linear",
        "linear_add",
        "linear_attention",
        "linear_cross_entropy",
        "linear_gelu",
        "linear_kernel",
        "linear_silu_mul",
        "lion_",
        "log_softmax",
        "logcumsumexp",
        "logsigmoid",
        "logsumexp",
        "lstm",
        "matern12_matmul",
        "matern32_matmul",
        "matern52_matmul",
        "max_pool1d",
        "max_pool2d",
        "max_pool3d",
        "mean",
        "mish",
        "mse_loss",
        "muon_momentum_",
        "nll_loss",
        "norm",
        "paged_attention",
        "polynomial_kernel",
        "polynomial_matmul",
        "prod",
        "quantize",
        "quantized_linear",
        "quick_gelu",
        "reduce_scatter",
        "relu",
        "relu6",
        "rfft",
        "rms_norm",
        "rms_norm_linear",
        "rmsprop_",
        "rope",
        "router_topk",
        "rowwise_dequantize",
        "rowwise_linear",
        "rowwise_quantize",
        "scatter_add",
        "selu",
        "sgd_",
        "sigmoid",
        "silu",
        "silu_mul",
        "smooth_l1_loss",
        "softmax",
        "softplus",
        "softshrink",
        "softsign",
        "solve",
        "sort",
        "ssd",
        "std",
        "sum",
        "tanh",
        "tanhshrink",
        "threshold",
        "topk",
        "triplet_margin_loss",
        "var",
        "varlen_attn",
    ]

# Op packages that hold many ops, and the names of these.
TABLES: dict[str, tuple[str, ...]] = {
    "activation.table": ("celu", "elu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish", "quick_gelu", "relu6", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",),
    "optimizer.optimizer_table": ("adadelta_", "adagrad_", "adam_", "lion_", "muon_momentum_", "rmsprop_",),
    "reduction.reduction_table": ("amax", "amin", "logsumexp", "mean", "norm", "std", "var",),
    "reduction.loss_table": ("binary_cross_entropy_with_logits", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss", "smooth_l1_loss",),
    "convolution.conv": ("conv1d", "conv3d",),
    "convolution.conv_transpose": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d",),
    "lookup.along_index": ("gather", "index_add", "index_select", "scatter_add",),
    "pooling.adaptive_avg_pool": ("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",),
    "pooling.adaptive_max_pool": ("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",),
    "pooling.avg_pool": ("avg_pool1d", "avg_pool3d",),
    "pooling.max_pool": ("max_pool1d", "max_pool2d", "max_pool3d",),
    "spectral.complex_fft": ("fft", "ifft",),
    "similarity.matern_table": ("matern12_matmul", "matern52_matmul",),
    "similarity.metric_matrix": ("laplacian_kernel", "linear_kernel", "polynomial_kernel",),
    "similarity.metric_table": ("laplacian_matmul", "polynomial_matmul",),
}

# Of each op that torch has a function for, the aten operator that this calls or what that would be called.
OPERATORS: dict[str, str] = {
    "celu": "celu",
    "elu": "elu",
    "gelu": "gelu",
    "hardshrink": "hardshrink",
    "hardsigmoid": "hardsigmoid",
    "hardswish": "hardswish",
    "hardtanh": "hardtanh",
    "leaky_relu": "leaky_relu",
    "logsigmoid": "log_sigmoid",
    "mish": "mish",
    "relu": "relu",
    "relu6": "relu6",
    "selu": "selu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "softplus": "softplus",
    "softshrink": "softshrink",
    "softsign": "softsign",
    "tanh": "tanh",
    "tanhshrink": "tanhshrink",
    "threshold": "threshold",
    "attention": "scaled_dot_product_attention",
    "conv1d": "conv1d",
    "conv2d": "conv2d",
    "conv3d": "conv3d",
    "conv_transpose1d": "conv_transpose1d",
    "conv_transpose2d": "conv_transpose2d",
    "conv_transpose3d": "conv_transpose3d",
    "cholesky_solve": "cholesky_solve",
    "solve": "linalg_solve",
    "linear": "linear",
    "embedding": "embedding",
    "embedding_bag": "embedding_bag",
    "gather": "gather",
    "index_add": "index_add",
    "index_select": "index_select",
    "scatter_add": "scatter_add",
    "batch_norm": "batch_norm",
    "group_norm": "group_norm",
    "instance_norm": "instance_norm",
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "adaptive_avg_pool1d": "adaptive_avg_pool1d",
    "adaptive_avg_pool2d": "adaptive_avg_pool2d",
    "adaptive_avg_pool3d": "adaptive_avg_pool3d",
    "adaptive_max_pool1d": "adaptive_max_pool1d",
    "adaptive_max_pool2d": "adaptive_max_pool2d",
    "adaptive_max_pool3d": "adaptive_max_pool3d",
    "avg_pool1d": "avg_pool1d",
    "avg_pool2d": "avg_pool2d",
    "avg_pool3d": "avg_pool3d",
    "max_pool1d": "max_pool1d",
    "max_pool2d": "max_pool2d",
    "max_pool3d": "max_pool3d",
    "amax": "amax",
    "amin": "amin",
    "argmax": "argmax",
    "argmin": "argmin",
    "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits",
    "cosine_similarity": "cosine_similarity",
    "cross_entropy": "cross_entropy_loss",
    "hinge_embedding_loss": "hinge_embedding_loss",
    "huber_loss": "huber_loss",
    "kl_div": "kl_div",
    "l1_loss": "l1_loss",
    "linear_cross_entropy": "linear_cross_entropy",
    "log_softmax": "log_softmax",
    "logsumexp": "logsumexp",
    "mean": "mean",
    "mse_loss": "mse_loss",
    "nll_loss": "nll_loss_nd",
    "norm": "linalg_vector_norm",
    "prod": "prod",
    "smooth_l1_loss": "smooth_l1_loss",
    "softmax": "softmax",
    "std": "std",
    "sum": "sum",
    "triplet_margin_loss": "triplet_margin_loss",
    "var": "var",
    "grouped_linear": "_grouped_mm",
    "cumprod": "cumprod",
    "cumsum": "cumsum",
    "logcumsumexp": "logcumsumexp",
    "sort": "sort",
    "topk": "topk",
    "fft": "fft_fft",
    "ifft": "fft_ifft",
    "irfft": "fft_irfft",
    "rfft": "fft_rfft",
}

SCHEMAS = {
    "celu": {
        "forward": "celu(Tensor x, float alpha, str? op_kernel=None) -> Tensor",
        "backward": "celu_backward(Tensor grad_output, Tensor x, float alpha, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "elu": {
        "forward": "elu(Tensor x, float alpha, str? op_kernel=None) -> Tensor",
        "backward": "elu_backward(Tensor grad_output, Tensor x, float alpha, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "gelu": {
        "forward": "gelu(Tensor x, str approximate, str? op_kernel=None) -> Tensor",
        "backward": "gelu_backward(Tensor grad_output, Tensor x, str approximate, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "gelu_mul": {
        "forward": "gelu_mul(Tensor gate, Tensor up, str approximate, str? op_kernel=None) -> Tensor",
        "backward": "gelu_mul_backward(Tensor grad_output, Tensor gate, Tensor up, str approximate, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "hardshrink": {
        "forward": "hardshrink(Tensor x, float lambd, str? op_kernel=None) -> Tensor",
        "backward": "hardshrink_backward(Tensor grad_output, Tensor x, float lambd, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "hardsigmoid": {
        "forward": "hardsigmoid(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "hardsigmoid_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "hardswish": {
        "forward": "hardswish(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "hardswish_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "hardtanh": {
        "forward": "hardtanh(Tensor x, float min_val, float max_val, str? op_kernel=None) -> Tensor",
        "backward": "hardtanh_backward(Tensor grad_output, Tensor x, float min_val, float max_val, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "leaky_relu": {
        "forward": "leaky_relu(Tensor x, float negative_slope, str? op_kernel=None) -> Tensor",
        "backward": "leaky_relu_backward(Tensor grad_output, Tensor x, float negative_slope, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "logsigmoid": {
        "forward": "logsigmoid(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "logsigmoid_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "mish": {
        "forward": "mish(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "mish_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "quick_gelu": {
        "forward": "quick_gelu(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "quick_gelu_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "relu": {
        "forward": "relu(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "relu_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "relu6": {
        "forward": "relu6(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "relu6_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "selu": {
        "forward": "selu(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "selu_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "sigmoid": {
        "forward": "sigmoid(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "sigmoid_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "silu": {
        "forward": "silu(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "silu_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "silu_mul": {
        "forward": "silu_mul(Tensor gate, Tensor up, str? op_kernel=None) -> Tensor",
        "backward": "silu_mul_backward(Tensor grad_output, Tensor gate, Tensor up, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "softplus": {
        "forward": "softplus(Tensor x, float beta, float threshold, str? op_kernel=None) -> Tensor",
        "backward": "softplus_backward(Tensor grad_output, Tensor x, float beta, float threshold, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "softshrink": {
        "forward": "softshrink(Tensor x, float lambd, str? op_kernel=None) -> Tensor",
        "backward": "softshrink_backward(Tensor grad_output, Tensor x, float lambd, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "softsign": {
        "forward": "softsign(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "softsign_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "tanh": {
        "forward": "tanh(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "tanh_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "tanhshrink": {
        "forward": "tanhshrink(Tensor x, str? op_kernel=None) -> Tensor",
        "backward": "tanhshrink_backward(Tensor grad_output, Tensor x, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "threshold": {
        "forward": "threshold(Tensor x, float threshold, float value, str? op_kernel=None) -> Tensor",
        "backward": "threshold_backward(Tensor grad_output, Tensor x, float threshold, float value, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "attention": {
        "forward": "attention(Tensor q, Tensor k, Tensor v, str? causal, int? window, float? scale, Tensor? mask, bool with_lse, float? softcap, Tensor? sinks, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "attention_backward(Tensor grad_output, Tensor q, Tensor k, Tensor v, Tensor output, Tensor lse, str? causal, int? window, float? scale, Tensor? mask, bool[] needs, float? softcap, Tensor? sinks, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "attention_fp8": {
        "forward": "attention_fp8(Tensor q, Tensor k, Tensor v, Tensor q_descale, Tensor k_descale, Tensor v_descale, str? causal, float? scale, str out_dtype, str? op_kernel=None) -> Tensor",
    },
    "block_sparse_attention": {
        "forward": "block_sparse_attention(Tensor query, Tensor key, Tensor value, Tensor block_mask, bool is_causal, float? scale, bool enable_gqa, bool with_lse, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "block_sparse_attention_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor lse, Tensor block_mask, bool is_causal, float? scale, bool enable_gqa, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "cache_append": {
        "forward": "cache_append(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, str? op_kernel=None) -> ()",
    },
    "paged_attention": {
        "forward": "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor cu_seq_q, Tensor seqused_k, Tensor block_table, float? scale, int? window, str? op_kernel=None) -> Tensor",
    },
    "varlen_attn": {
        "forward": "varlen_attn(Tensor query, Tensor key, Tensor value, Tensor cu_seq_q, Tensor cu_seq_k, int max_q, int max_k, float? scale, int[] window_size, bool enable_gqa, bool with_lse, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "varlen_attn_backward(Tensor grad_output, Tensor query, Tensor key, Tensor value, Tensor output, Tensor lse, Tensor cu_seq_q, Tensor cu_seq_k, int max_q, int max_k, float? scale, int[] window_size, bool enable_gqa, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "all_gather": {
        "forward": "all_gather(Tensor x, str? group, str? op_kernel=None) -> Tensor",
    },
    "all_reduce": {
        "forward": "all_reduce(Tensor x, str op, str? group, str? op_kernel=None) -> Tensor",
    },
    "reduce_scatter": {
        "forward": "reduce_scatter(Tensor x, str op, str? group, str? op_kernel=None) -> Tensor",
    },
    "causal_conv1d": {
        "forward": "causal_conv1d(Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, str? activation, bool return_final_states, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "causal_conv1d_backward(Tensor grad_output, Tensor? grad_final_states, Tensor x, Tensor weight, Tensor? bias, Tensor? initial_states, str? activation, bool return_final_states, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "causal_conv1d_update": {
        "forward": "causal_conv1d_update(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, str? activation, str? op_kernel=None) -> Tensor",
    },
    "conv1d": {
        "forward": "conv1d(Tensor x, Tensor weight, Tensor? bias, int[1] stride, int[1] padding, int[1] dilation, int groups, str? op_kernel=None) -> Tensor",
        "backward": "conv1d_backward(Tensor grad_output, Tensor x, Tensor weight, int[1] stride, int[1] padding, int[1] dilation, int groups, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "conv2d": {
        "forward": "conv2d(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[2] padding, int[2] dilation, int groups, str? op_kernel=None) -> Tensor",
        "backward": "conv2d_backward(Tensor grad_output, Tensor x, Tensor weight, int[2] stride, int[2] padding, int[2] dilation, int groups, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "conv3d": {
        "forward": "conv3d(Tensor x, Tensor weight, Tensor? bias, int[3] stride, int[3] padding, int[3] dilation, int groups, str? op_kernel=None) -> Tensor",
        "backward": "conv3d_backward(Tensor grad_output, Tensor x, Tensor weight, int[3] stride, int[3] padding, int[3] dilation, int groups, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "conv_transpose1d": {
        "forward": "conv_transpose1d(Tensor x, Tensor weight, Tensor? bias, int[1] stride, int[1] padding, int[1] output_padding, int groups, int[1] dilation, str? op_kernel=None) -> Tensor",
        "backward": "conv_transpose1d_backward(Tensor grad_output, Tensor x, Tensor weight, int[1] stride, int[1] padding, int[1] output_padding, int groups, int[1] dilation, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "conv_transpose2d": {
        "forward": "conv_transpose2d(Tensor x, Tensor weight, Tensor? bias, int[2] stride, int[2] padding, int[2] output_padding, int groups, int[2] dilation, str? op_kernel=None) -> Tensor",
        "backward": "conv_transpose2d_backward(Tensor grad_output, Tensor x, Tensor weight, int[2] stride, int[2] padding, int[2] output_padding, int groups, int[2] dilation, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "conv_transpose3d": {
        "forward": "conv_transpose3d(Tensor x, Tensor weight, Tensor? bias, int[3] stride, int[3] padding, int[3] output_padding, int groups, int[3] dilation, str? op_kernel=None) -> Tensor",
        "backward": "conv_transpose3d_backward(Tensor grad_output, Tensor x, Tensor weight, int[3] stride, int[3] padding, int[3] output_padding, int groups, int[3] dilation, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "cholesky_solve": {
        "forward": "cholesky_solve(Tensor B, Tensor L, bool upper, str? op_kernel=None) -> Tensor",
        "backward": "cholesky_solve_backward(Tensor grad_output, Tensor B, Tensor L, Tensor output, bool upper, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "csr_matmul": {
        "forward": "csr_matmul(Tensor crow_indices, Tensor col_indices, Tensor values, Tensor dense, str? op_kernel=None) -> Tensor",
        "backward": "csr_matmul_backward(Tensor grad_output, Tensor crow_indices, Tensor col_indices, Tensor values, Tensor dense, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "eigh": {
        "forward": "eigh(Tensor A, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "eigh_backward(Tensor grad_eigenvalues, Tensor grad_eigenvectors, Tensor A, Tensor eigenvalues, Tensor eigenvectors, str? op_kernel=None) -> Tensor",
    },
    "solve": {
        "forward": "solve(Tensor A, Tensor B, str? op_kernel=None) -> Tensor",
        "backward": "solve_backward(Tensor grad_output, Tensor A, Tensor B, Tensor output, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "linear": {
        "forward": "linear(Tensor x, Tensor weight, Tensor? bias, str? op_kernel=None) -> Tensor",
        "backward": "linear_backward(Tensor grad_output, Tensor x, Tensor weight, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "linear_add": {
        "forward": "linear_add(Tensor x, Tensor weight, Tensor residual, Tensor? bias, str? op_kernel=None) -> Tensor",
        "backward": "linear_add_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor residual, Tensor? bias, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "linear_gelu": {
        "forward": "linear_gelu(Tensor x, Tensor weight, Tensor? bias, str approximate, str? op_kernel=None) -> Tensor",
        "backward": "linear_gelu_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor? bias, str approximate, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "linear_silu_mul": {
        "forward": "linear_silu_mul(Tensor x, Tensor gate_weight, Tensor up_weight, str? op_kernel=None) -> Tensor",
        "backward": "linear_silu_mul_backward(Tensor grad_output, Tensor x, Tensor gate_weight, Tensor up_weight, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "rms_norm_linear": {
        "forward": "rms_norm_linear(Tensor x, Tensor weight, Tensor? bias, float eps, str? op_kernel=None) -> Tensor",
        "backward": "rms_norm_linear_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor? bias, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "embedding": {
        "forward": "embedding(Tensor ids, Tensor weight, str? op_kernel=None) -> Tensor",
        "backward": "embedding_backward(Tensor grad_output, Tensor ids, Tensor weight, bool[] needs, str? op_kernel=None) -> Tensor",
    },
    "embedding_bag": {
        "forward": "embedding_bag(Tensor ids, Tensor weight, Tensor offsets, str mode, Tensor? per_sample_weights, int? padding_idx, str? op_kernel=None) -> Tensor",
        "backward": "embedding_bag_backward(Tensor grad_output, Tensor ids, Tensor weight, Tensor offsets, str mode, Tensor? per_sample_weights, int? padding_idx, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "gather": {
        "forward": "gather(Tensor x, int dim, Tensor index, str? op_kernel=None) -> Tensor",
        "backward": "gather_backward(Tensor grad_output, Tensor x, int dim, Tensor index, str? op_kernel=None) -> Tensor",
    },
    "index_add": {
        "forward": "index_add(Tensor x, int dim, Tensor index, Tensor source, float alpha, str? op_kernel=None) -> Tensor",
        "backward": "index_add_backward(Tensor grad_output, int dim, Tensor index, Tensor source, float alpha, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "index_select": {
        "forward": "index_select(Tensor x, int dim, Tensor index, str? op_kernel=None) -> Tensor",
        "backward": "index_select_backward(Tensor grad_output, Tensor x, int dim, Tensor index, str? op_kernel=None) -> Tensor",
    },
    "scatter_add": {
        "forward": "scatter_add(Tensor x, int dim, Tensor index, Tensor src, str? op_kernel=None) -> Tensor",
        "backward": "scatter_add_backward(Tensor grad_output, int dim, Tensor index, Tensor src, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "add_layer_norm": {
        "forward": "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "add_layer_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "batch_norm": {
        "forward": "batch_norm(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? weight, Tensor? bias, bool training, float momentum, float eps, str? op_kernel=None) -> Tensor",
        "backward": "batch_norm_backward(Tensor grad_output, Tensor x, Tensor? running_mean, Tensor? running_var, Tensor? weight, Tensor? bias, bool training, float momentum, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "group_norm": {
        "forward": "group_norm(Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps, str? op_kernel=None) -> Tensor",
        "backward": "group_norm_backward(Tensor grad_output, Tensor x, int num_groups, Tensor? weight, Tensor? bias, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "instance_norm": {
        "forward": "instance_norm(Tensor x, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor? weight, Tensor? bias, bool use_input_stats, float momentum, float eps, str? op_kernel=None) -> Tensor",
        "backward": "instance_norm_backward(Tensor grad_output, Tensor x, Tensor? running_mean, Tensor? running_var, Tensor? weight, Tensor? bias, bool use_input_stats, float momentum, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "layer_norm": {
        "forward": "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, str? op_kernel=None) -> Tensor",
        "backward": "layer_norm_backward(Tensor grad_output, Tensor x, Tensor? weight, Tensor? bias, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "rms_norm": {
        "forward": "rms_norm(Tensor x, Tensor? weight, float eps, Tensor? residual, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "rms_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor x, Tensor? weight, float eps, Tensor? residual, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "adadelta_": {
        "forward": "adadelta_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] square_avgs, Tensor(c!)[] acc_deltas, float lr, float rho, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "adagrad_": {
        "forward": "adagrad_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] state_sums, int step, float lr, float lr_decay, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "adam_": {
        "forward": "adam_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "adamw8bit_": {
        "forward": "adamw8bit_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_scale, Tensor(d!) rms, Tensor(e!) rms_scale, int step, float lr, float beta1, float beta2, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "adamw_": {
        "forward": "adamw_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, Tensor(c!)[] exp_avg_sqs, int step, float lr, float beta1, float beta2, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "clip_grads_": {
        "forward": "clip_grads_(Tensor(a!)[] grads, float max_norm, float norm_type, bool error_if_nonfinite, str? op_kernel=None) -> Tensor",
    },
    "lion_": {
        "forward": "lion_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, float lr, float beta1, float beta2, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "muon_momentum_": {
        "forward": "muon_momentum_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momentum_buffers, float momentum, bool nesterov, str? op_kernel=None) -> ()",
    },
    "rmsprop_": {
        "forward": "rmsprop_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] square_avgs, float lr, float alpha, float eps, float weight_decay, bool maximize, str? op_kernel=None) -> ()",
    },
    "sgd_": {
        "forward": "sgd_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momentum_buffers, float lr, float momentum, float dampening, float weight_decay, bool nesterov, bool maximize, bool is_first_step, str? op_kernel=None) -> ()",
    },
    "adaptive_avg_pool1d": {
        "forward": "adaptive_avg_pool1d(Tensor x, int[1] output_size, str? op_kernel=None) -> Tensor",
        "backward": "adaptive_avg_pool1d_backward(Tensor grad_output, Tensor x, int[1] output_size, str? op_kernel=None) -> Tensor",
    },
    "adaptive_avg_pool2d": {
        "forward": "adaptive_avg_pool2d(Tensor x, int[2] output_size, str? op_kernel=None) -> Tensor",
        "backward": "adaptive_avg_pool2d_backward(Tensor grad_output, Tensor x, int[2] output_size, str? op_kernel=None) -> Tensor",
    },
    "adaptive_avg_pool3d": {
        "forward": "adaptive_avg_pool3d(Tensor x, int[3] output_size, str? op_kernel=None) -> Tensor",
        "backward": "adaptive_avg_pool3d_backward(Tensor grad_output, Tensor x, int[3] output_size, str? op_kernel=None) -> Tensor",
    },
    "adaptive_max_pool1d": {
        "forward": "adaptive_max_pool1d(Tensor x, int[1] output_size, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "adaptive_max_pool1d_backward(Tensor grad_output, Tensor x, int[1] output_size, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "adaptive_max_pool2d": {
        "forward": "adaptive_max_pool2d(Tensor x, int[2] output_size, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "adaptive_max_pool2d_backward(Tensor grad_output, Tensor x, int[2] output_size, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "adaptive_max_pool3d": {
        "forward": "adaptive_max_pool3d(Tensor x, int[3] output_size, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "adaptive_max_pool3d_backward(Tensor grad_output, Tensor x, int[3] output_size, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "avg_pool1d": {
        "forward": "avg_pool1d(Tensor x, int[1] kernel_size, int[1]? stride, int[1] padding, bool ceil_mode, bool count_include_pad, str? op_kernel=None) -> Tensor",
        "backward": "avg_pool1d_backward(Tensor grad_output, Tensor x, int[1] kernel_size, int[1]? stride, int[1] padding, bool ceil_mode, bool count_include_pad, str? op_kernel=None) -> Tensor",
    },
    "avg_pool2d": {
        "forward": "avg_pool2d(Tensor x, int[2] kernel_size, int[2]? stride, int[2] padding, bool count_include_pad, str? op_kernel=None) -> Tensor",
        "backward": "avg_pool2d_backward(Tensor grad_output, Tensor x, int[2] kernel_size, int[2]? stride, int[2] padding, bool count_include_pad, str? op_kernel=None) -> Tensor",
    },
    "avg_pool3d": {
        "forward": "avg_pool3d(Tensor x, int[3] kernel_size, int[3]? stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, str? op_kernel=None) -> Tensor",
        "backward": "avg_pool3d_backward(Tensor grad_output, Tensor x, int[3] kernel_size, int[3]? stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, str? op_kernel=None) -> Tensor",
    },
    "max_pool1d": {
        "forward": "max_pool1d(Tensor x, int[1] kernel_size, int[1]? stride, int[1] padding, int[1] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "max_pool1d_backward(Tensor grad_output, Tensor x, int[1] kernel_size, int[1]? stride, int[1] padding, int[1] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "max_pool2d": {
        "forward": "max_pool2d(Tensor x, int[2] kernel_size, int[2]? stride, int[2] padding, int[2] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "max_pool2d_backward(Tensor grad_output, Tensor x, int[2] kernel_size, int[2]? stride, int[2] padding, int[2] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "max_pool3d": {
        "forward": "max_pool3d(Tensor x, int[3] kernel_size, int[3]? stride, int[3] padding, int[3] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "max_pool3d_backward(Tensor grad_output, Tensor x, int[3] kernel_size, int[3]? stride, int[3] padding, int[3] dilation, bool ceil_mode, bool return_indices, str? op_kernel=None) -> Tensor",
    },
    "rope": {
        "forward": "rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "rope_backward(Tensor grad_q_turned, Tensor grad_k_turned, Tensor cos, Tensor sin, bool interleaved, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "dequantize": {
        "forward": "dequantize(Tensor packed, str format, str dtype, str? op_kernel=None) -> Tensor",
    },
    "quantize": {
        "forward": "quantize(Tensor x, str format, str? op_kernel=None) -> Tensor",
    },
    "quantized_linear": {
        "forward": "quantized_linear(Tensor x, Tensor weight, Tensor? bias, str format, str activations, str? op_kernel=None) -> Tensor",
        "backward": "quantized_linear_backward(Tensor grad_output, Tensor weight, str format, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "rowwise_dequantize": {
        "forward": "rowwise_dequantize(Tensor codes, Tensor scale, str dtype, str? op_kernel=None) -> Tensor",
    },
    "rowwise_linear": {
        "forward": "rowwise_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias, str? op_kernel=None) -> Tensor",
        "backward": "rowwise_linear_backward(Tensor grad_output, Tensor weight, Tensor scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "rowwise_quantize": {
        "forward": "rowwise_quantize(Tensor x, str dtype, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "gru": {
        "forward": "gru(Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? h_0, bool reverse, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "gru_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? h_0, bool reverse, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    },
    "lstm": {
        "forward": "lstm(Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? h_0, Tensor? c_0, bool reverse, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
        "backward": "lstm_backward(Tensor? grad_output, Tensor? grad_h_n, Tensor? grad_c_n, Tensor x, Tensor weight_ih, Tensor weight_hh, Tensor? bias_ih, Tensor? bias_hh, Tensor? h_0, Tensor? c_0, bool reverse, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    },
    "amax": {
        "forward": "amax(Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "amax_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "amin": {
        "forward": "amin(Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "amin_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "argmax": {
        "forward": "argmax(Tensor x, int? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "argmin": {
        "forward": "argmin(Tensor x, int? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "binary_cross_entropy_with_logits": {
        "forward": "binary_cross_entropy_with_logits(Tensor x, Tensor target, Tensor? weight, Tensor? pos_weight, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "binary_cross_entropy_with_logits_backward(Tensor grad_output, Tensor x, Tensor target, Tensor? weight, Tensor? pos_weight, str reduction, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "cosine_similarity": {
        "forward": "cosine_similarity(Tensor x, Tensor y, int dim, float eps, str? op_kernel=None) -> Tensor",
        "backward": "cosine_similarity_backward(Tensor grad_output, Tensor x, Tensor y, int dim, float eps, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "cross_entropy": {
        "forward": "cross_entropy(Tensor logits, Tensor target, int ignore_index, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, int ignore_index, str reduction, str? op_kernel=None) -> Tensor",
    },
    "hinge_embedding_loss": {
        "forward": "hinge_embedding_loss(Tensor x, Tensor target, str reduction, float margin, str? op_kernel=None) -> Tensor",
        "backward": "hinge_embedding_loss_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, float margin, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "huber_loss": {
        "forward": "huber_loss(Tensor x, Tensor target, str reduction, float delta, str? op_kernel=None) -> Tensor",
        "backward": "huber_loss_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, float delta, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "kl_div": {
        "forward": "kl_div(Tensor x, Tensor target, str reduction, bool log_target, str? op_kernel=None) -> Tensor",
        "backward": "kl_div_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, bool log_target, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "l1_loss": {
        "forward": "l1_loss(Tensor x, Tensor target, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "l1_loss_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "linear_cross_entropy": {
        "forward": "linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, str? op_kernel=None) -> Tensor",
        "backward": "linear_cross_entropy_backward(Tensor grad_loss, Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "log_softmax": {
        "forward": "log_softmax(Tensor x, int dim, str? op_kernel=None) -> Tensor",
        "backward": "log_softmax_backward(Tensor grad_output, Tensor output, int dim, str? op_kernel=None) -> Tensor",
    },
    "logsumexp": {
        "forward": "logsumexp(Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "logsumexp_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "mean": {
        "forward": "mean(Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "mean_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "mse_loss": {
        "forward": "mse_loss(Tensor x, Tensor target, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "mse_loss_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "nll_loss": {
        "forward": "nll_loss(Tensor x, Tensor target, Tensor? weight, int ignore_index, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "nll_loss_backward(Tensor grad_loss, Tensor x, Tensor target, Tensor? weight, int ignore_index, str reduction, str? op_kernel=None) -> Tensor",
    },
    "norm": {
        "forward": "norm(Tensor x, int[1]? dim, bool keepdim, float p, str? op_kernel=None) -> Tensor",
        "backward": "norm_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, float p, str? op_kernel=None) -> Tensor",
    },
    "prod": {
        "forward": "prod(Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "prod_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "smooth_l1_loss": {
        "forward": "smooth_l1_loss(Tensor x, Tensor target, str reduction, float beta, str? op_kernel=None) -> Tensor",
        "backward": "smooth_l1_loss_backward(Tensor grad_output, Tensor x, Tensor target, str reduction, float beta, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "softmax": {
        "forward": "softmax(Tensor x, int dim, str? op_kernel=None) -> Tensor",
        "backward": "softmax_backward(Tensor grad_output, Tensor output, int dim, str? op_kernel=None) -> Tensor",
    },
    "std": {
        "forward": "std(Tensor x, int[1]? dim, bool keepdim, float correction, str? op_kernel=None) -> Tensor",
        "backward": "std_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, float correction, str? op_kernel=None) -> Tensor",
    },
    "sum": {
        "forward": "sum(Tensor x, int? dim, bool keepdim, str? op_kernel=None) -> Tensor",
        "backward": "sum_backward(Tensor grad_output, Tensor x, int? dim, bool keepdim, str? op_kernel=None) -> Tensor",
    },
    "triplet_margin_loss": {
        "forward": "triplet_margin_loss(Tensor x, Tensor positive, Tensor negative, float margin, float p, float eps, bool swap, str reduction, str? op_kernel=None) -> Tensor",
        "backward": "triplet_margin_loss_backward(Tensor grad_loss, Tensor x, Tensor positive, Tensor negative, float margin, float p, float eps, bool swap, str reduction, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "var": {
        "forward": "var(Tensor x, int[1]? dim, bool keepdim, float correction, str? op_kernel=None) -> Tensor",
        "backward": "var_backward(Tensor grad_output, Tensor x, int[1]? dim, bool keepdim, float correction, str? op_kernel=None) -> Tensor",
    },
    "combine": {
        "forward": "combine(Tensor rows, Tensor weights, Tensor places, str? op_kernel=None) -> Tensor",
        "backward": "combine_backward(Tensor grad_output, Tensor rows, Tensor weights, Tensor places, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "grouped_linear": {
        "forward": "grouped_linear(Tensor x, Tensor weight, Tensor offsets, Tensor? bias, str? op_kernel=None) -> Tensor",
        "backward": "grouped_linear_backward(Tensor grad_output, Tensor x, Tensor weight, Tensor offsets, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "router_topk": {
        "forward": "router_topk(Tensor logits, int k, str scoring, bool norm_topk_prob, float scale, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "router_topk_backward(Tensor grad_weights, Tensor logits, Tensor indices, str scoring, bool norm_topk_prob, float scale, str? op_kernel=None) -> Tensor",
    },
    "cumprod": {
        "forward": "cumprod(Tensor x, int dim, str? op_kernel=None) -> Tensor",
        "backward": "cumprod_backward(Tensor grad_output, Tensor x, int dim, str? op_kernel=None) -> Tensor",
    },
    "cumsum": {
        "forward": "cumsum(Tensor x, int dim, str? op_kernel=None) -> Tensor",
        "backward": "cumsum_backward(Tensor grad_output, Tensor x, int dim, str? op_kernel=None) -> Tensor",
    },
    "gated_delta_rule": {
        "forward": "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float? scale, Tensor? initial_state, bool output_final_state, bool use_qk_l2norm_in_kernel, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "gated_delta_rule_backward(Tensor grad_output, Tensor? grad_final_state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float? scale, Tensor? initial_state, bool output_final_state, bool use_qk_l2norm_in_kernel, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    },
    "linear_attention": {
        "forward": "linear_attention(Tensor q, Tensor k, Tensor v, float? scale, Tensor? initial_state, bool output_final_state, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "linear_attention_backward(Tensor grad_output, Tensor? grad_final_state, Tensor q, Tensor k, Tensor v, float? scale, Tensor? initial_state, bool output_final_state, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "logcumsumexp": {
        "forward": "logcumsumexp(Tensor x, int dim, str? op_kernel=None) -> Tensor",
        "backward": "logcumsumexp_backward(Tensor grad_output, Tensor x, int dim, str? op_kernel=None) -> Tensor",
    },
    "ssd": {
        "forward": "ssd(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? initial_states, Tensor? seq_idx, bool return_final_states, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "ssd_backward(Tensor grad_output, Tensor? grad_final_states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? initial_states, Tensor? seq_idx, bool return_final_states, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    },
    "sort": {
        "forward": "sort(Tensor x, int dim, bool descending, bool stable, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "sort_backward(Tensor grad_values, Tensor x, Tensor indices, int dim, str? op_kernel=None) -> Tensor",
    },
    "topk": {
        "forward": "topk(Tensor x, int k, int dim, bool largest, bool sorted, str? op_kernel=None) -> (Tensor, Tensor)",
        "backward": "topk_backward(Tensor grad_values, Tensor x, Tensor indices, int dim, str? op_kernel=None) -> Tensor",
    },
    "kernel_matmul": {
        "forward": "kernel_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, str? op_kernel=None) -> Tensor",
        "backward": "kernel_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "kernel_matrix": {
        "forward": "kernel_matrix(Tensor x, Tensor y, Tensor length_scale, str metric, str? op_kernel=None) -> Tensor",
        "backward": "kernel_matrix_backward(Tensor grad_output, Tensor x, Tensor y, Tensor length_scale, str metric, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor)",
    },
    "laplacian_kernel": {
        "forward": "laplacian_kernel(Tensor x, Tensor y, float? gamma, str? op_kernel=None) -> Tensor",
        "backward": "laplacian_kernel_backward(Tensor grad_output, Tensor x, Tensor y, float? gamma, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "laplacian_matmul": {
        "forward": "laplacian_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, str? op_kernel=None) -> Tensor",
        "backward": "laplacian_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "linear_kernel": {
        "forward": "linear_kernel(Tensor x, Tensor y, str? op_kernel=None) -> Tensor",
        "backward": "linear_kernel_backward(Tensor grad_output, Tensor x, Tensor y, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "matern12_matmul": {
        "forward": "matern12_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, str? op_kernel=None) -> Tensor",
        "backward": "matern12_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "matern32_matmul": {
        "forward": "matern32_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, str? op_kernel=None) -> Tensor",
        "backward": "matern32_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "matern52_matmul": {
        "forward": "matern52_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, str? op_kernel=None) -> Tensor",
        "backward": "matern52_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "polynomial_kernel": {
        "forward": "polynomial_kernel(Tensor x, Tensor y, int degree, float? gamma, float coef0, str? op_kernel=None) -> Tensor",
        "backward": "polynomial_kernel_backward(Tensor grad_output, Tensor x, Tensor y, int degree, float? gamma, float coef0, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor)",
    },
    "polynomial_matmul": {
        "forward": "polynomial_matmul(Tensor x, Tensor y, Tensor v, Tensor length_scale, int degree, float coef0, str? op_kernel=None) -> Tensor",
        "backward": "polynomial_matmul_backward(Tensor grad_output, Tensor x, Tensor y, Tensor v, Tensor length_scale, int degree, float coef0, bool[] needs, str? op_kernel=None) -> (Tensor, Tensor, Tensor, Tensor)",
    },
    "fft": {
        "forward": "fft(Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
        "backward": "fft_backward(Tensor grad_output, Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
    },
    "hadamard_transform": {
        "forward": "hadamard_transform(Tensor x, float scale, str? op_kernel=None) -> Tensor",
        "backward": "hadamard_transform_backward(Tensor grad_output, Tensor x, float scale, str? op_kernel=None) -> Tensor",
    },
    "ifft": {
        "forward": "ifft(Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
        "backward": "ifft_backward(Tensor grad_output, Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
    },
    "irfft": {
        "forward": "irfft(Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
        "backward": "irfft_backward(Tensor grad_output, Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
    },
    "rfft": {
        "forward": "rfft(Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
        "backward": "rfft_backward(Tensor grad_output, Tensor x, int? n, int dim, str? norm, str? op_kernel=None) -> Tensor",
    },
}
