"""What a swap did to a model's answers: outputs, long greedy runs and a training step, all against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.nn.swap import swap

__all__ = ["Greedy", "Training", "Validation", "output_tensor", "relative_error", "validate"]


@dataclass(frozen=True)
class Greedy:
    """The tokens that the model itself chose one by one, and how each version chooses when fed exactly these."""

    tokens: int
    same: int  # places where the swapped model chooses what the model as it was chose
    right_before: int  # places where the model as it was, and the swapped one, choose what float64 chooses
    right_after: int


@dataclass(frozen=True)
class Training:
    """Loss and gradient of one step. The errors are relative to float64, over all parameters as one vector."""

    loss: float  # in float64
    loss_error_before: float
    loss_error_after: float
    gradient_error_before: float
    gradient_error_after: float


@dataclass(frozen=True)
class Validation:
    """``error_before`` and ``error_after`` are |output - float64| / |float64| in the 2-norm, over the whole output."""

    error_before: float
    error_after: float
    no_worse: bool
    undo_exact: bool  # the outputs after undo() are those before the swap, bit for bit
    replaced: tuple[str, ...]
    left: tuple[str, ...]
    greedy: Greedy | None = None
    training: Training | None = None


def validate(
    model: nn.Module,
    inputs: Tensor | Mapping[str, Any],
    *,
    greedy_tokens: int = 0,
    loss: Callable[[Any], Tensor] | None = None,
    step_in_training_mode: bool = False,
) -> Validation:
    """Swaps a model, compares, and gives it back as it was.

    ``no_worse`` bounds the growth of the error against float64. It may grow by a tenth if the parameters are bfloat16
    or float16, whose rounding between ops dominates. It may grow threefold in float32, where it measures the order of
    summation. One rounding of the dtype is added.

    Args:
        model: a module that is not swapped. It runs in evaluation mode here, so that dropout is off.
        inputs: its one positional argument, or its keyword arguments. With ``greedy_tokens``, ids [1, L].
        greedy_tokens: how many tokens to decode greedily (transformers' causal models).
        loss: from the model's output to a scalar; with it one training step is compared. The parameters' ``grad``
            fields are left as they were.
        step_in_training_mode: takes that step in training mode, in which the loss of a causal language model comes
            from the hidden states. Only for models without dropout: with it no two runs agree.

    Memory: a float64 copy of the model while this runs.
    """
    training = model.training
    model.eval()
    try:
        reference_model = copy.deepcopy(model).double()
        with torch.no_grad():
            before = output_tensor(_run(model, inputs)).clone()
            reference = output_tensor(_run(reference_model, _in_float64(inputs)))
            with swap(model, verbose=False) as swapped:
                after = output_tensor(_run(model, inputs)).clone()
            undo_exact = torch.equal(output_tensor(_run(model, inputs)), before)
            greedy = _greedy(model, reference_model, inputs, greedy_tokens) if greedy_tokens else None
        if step_in_training_mode:
            model.train()
            reference_model.train()
        step = _training(model, reference_model, inputs, loss) if loss is not None else None
    finally:
        model.train(training)
    errors = relative_error(before, reference), relative_error(after, reference)
    return Validation(
        error_before=errors[0],
        error_after=errors[1],
        no_worse=_no_worse(*errors, before.dtype),
        undo_exact=undo_exact,
        replaced=tuple(f"{r.path}: {', '.join(r.ops)}" for r in swapped.replaced),
        left=tuple(f"{item.path}: {item.reason}" for item in swapped.left),
        greedy=greedy,
        training=step,
    )


def relative_error(value: Tensor, reference: Tensor) -> float:
    """|value - reference| / |reference| in the 2-norm; inf if either holds a NaN that the other does not."""
    value, reference = value.double(), reference.double()
    if not torch.equal(value.isnan(), reference.isnan()):
        return float("inf")
    value, reference = value.nan_to_num(0.0), reference.nan_to_num(0.0)
    return float((value - reference).norm() / reference.norm().clamp_min(torch.finfo(torch.float64).tiny))


def _no_worse(before: float, after: float, dtype: torch.dtype) -> bool:
    factor = 3.0 if dtype is torch.float32 else 1.1
    return after <= factor * before + UNIT_ROUNDOFF.get(dtype, 0.0)


def output_tensor(output: Any) -> Tensor:
    """The tensor that a model's output is about: itself, ``logits``, ``last_hidden_state``, or the first one in it."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        value = getattr(output, name, None)
        if isinstance(value, Tensor):
            return value
    parts = output.values() if isinstance(output, Mapping) else output
    if isinstance(parts, (list, tuple)) or isinstance(output, Mapping):
        for part in parts:
            if isinstance(part, Tensor):
                return part
    raise TypeError(f"model must return a tensor or something that holds one, got {type(output).__name__}")


def _run(model: nn.Module, inputs: Tensor | Mapping[str, Any]) -> Any:
    return model(inputs) if isinstance(inputs, Tensor) else model(**inputs)


def _in_float64(inputs: Tensor | Mapping[str, Any]) -> Tensor | Mapping[str, Any]:
    def convert(value: Any) -> Any:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return convert(inputs) if isinstance(inputs, Tensor) else {k: convert(v) for k, v in inputs.items()}


# ---------------------------------------------------------------- greedy runs


def _greedy(model: nn.Module, reference_model: nn.Module, inputs: Tensor | Mapping[str, Any], tokens: int) -> Greedy:
    ids = inputs if isinstance(inputs, Tensor) else inputs["input_ids"]
    chosen = _decode(model, ids, tokens, None)
    with swap(model, verbose=False):
        after = _decode(model, ids, tokens, chosen)
    sequence = torch.cat([ids, chosen[:, :-1]], dim=1)
    right = output_tensor(reference_model(sequence))[:, ids.shape[1] - 1 :].argmax(-1)
    return Greedy(
        tokens,
        same=int((after == chosen).sum()),
        right_before=int((chosen == right).sum()),
        right_after=int((after == right).sum()),
    )


def _decode(model: nn.Module, ids: Tensor, tokens: int, feed: Tensor | None) -> Tensor:
    """The tokens chosen after ``ids`` [1, L]. With ``feed`` [1, tokens] those are fed back in place of the chosen."""
    output = model(ids, use_cache=True)
    chosen = [output.logits[:, -1:].argmax(-1)]
    for i in range(tokens - 1):
        token = chosen[-1] if feed is None else feed[:, i : i + 1]
        output = model(token, past_key_values=output.past_key_values, use_cache=True)
        chosen.append(output.logits[:, -1:].argmax(-1))
    return torch.cat(chosen, dim=1)


# ---------------------------------------------------------------- a training step


def _training(
    model: nn.Module, reference_model: nn.Module, inputs: Tensor | Mapping[str, Any], loss: Callable[[Any], Tensor]
) -> Training:
    def step(of: nn.Module, given: Tensor | Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        parameters = [p for p in of.parameters() if p.requires_grad]
        with torch.enable_grad():
            value = loss(_run(of, given))
            gradients: tuple[Tensor | None, ...] = torch.autograd.grad(value, parameters, allow_unused=True)
        flat = [
            (torch.zeros_like(p) if g is None else g).double().flatten()
            for p, g in zip(parameters, gradients, strict=True)
        ]
        return value.detach().double(), torch.cat(flat)

    reference, true_gradient = step(reference_model, _in_float64(inputs))
    before, gradient_before = step(model, inputs)
    with swap(model, verbose=False):
        after, gradient_after = step(model, inputs)
    return Training(
        loss=reference.item(),
        loss_error_before=relative_error(before, reference),
        loss_error_after=relative_error(after, reference),
        gradient_error_before=relative_error(gradient_before, true_gradient),
        gradient_error_after=relative_error(gradient_after, true_gradient),
    )
