"""Calls of ops in torch's signature, made from torch's signatures and the ops' own cases.

What a call needs beside the arguments of the op's smallest case is in ``WHOLE``, a value other than the default for
each of torch's in ``OTHER``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from op_kernels import ALL_OPS
from torch import Tensor

from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.signature import TorchSignature

# Where torch's names are the op's, a call in them is the op's, with the errors of its contract: `same` is empty.
NAMES = [
    op.name
    for op in ALL_OPS
    if op.torch_signature is not None and op.torch_signature.function is not None and op.torch_signature.same
]
Parameters = list[tuple[str, Any, bool]]  # name, default, whether it may be given by position

# Arguments of torch's that no argument of the op's says, made of those that are there.
WHOLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "normalized_shape": lambda given: given["input"].shape[-1:],
    "enable_gqa": lambda given: given["query"].shape[1] != given["key"].shape[1],
    "mat_b": lambda given: torch.randn(len(given["offs"]), given["mat_a"].shape[1], 16),
}

OTHER: dict[str, Callable[[dict[str, Any]], Any]] = {
    "alpha": lambda given: 0.75,
    "approximate": lambda given: "tanh",
    "attn_mask": lambda given: torch.rand(given["query"].shape[2], given["key"].shape[2]),
    "beta": lambda given: 0.75,
    "bias": lambda given: torch.rand(given.get("weight", given.get("mat_b", Tensor())).shape[0]),
    "ceil_mode": lambda given: True,
    "descending": lambda given: True,
    "dilation": lambda given: (2, 1),
    "dim": lambda given: 0,
    "divisor_override": lambda given: 3,
    "dropout_p": lambda given: 0.5,
    "dtype": lambda given: torch.float64,
    "enable_gqa": lambda given: True,
    "eps": lambda given: 0.25,
    "groups": lambda given: 2,
    "ignore_index": lambda given: int(given["target"][0]),
    "include_last_offset": lambda given: True,
    "inplace": lambda given: True,
    "is_causal": lambda given: True,
    "keepdim": lambda given: True,
    "k": lambda given: 1,
    "log_target": lambda given: True,
    "delta": lambda given: 0.25,
    "label_smoothing": lambda given: 0.25,
    "lambd": lambda given: 0.75,
    "left": lambda given: False,
    "largest": lambda given: False,
    "linear_bias": lambda given: torch.rand(given["linear_weight"].shape[0]),
    "momentum": lambda given: 0.3,
    "num_groups": lambda given: 1,
    "running_mean": lambda given: torch.rand(given["input"].shape[1]),
    "running_var": lambda given: torch.rand(given["input"].shape[1]) + 0.5,
    "training": lambda given: False,
    "use_input_stats": lambda given: False,
    "margin": lambda given: 0.25,
    "max_val": lambda given: 0.75,
    "min_val": lambda given: -0.75,
    "n": lambda given: 5,
    "norm": lambda given: "ortho",
    "negative_slope": lambda given: 0.3,
    "max_norm": lambda given: 1e6,  # above every norm: the weight is not rewritten
    "norm_type": lambda given: 1.0,
    "out_dtype": lambda given: torch.float32,
    "options": lambda given: torch.nn.LinearCrossEntropyOptions(),
    "output_padding": lambda given: 1,
    "p": lambda given: 1.0,
    "padding": lambda given: (1, 2),
    "padding_idx": lambda given: 0,
    "per_sample_weights": lambda given: torch.rand(given["input"].shape),
    "reduce": lambda given: False,
    "reduction": lambda given: "sum",
    "return_indices": lambda given: True,
    "count_include_pad": lambda given: False,
    "scale": lambda given: 0.3,
    "scale_grad_by_freq": lambda given: True,
    "size_average": lambda given: False,
    "sorted": lambda given: False,
    "sparse": lambda given: True,
    "sparse_grad": lambda given: True,
    "stride": lambda given: 2,
    "swap": lambda given: True,
    "threshold": lambda given: 0.3,
    "value": lambda given: -0.3,
    "stable": lambda given: True,
    "weight": lambda given: torch.rand(given.get("linear_weight", given["input"].mT).shape[0]),
}  # fmt: skip
UNSAID = {"_stacklevel", "out"}  # where a warning of torch's points to; what every call of the tests is given


def torchs(torch_signature: TorchSignature) -> Parameters:
    """The signature of torch's function, as this version of torch has it."""
    function = torch_signature.function
    cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
    function = cells.get("if_true", function)  # of one that chooses between two by a flag
    try:
        found = inspect.signature(function)  # type: ignore[arg-type]
    except ValueError:  # one of C++
        packet = getattr(torch.ops.aten, function.__name__)  # type: ignore[union-attr]
        usual = getattr(packet, "default", None) or getattr(packet, packet.overloads()[0])
        plain = {a.name for a in usual._schema.arguments}  # what no call can do without, and more
        known = (getattr(packet, o)._schema for o in packet.overloads() if "Dimname" not in o)
        schemas = (s for s in known if not any(a.is_out for a in s.arguments))
        schemas = sorted(schemas, key=lambda s: (len(s.arguments), s.overload_name == ""))
        placed = {a.name for s in schemas for a in s.arguments if not a.kwarg_only}
        arguments = sorted(schemas[-1].arguments, key=lambda a: a.name not in placed)
        absent = {True: inspect._empty, False: None}
        return [
            ("input" if a.name == "self" else a.name,
             _plain(a.default_value) if a.has_default_value() else absent[a.name in plain], a.name in placed)
            for a in arguments
        ]  # fmt: skip
    return [(p.name, p.default, p.kind is not p.KEYWORD_ONLY) for p in found.parameters.values()]


def _plain(default: Any) -> Any:
    """A default as a call may write it: 1 for [1, 1], None for []."""
    if isinstance(default, list) and not default:
        return None
    return default[0] if isinstance(default, list) and len(default) > 1 and len({*default}) == 1 else default


def example(torch_signature: TorchSignature) -> dict[str, Any]:
    """Arguments of torch's function, of the smallest case of the op that says no more than torch can."""
    op = OPS[torch_signature.op.name]
    own_only = {
        n for n in op.passes["forward"].names if n not in torch_signature.names and n not in torch_signature.theirs
    }
    own_only -= {n for n, theirs in torch_signature.joined.items() if theirs in WHOLE}  # which say it in its place
    for case in (*op.contract.cases, *op.contract.bench_cases):
        made = case.make(torch.Generator().manual_seed(1), torch.float32)
        if any(made.get(n) is not None and made.get(n) is not False for n in own_only):
            continue
        if any(isinstance(v, Tensor) and v.numel() < 4 for v in made.values()):
            continue
        given = {torch_signature.theirs.get(n, n): v for n, v in made.items() if n not in own_only and v is not None}
        given = {n: v for n, v in given.items() if n in torch_signature.names}
        return given | {n: make(given) for n, make in WHOLE.items() if n in torch_signature.names}
    raise AssertionError(f"{op.name} has no case that torch can say")


def in_precision(its: torch.dtype, precision: torch.dtype) -> torch.dtype:
    """The dtype of the same kind of numbers, of another precision; of integers their own. Of complex numbers with parts
    in bfloat16, which there are not, those with parts in float16."""
    if its.is_complex:
        return {torch.float32: torch.complex64, torch.float64: torch.complex128}.get(precision, torch.complex32)
    return precision if its.is_floating_point else its
