"""AdamW whose states take 2 bytes of an element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from kernelworks.contract import FLOATS
from kernelworks.contract.tensors import PLAIN_TYPES
from kernelworks.ops.optimizer.adamw8bit import OP
from kernelworks.ops.optimizer.adamw8bit.codes import BLOCK
from kernelworks.ops.optimizer.adamw8bit.contract import STATES

__all__ = ["AdamW8bit"]

Group = dict[str, Any]


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with states of 8 bits and a scale for each 256 of them: ``kernelworks.adamw8bit_`` for each parameter.

    Args:
        params: parameters or groups of them, as torch's optimizers take them.
        lr, betas, eps, weight_decay: as in torch.optim.AdamW, with its defaults.
        maximize: climb instead of descend.
        min_8bit_size: parameters of fewer elements, 4096, keep states of their dtype and are stepped as torch does; so
            are float64 and subclasses of tensors.

    Its state dict holds codes and scales: it is none of torch.optim.AdamW's.

    Raises: TypeError, ValueError naming the argument; RuntimeError for a sparse gradient.
    Source: Dettmers et al. 2022, arXiv:2110.02861.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 1e-2, *, maximize: bool = False, min_8bit_size: int = 4096,
    ) -> None:  # fmt: skip
        codes, scales = torch.empty(0, dtype=torch.uint8), torch.empty(0)
        OP.contract.check(
            param=scales, grad=scales, exp_avg=codes, exp_avg_scale=scales, rms=codes, rms_scale=scales, step=1, lr=lr,
            beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay, maximize=maximize,
        )  # fmt: skip
        super().__init__(params, {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "min_8bit_size": min_8bit_size,
        })  # fmt: skip

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient; returns what ``closure``, called first, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            some = [(p, p.grad) for p in group["params"] if p.grad is not None]
            if any(g.layout is not torch.strided for _, g in some):
                raise RuntimeError("AdamW8bit takes dense gradients, got a sparse one")
            in_8_bits: list[tuple[Tensor, Tensor]] = []
            plain: list[tuple[Tensor, Tensor]] = []
            for p, g in some:
                if not self.state[p]:
                    self.state[p].update(_first_state(p, group["min_8bit_size"]))
                (in_8_bits if self.state[p]["exp_avg"].dtype == torch.uint8 else plain).append((p, g))
            if in_8_bits:
                self._step_in_8_bits(in_8_bits, group)
            if plain:
                self._step_plainly(plain, group)
        return loss

    def _step_in_8_bits(self, some: list[tuple[Tensor, Tensor]], group: Group) -> None:
        """What is the same for all is read once: beside a small parameter's step it would be what takes the time."""
        beta1, beta2 = group["betas"]
        numbers = (
            float(group["lr"]), float(beta1), float(beta2), float(group["eps"]), float(group["weight_decay"]),
            bool(group["maximize"]),
        )  # fmt: skip
        stepped = []
        try:
            for p, g in some:
                state = self.state[p]
                flat = p.contiguous().view(-1)  # a copy of one whose elements do not lie in order
                OP.call(
                    flat, g.contiguous().view(-1), *(state[name] for name in STATES), int(state["step"]) + 1, *numbers,
                    None, None,
                )  # fmt: skip
                stepped.append(state["step"])
                if not p.is_contiguous():
                    p.copy_(flat.view(p.shape))
        finally:
            if stepped:
                torch._foreach_add_(stepped, 1.0)

    def _step_plainly(self, some: list[tuple[Tensor, Tensor]], group: Group) -> None:
        states = [self.state[p] for p, _ in some]
        adamw(
            [p for p, _ in some], [g for _, g in some], [s["exp_avg"] for s in states],
            [s["exp_avg_sq"] for s in states], [], [s["step"] for s in states], amsgrad=False,
            beta1=group["betas"][0], beta2=group["betas"][1], lr=group["lr"], weight_decay=group["weight_decay"],
            eps=group["eps"], maximize=group["maximize"],
        )  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's optimizers, but that codes stay bytes and scales float32, whatever a parameter's dtype is."""
        super().load_state_dict(state_dict)
        saved = [key for group in state_dict["param_groups"] for key in group["params"]]
        params = [p for group in self.param_groups for p in group["params"]]
        for key, p in zip(saved, params, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().to("cpu" if name == "step" else p.device, copy=True)


def _first_state(p: Tensor, least: int) -> dict[str, Tensor]:
    count = p.numel()
    if count < least or p.dtype not in FLOATS or p.__class__ not in PLAIN_TYPES:
        return {"step": torch.zeros(())} | {
            name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in ("exp_avg", "exp_avg_sq")
        }
    codes = {name: torch.zeros(count, dtype=torch.uint8, device=p.device) for name in ("exp_avg", "rms")}
    blocks = (count + BLOCK - 1) // BLOCK
    return codes | {"step": torch.zeros(())} | {f"{name}_scale": torch.zeros(blocks, device=p.device) for name in codes}
