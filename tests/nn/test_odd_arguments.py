"""An argument of an odd type is taken or refused by what stands in for torch's function as by torch's function itself:
each argument of each function is given each odd value, and either both raise the same error or the results are equal.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from eligible import KERNELS, only
from torch import Tensor

from kernelworks.dispatch.signature import torch_signatures
from kernelworks.nn import attention, functional, rebind
from kernelworks.nn.originals import TORCH_FUNCTIONS

GENERATOR = torch.Generator().manual_seed(0)
X, W = torch.randn(4, 8, generator=GENERATOR), torch.randn(8, 8, generator=GENERATOR)
Q, ONE, ZERO = torch.randn(1, 2, 4, 8, generator=GENERATOR), torch.ones(8), torch.zeros(8)
ATTENTION = {"query": Q, "key": Q, "value": Q, "attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None}

INDICES = torch.tensor([[0, 2], [1, 1], [3, 0]])
OLD = {"size_average": None, "reduce": None}  # torch's deprecated words

ARGUMENTS: dict[str, dict[str, Any]] = {
    "linear": {"input": X, "weight": W, "bias": ZERO},
    "layer_norm": {"input": X, "normalized_shape": (8,), "weight": ONE, "bias": ZERO, "eps": 1e-5},
    "rms_norm": {"input": X, "normalized_shape": (8,), "weight": ONE, "eps": 1e-5},
    "gelu": {"input": X, "approximate": "none"},
    "softmax": {"input": X, "dim": -1, "_stacklevel": 3, "dtype": None},
    "nll_loss": {
        "input": X, "target": torch.arange(4), "weight": None, "size_average": None, "ignore_index": -100,
        "reduce": None, "reduction": "mean",
    },
    "cross_entropy": {
        "input": X, "target": torch.arange(4), "weight": None, "size_average": None, "ignore_index": -100,
        "reduce": None, "reduction": "mean", "label_smoothing": 0.0,
    },
    "scaled_dot_product_attention": ATTENTION | {"enable_gqa": False},
    "relu": {"input": X, "inplace": False},
    "log_softmax": {"input": X, "dim": -1, "_stacklevel": 3, "dtype": None},
    "sum": {"input": X, "dim": -1, "keepdim": False, "dtype": None},
    "argmax": {"input": X, "dim": -1, "keepdim": False},
    "argmin": {"input": X, "dim": -1, "keepdim": False},
    "mse_loss": {"input": X, "target": X * 2, **OLD, "reduction": "mean", "weight": None},
    "l1_loss": {"input": X, "target": X * 2, **OLD, "reduction": "mean", "weight": None},
    "smooth_l1_loss": {"input": X, "target": X * 2, **OLD, "reduction": "mean", "beta": 0.5},
    "hinge_embedding_loss": {"input": X, "target": X.sign(), "margin": 0.5, **OLD, "reduction": "mean"},
    "embedding_bag": {
        "weight": X, "input": torch.tensor([[0, 3, 1], [2, 2, 0]]), "offsets": None, "max_norm": None, "norm_type": 2.0,
        "scale_grad_by_freq": False, "mode": "mean", "sparse": False, "per_sample_weights": None,
        "include_last_offset": False, "padding_idx": 0,
    },
    "huber_loss": {"input": X, "target": X * 2, "reduction": "mean", "delta": 0.5, "weight": None},
    "kl_div": {"input": X, "target": X.sigmoid(), **OLD, "reduction": "mean", "log_target": False},
    "binary_cross_entropy_with_logits": {
        "input": X, "target": X.sigmoid(), "weight": None, **OLD, "reduction": "mean", "pos_weight": None,
    },
    "cosine_similarity": {"x1": X, "x2": W[:4], "dim": 1, "eps": 1e-8},
    "prod": {"input": X, "dim": -1, "keepdim": False, "dtype": None},
    "triplet_margin_loss": {
        "anchor": X, "positive": X * 0.5, "negative": W[:4], "margin": 1.0, "p": 2.0, "eps": 1e-6, "swap": True, **OLD,
        "reduction": "mean",
    },
    "mean": {"input": X, "dim": -1, "keepdim": False, "dtype": None},
    "norm": {"input": X, "p": 2.0, "dim": -1, "keepdim": False, "out": None, "dtype": None},
    "amax": {"input": X, "dim": -1, "keepdim": False},
    "amin": {"input": X, "dim": -1, "keepdim": False},
    "var": {"input": X, "dim": -1, "keepdim": False, "correction": 1.0},
    "std": {"input": X, "dim": -1, "keepdim": False, "correction": 1.0},
    "logsumexp": {"input": X, "dim": -1, "keepdim": False},
    "sort": {"input": X, "dim": -1, "descending": False, "stable": True},
    "topk": {"input": X, "k": 2, "dim": -1, "largest": True, "sorted": True},
    "celu": {"input": X, "alpha": 0.5, "inplace": False},
    "elu": {"input": X, "alpha": 0.5, "inplace": False},
    "hardshrink": {"input": X, "lambd": 0.25},
    "hardtanh": {"input": X, "min_val": -0.25, "max_val": 0.75, "inplace": False},
    "leaky_relu": {"input": X, "negative_slope": 0.3, "inplace": False},
    "softplus": {"input": X, "beta": 0.5, "threshold": 20.0},
    "softshrink": {"input": X, "lambd": 0.25},
    "threshold": {"input": X, "threshold": 0.125, "value": 20.0, "inplace": False},
    "cumsum": {"input": X, "dim": -1, "dtype": None},
    "cumprod": {"input": X, "dim": -1, "dtype": None},
    "logcumsumexp": {"input": X, "dim": -1},
    "rfft": {"input": X, "n": None, "dim": -1, "norm": None},
    **{name: {"input": torch.complex(X, X), "n": None, "dim": -1, "norm": None} for name in ("fft", "ifft")},
    "irfft": {"input": torch.complex(X, X), "n": None, "dim": -1, "norm": None},
    "solve": {"A": torch.eye(4) + 0.25, "B": W[:4, :2], "left": True},
    "cholesky_solve": {"input": W[:4, :2], "input2": torch.eye(4) + 0.25, "upper": False},
    "group_norm": {"input": X.reshape(2, 8, 2), "num_groups": 2, "weight": ONE, "bias": ZERO, "eps": 1e-5},
    "batch_norm": {
        "input": X, "running_mean": None, "running_var": None, "weight": ONE, "bias": ZERO, "training": True,
        "momentum": 0.1, "eps": 1e-5,
    },
    "instance_norm": {
        "input": X.reshape(1, 8, 4), "running_mean": None, "running_var": None, "weight": ONE, "bias": ZERO,
        "use_input_stats": True, "momentum": 0.1, "eps": 1e-5,
    },
    "conv2d": {
        "input": X.reshape(1, 2, 4, 4), "weight": W.reshape(-1)[:16].reshape(2, 2, 2, 2), "bias": None, "stride": 1,
        "padding": 0, "dilation": 1, "groups": 1,
    },
    "avg_pool2d": {
        "input": X.reshape(1, 2, 4, 4), "kernel_size": 2, "stride": None, "padding": 0, "ceil_mode": False,
        "count_include_pad": True, "divisor_override": None,
    },
    "avg_pool1d": {
        "input": X.reshape(1, 4, 8), "kernel_size": 2, "stride": None, "padding": 0, "ceil_mode": False,
        "count_include_pad": True,
    },
    "avg_pool3d": {
        "input": X.reshape(1, 1, 2, 4, 4), "kernel_size": 2, "stride": None, "padding": 0, "ceil_mode": False,
        "count_include_pad": True, "divisor_override": None,
    },
    **{f"adaptive_avg_pool{dims}d": {
        "input": X.reshape(((1, 4, 8), (1, 2, 4, 4), (1, 1, 2, 4, 4))[dims - 1]), "output_size": 2,
    } for dims in (1, 2, 3)},
    **{f"adaptive_max_pool{dims}d": {
        "input": X.reshape(((1, 4, 8), (1, 2, 4, 4), (1, 1, 2, 4, 4))[dims - 1]), "output_size": 2,
        "return_indices": False,
    } for dims in (1, 2, 3)},
    **{f"max_pool{dims}d": {
        "input": X.reshape(((1, 4, 8), (1, 2, 4, 4), (1, 1, 2, 4, 4))[dims - 1]), "kernel_size": 2, "stride": None,
        "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False,
    } for dims in (1, 2, 3)},
    **{f"conv{dims}d": {
        "input": X.reshape(((1, 4, 8), (), (1, 1, 2, 4, 4))[dims - 1]),
        "weight": W.reshape(-1)[:16].reshape(((2, 4, 2), (), (2, 1, 2, 2, 2))[dims - 1]), "bias": None, "stride": 1,
        "padding": 0, "dilation": 1, "groups": 1,
    } for dims in (1, 3)},
    **{f"conv_transpose{dims}d": {
        "input": X.reshape(((1, 4, 8), (1, 2, 4, 4), (1, 1, 2, 4, 4))[dims - 1]),
        "weight": W.reshape(-1)[:16].reshape(((4, 2, 2), (2, 2, 2, 2), (1, 2, 2, 2, 2))[dims - 1]), "bias": None,
        "stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1,
    } for dims in (1, 2, 3)},
    "scatter_add": {"input": X, "dim": 1, "index": INDICES, "src": INDICES * 0.5},
    "index_add": {"input": X, "dim": 0, "index": INDICES[0], "source": X[:2], "alpha": 1},
    "grouped_mm": {
        "mat_a": X, "mat_b": W[:8].T.expand(2, 8, -1), "offs": torch.tensor([1, 4], dtype=torch.int32), "bias": None,
        "out_dtype": None,
    },
} | {
    name: {"input": X, "inplace": False} for name in ("hardsigmoid", "hardswish", "mish", "relu6", "selu", "silu")
} | {
    name: {"input": X} for name in ("logsigmoid", "sigmoid", "softsign", "tanh", "tanhshrink")
}  # fmt: skip
# What torch takes in the place of another argument, never beside it.
INSTEAD: dict[str, dict[str, Any]] = {
    name: {"input": X, "dim": -1, "unbiased": False, "keepdim": False} for name in ("var", "std")
}
ODD: tuple[Any, ...] = (
    True, False, 0, 1, 2, 8, -1, 0.0, 1.0, 0.5, 1.5, 8.0, -1.0, float("nan"), float("inf"), 10**30, 1j, None,
    "none", "tanh", "mean", "x", "8", b"x", [1], (1,), [8], (8,), [8.0], [True], torch.Size([8]),
    np.float32(0.5), np.float64(0.5), np.int64(1), np.int64(8), [np.int64(8)], np.bool_(True),
    torch.tensor(1), torch.tensor(0.5), torch.tensor(True), torch.tensor([1.0]), torch.tensor([8]), [torch.tensor(8)],
    torch.float32, torch.bfloat16,
)  # fmt: skip


def outcome(function: Callable[..., Any], given: dict[str, Any]) -> Any:
    """Of tensors of its own, which the function may write into."""
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` notes the stack for each kind of GPU: 0.6 ms
    tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
    own = {name: value.detach().clone().requires_grad_(value.requires_grad) for name, value in tensors.items()}
    try:
        made = function(**given | own)
        # torch's topk promises no order where none is asked for
        return type(made)([each.sort(-1)[0] for each in made]) if given.get("sorted") is False else made
    except Exception as error:
        said = str(error).partition("\nException raised from")[0]  # frames of torch's, and who called them
        return type(error), re.sub(r" \(position \d+\)", "", said)  # where it stood in a call of somebody's


def same(got: Any, want: Any) -> bool:
    """Two tensors, as many in a tuple (of equal names, if torch names them), or the same error."""
    if isinstance(want, Tensor) and isinstance(got, Tensor):
        alike = want.shape == got.shape and want.dtype is got.dtype
        return alike and torch.allclose(got, want, 1e-4, 1e-5, equal_nan=True)
    if isinstance(want, tuple) and isinstance(want[0], Tensor):
        named = isinstance(got, tuple) and getattr(got, "_fields", None) == getattr(want, "_fields", None)
        return named and len(got) == len(want) and all(map(same, got, want))
    return not isinstance(got, Tensor) and want == got


def differ(torchs: Callable[..., Any], ours: Callable[..., Any], base: dict[str, Any]) -> list[Any]:
    """The odd values, by argument, for which the two are not the same."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in ((name, value) for name in base for value in ODD):
            want, got = outcome(torchs, base | {name: value}), outcome(ours, base | {name: value})
            if not same(got, want):
                found.append((name, value, want, got))
    return found


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize(
    ("name", "given"),
    [*ARGUMENTS.items(), *INSTEAD.items()],
    ids=[*ARGUMENTS, *(f"{name}, instead" for name in INSTEAD)],
)
def test_odd_arguments_are_taken_as_by_torch(name: str, given: dict[str, Any], trained: bool) -> None:
    base = dict(given)
    first = next(iter(base))
    base[first] = base[first].clone().requires_grad_(trained)
    with only(KERNELS[-1], plainly=True) as taken:
        ours = functional.FUNCTIONS[name]
        ours(**base)  # it does reach a kernel of ours
        assert taken
        assert not differ(TORCH_FUNCTIONS[name], ours, base)


def test_every_stand_in_is_tried_with_every_argument() -> None:
    # a call of linear_cross_entropy runs no single kernel
    assert ARGUMENTS.keys() == functional.FUNCTIONS.keys() - {"linear_cross_entropy"}
    for name, given in ARGUMENTS.items():
        assert {*given, *INSTEAD.get(name, ())} == set(torch_signatures()[name].names), name


def test_torch_softmax_by_its_other_name() -> None:
    base = {"input": X, "dim": -1, "dtype": None}
    with only(KERNELS[-1], plainly=True):
        assert not differ(torch.softmax, rebind._torch_softmax, base)


def test_attention_as_transformers_calls_it() -> None:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    attention.register()
    base = {"query": Q, "key": Q, "value": Q, "attention_mask": None, "dropout": 0.0, "scaling": None}

    def first(function: Callable[..., Any], looks_back: Any) -> Callable[..., Any]:
        return lambda **given: function(SimpleNamespace(is_causal=looks_back), **given)[0]

    with only(KERNELS[-1], plainly=True):
        for looks_back in (True, False, 1, 0, None, np.bool_(True)):
            ours, theirs = (first(f, looks_back) for f in (attention.attention_forward, sdpa_attention_forward))
            found = differ(theirs, ours, base | {"is_causal": None})
            # torch's causal kernel scales its -inf too: NaN where a scale is not above 0, and right in the op
            assert all(name == "scaling" and value <= 0 and want.isnan().any() for name, value, want, _ in found)
