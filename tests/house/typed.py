"""What type checkers see of the public face; checked by test_typing.py, never run."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np
import torch
from torch import Tensor

import kernelworks as kw
from kernelworks.nn.swap import Swap
from kernelworks.records import BenchResult, Diagnosis, Explanation, Verification
from kernelworks.records.base import Records

Arrays = np.ndarray[Any, Any]


def ops(x: Tensor, a: Arrays, ids: Tensor, target: Tensor) -> None:
    assert_type(kw.gelu(x), Tensor)
    assert_type(kw.gelu(a, approximate="tanh"), Arrays)
    assert_type(kw.gelu(input=x), Tensor)
    assert_type(kw.relu(x), Tensor)
    assert_type(kw.relu(x, False), Tensor)
    assert_type(kw.relu(input=a, inplace=False), Arrays)
    assert_type(kw.hardswish(input=a, inplace=False), Arrays)
    assert_type(kw.leaky_relu(x, 0.2), Tensor)
    assert_type(kw.leaky_relu(input=x, negative_slope=0.2, inplace=False), Tensor)
    assert_type(kw.sigmoid(x), Tensor)
    assert_type(kw.softplus(a, 2.0, threshold=10.0), Arrays)
    assert_type(kw.threshold(x, 0.1, 20.0), Tensor)
    assert_type(kw.gelu_mul(x, x, approximate="tanh"), Tensor)
    assert_type(kw.silu_mul(x, x), Tensor)
    assert_type(kw.linear(x, x), Tensor)
    assert_type(kw.causal_conv1d(x, x, activation="silu"), Tensor)
    assert_type(kw.causal_conv1d(a, a, return_final_states=True), tuple[Arrays, Arrays])
    assert_type(kw.causal_conv1d_update(x, x, x, None, "silu"), Tensor)
    assert_type(kw.conv2d(x, x, None, 2, (1, 0)), Tensor)
    assert_type(kw.conv2d(input=a, weight=a, padding="same"), Arrays)
    assert_type(kw.quantize(x, "Q8_0"), Tensor)
    assert_type(kw.dequantize(a, "Q4_0", dtype=torch.bfloat16), Arrays)
    assert_type(kw.quantized_linear(x, x, format="Q8_0", activations="int8"), Tensor)
    assert_type(kw.load_gguf("model.gguf")["output.weight"].dequantize(), Tensor)
    assert_type(kw.load_gguf("model.gguf").linear("output"), kw.nn.QuantizedLinear)
    assert_type(kw.linear(input=a, weight=a, bias=None), Arrays)
    assert_type(kw.layer_norm(x, x, None, eps=1e-5), Tensor)
    assert_type(kw.layer_norm(x, (4,), x, x, 1e-5), Tensor)
    assert_type(kw.layer_norm(a, normalized_shape=(4,), weight=a), Arrays)
    assert_type(kw.rms_norm(x, x, eps=1e-5), Tensor)
    assert_type(kw.rms_norm(x, [4], x), Tensor)
    assert_type(kw.rms_norm(x, x, eps=1e-5, residual=x), tuple[Tensor, Tensor])
    assert_type(kw.rms_norm(x, (4,), x, 1e-5, residual=x), tuple[Tensor, Tensor])
    assert_type(kw.softmax(x, -1), Tensor)
    assert_type(kw.sum(x, 0, keepdim=True), Tensor)
    assert_type(kw.sum(a, (0, 1), dtype=torch.float64), Arrays)
    assert_type(kw.argmax(x) + kw.argmin(x, 0), Tensor)
    assert_type(kw.kernel_matrix(x, x, 0.5, "matern32") + kw.linear_kernel(x, x), Tensor)
    assert_type(kw.polynomial_kernel(x, x, 2, 0.5) + kw.laplacian_kernel(x, x, gamma=0.5), Tensor)
    assert_type(kw.kernel_matmul(x, x, x, 2), Tensor)
    assert_type(kw.kernel_matmul(a, a, a, 0.5), Arrays)
    assert_type(kw.kernel_matmul(x, x, x, x), Tensor)
    assert_type((kw.matern32_matmul(x, x, x, 0.5), kw.matern32_matmul(a, a, a, a)), tuple[Tensor, Arrays])
    assert_type(kw.matern12_matmul(x, x, x, 0.5) + kw.laplacian_matmul(x, x, x, 2), Tensor)
    assert_type((kw.matern52_matmul(a, a, a, a), kw.polynomial_matmul(a, a, a, 1, 2, 0.5)), tuple[Arrays, Arrays])
    assert_type(kw.argmax(input=a, dim=-1, keepdim=True), Arrays)
    assert_type(kw.sort(x, 0, True, stable=True), tuple[Tensor, Tensor])
    assert_type(kw.sort(input=a), tuple[Arrays, Arrays])
    assert_type(kw.topk(x, 2, 0, False), tuple[Tensor, Tensor])
    assert_type(kw.topk(input=a, k=2, sorted=False), tuple[Arrays, Arrays])
    assert_type(kw.softmax(x, 0, dtype=torch.float64), Tensor)
    assert_type(kw.log_softmax(x, -1), Tensor)
    assert_type(kw.add_layer_norm(x, x, x, None, eps=1e-5), tuple[Tensor, Tensor])
    assert_type(kw.log_softmax(input=a, dim=0), Arrays)
    assert_type(kw.cross_entropy(x, target, reduction="sum"), Tensor)
    assert_type(kw.cross_entropy(x, target, x, label_smoothing=0.1), Tensor)
    assert_type(kw.linear_add(x, x, x), Tensor)
    assert_type(kw.linear_gelu(x, x, approximate="tanh"), Tensor)
    assert_type(kw.linear_silu_mul(x, x, x), Tensor)
    assert_type(kw.rms_norm_linear(x, x, eps=1e-6), Tensor)
    assert_type(kw.grouped_linear(x, x, ids, x), Tensor)
    assert_type(kw.grouped_linear(mat_a=x, mat_b=x, offs=ids), Tensor)
    assert_type(kw.router_topk(x, 2, scoring="sigmoid", norm_topk_prob=True), tuple[Tensor, Tensor])
    assert_type(kw.combine(x, x, ids), Tensor)
    assert_type(kw.embedding(ids, x), Tensor)
    assert_type(kw.embedding(ids, x, 2, sparse=True), Tensor)
    assert_type(kw.rope(x, x, x, x), tuple[Tensor, Tensor])
    assert_type(kw.attention(x, x, x, causal="top_left"), Tensor)
    assert_type(kw.attention(x, x, x, with_lse=True, softcap=50.0, sinks=x), tuple[Tensor, Tensor])
    assert_type(kw.attention(x, x, x, x, 0.1, is_causal=True, enable_gqa=True), Tensor)
    assert_type(kw.attention_fp8(x, x, x, x, x, x, causal="top_left", out_dtype=torch.float16), Tensor)
    assert_type(kw.varlen_attn(x, x, x, ids, ids, 4, 4, window_size=(-1, 0)), Tensor)
    assert_type(kw.varlen_attn(x, x, x, ids, ids, 4, 4, with_lse=True), tuple[Tensor, Tensor])
    assert_type(kw.block_sparse_attention(x, x, x, ids, is_causal=True), Tensor)
    assert_type(kw.block_sparse_attention(x, x, x, ids, with_lse=True), tuple[Tensor, Tensor])
    kw.gelu([1.0])  # refused: overload or type var
    kw.layer_norm(x, x, x)  # refused: neither spelling
    kw.attention(x, x, x, colour=1)  # refused: no such argument
    kw.nothing  # noqa: B018  # refused: no such name


def norms(x: Tensor, a: Arrays) -> None:
    assert_type(kw.group_norm(x, 2, x), Tensor)
    assert_type(kw.group_norm(input=a, num_groups=2, eps=1e-6), Arrays)
    assert_type(kw.instance_norm(x), Tensor)
    assert_type(kw.batch_norm(x, None, None, training=True), Tensor)
    assert_type(kw.batch_norm(input=a, running_mean=a, running_var=a, momentum=0.5), Arrays)


def scans(x: Tensor) -> None:
    assert_type(kw.cumsum(x, 0), Tensor)
    assert_type(kw.gated_delta_rule(x, x, x, x, x, output_final_state=True), tuple[Tensor, Tensor | None])
    assert_type(kw.linear_attention(x, x, x, output_final_state=True), tuple[Tensor, Tensor | None])
    assert_type(kw.ssd(x, x, x, x, x), Tensor)
    assert_type(kw.ssd(x, x, x, x, x, return_final_states=True), tuple[Tensor, Tensor])
    assert_type(kw.cumprod(input=x, dim=0, dtype=torch.float32), Tensor)
    assert_type(kw.logcumsumexp(x, 0), Tensor)
    assert_type(kw.logcumsumexp(input=x, dim=0), Tensor)
    assert_type(kw.gru(x, x, x, h_0=x, reverse=True), tuple[Tensor, Tensor])
    assert_type(kw.lstm(x, x, x, x, x, h_0=x, c_0=x), tuple[Tensor, Tensor, Tensor])


def collectives(x: Tensor, a: Arrays) -> None:
    assert_type(kw.all_reduce(x, "max", "self"), Tensor)
    assert_type(kw.all_reduce(a, group="self"), Arrays)
    assert_type(kw.all_gather(x, group="self"), Tensor)
    assert_type(kw.reduce_scatter(x, "sum", "self"), Tensor)


def pages(x: Tensor, ids: Tensor) -> None:
    assert_type(kw.paged_attention(x, x, x, ids, ids, ids, window=4), Tensor)
    kw.cache_append(x, x, x, x, ids)


def steps(x: Tensor) -> None:
    kw.sgd_([x], [x], [x], lr=1e-3, momentum=0.9, dampening=0.0, weight_decay=0.1, nesterov=False)
    kw.adamw_([x], [x], [x], [x], step=1, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    kw.adam_([x], [x], [x], [x], step=1, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    kw.adamw8bit_(x, x, x, x, x, x, step=1, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    kw.muon_momentum_([x], [x], [x], momentum=0.95, nesterov=True)
    kw.lion_([x], [x], [x], lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.1)


def transforms_and_solves(x: Tensor, a: Arrays) -> None:
    assert_type(kw.rfft(x, 8, 0, "ortho"), Tensor)
    assert_type(kw.rfft(input=a), Arrays)
    assert_type(kw.irfft(x, 8), Tensor)
    assert_type(kw.irfft(input=a, n=8), Arrays)
    assert_type(kw.fft(x, 8), Tensor)
    assert_type(kw.ifft(input=a, n=8), Arrays)
    assert_type(kw.hadamard_transform(x, 0.5), Tensor)
    assert_type(kw.cholesky_solve(x, x, True), Tensor)
    assert_type(kw.cholesky_solve(input=a, input2=a), Arrays)
    assert_type(kw.csr_matmul(a, a, a, a), Arrays)
    assert_type(kw.csr_matmul(x, x), Tensor)
    assert_type(kw.rowwise_linear(x, x, x), Tensor)
    assert_type(kw.rowwise_quantize(x), tuple[Tensor, Tensor])
    assert_type(kw.rowwise_dequantize(x, x), Tensor)
    assert_type(kw.solve(x, x, left=True), Tensor)
    assert_type(kw.eigh(x), tuple[Tensor, Tensor])
    assert_type(kw.solve(a, a), Arrays)
    assert_type(kw.eigh(a), tuple[Arrays, Arrays])


def convolutions(x: Tensor, a: Arrays) -> None:
    assert_type(kw.conv1d(x, x, None, 2, 1), Tensor)
    assert_type(kw.conv1d(input=a, weight=a, padding="same"), Arrays)
    assert_type(kw.conv3d(x, x, x, (1, 2, 1), groups=2), Tensor)
    assert_type(kw.conv_transpose1d(input=a, weight=a, output_padding=1), Arrays)
    assert_type(kw.conv_transpose2d(x, x, None, 2, 1, 1), Tensor)
    assert_type(kw.conv_transpose3d(x, x, dilation=(1, 2, 1)), Tensor)


def losses(x: Tensor, a: Arrays, target: Tensor) -> None:
    assert_type(kw.cosine_similarity(x, x, eps=1e-6), Tensor)
    assert_type(kw.cosine_similarity(x1=a, x2=a, dim=0), Arrays)
    assert_type(kw.nll_loss(x, target, ignore_index=0), Tensor)
    assert_type(kw.triplet_margin_loss(x, x, x, swap=True), Tensor)
    assert_type(kw.triplet_margin_loss(a, a, a, 0.5, 1.0, reduction="none"), Arrays)
    assert_type(kw.prod(x, (0, 1), keepdim=True), Tensor)
    assert_type(kw.prod(input=a, dim=0, dtype=torch.float32), Arrays)
    assert_type(kw.nll_loss(input=a, target=a, weight=a, reduction="sum"), Arrays)
    assert_type(kw.linear_cross_entropy(x, x, target), Tensor)
    assert_type(kw.linear_cross_entropy(x, x, target, linear_bias=x), Tensor)


def indices(x: Tensor, a: Arrays, ids: Tensor) -> None:
    assert_type(kw.gather(x, 1, ids), Tensor)
    assert_type(kw.index_select(x, 0, ids), Tensor)
    assert_type(kw.scatter_add(x, 1, ids, x), Tensor)
    assert_type(kw.index_add(x, 0, ids, x, alpha=2.0), Tensor)
    assert_type(kw.embedding_bag(ids, x, ids, mode="sum", per_sample_weights=x), Tensor)
    assert_type(kw.embedding_bag(input=a, weight=a, offsets=a, mode="max", padding_idx=0), Arrays)
    assert_type(kw.gather(input=a, dim=1, index=a, sparse_grad=False), Arrays)


def windows(x: Tensor, a: Arrays) -> None:
    assert_type(kw.avg_pool2d(x, 2), Tensor)
    assert_type(kw.avg_pool2d(input=a, kernel_size=(2, 3), ceil_mode=True), Arrays)
    assert_type(kw.avg_pool1d(x, 2, ceil_mode=True), Tensor)
    assert_type(kw.avg_pool3d(input=a, kernel_size=(2, 3, 1), divisor_override=3), Arrays)
    assert_type(kw.adaptive_avg_pool1d(x, 2), Tensor)
    assert_type(kw.adaptive_avg_pool2d(input=a, output_size=(2, None)), Arrays)
    assert_type(kw.adaptive_avg_pool3d(input=a, output_size=(2, 3, 1)), Arrays)
    assert_type(kw.adaptive_max_pool1d(x, 2), Tensor)
    assert_type(kw.adaptive_max_pool2d(x, (2, 3), return_indices=True), tuple[Tensor, Tensor])
    assert_type(kw.adaptive_max_pool3d(input=a, output_size=(2, 3, None), return_indices=True), tuple[Arrays, Arrays])
    assert_type(kw.max_pool1d(x, 2, dilation=2), Tensor)
    assert_type(kw.max_pool2d(x, (2, 3), return_indices=True), tuple[Tensor, Tensor])
    assert_type(kw.max_pool2d(input=a, kernel_size=2, return_indices=True), tuple[Arrays, Arrays])
    assert_type(kw.max_pool3d(input=a, kernel_size=2), Arrays)


def verbs(model: torch.nn.Module, x: Tensor) -> None:
    assert_type(kw.swap(model), Swap)
    assert_type(kw.explain("gelu", x), Explanation)
    assert_type(kw.diagnose(model, x), Diagnosis)
    assert_type(kw.bench("gelu"), Records[BenchResult])
    assert_type(kw.verify("gelu"), Records[Verification])
    assert_type(kw.explain("gelu", x).save("it.html"), Path)
    assert_type(kw.nn.Linear(2, 2)(x), Any)
    assert_type(kw.AdamW(model.parameters(), lr=1e-3), kw.AdamW)
    assert_type(kw.SGD(model.parameters(), lr=1e-3, momentum=0.9), kw.SGD)
    assert_type(kw.clip_grads_([x], 1.0), Tensor)
