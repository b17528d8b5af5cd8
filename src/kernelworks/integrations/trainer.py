"""A callback of transformers' ``Trainer`` that diagnoses one step of a training and changes nothing of it.

    trainer = Trainer(..., callbacks=[DiagnoseCallback(step=10)])

When that step is over, forward, backward and the optimizer's step run some times more on its first batch, as
``diagnose`` needs them. Parameters, buffers, gradients, the optimizer's state and the random numbers are put back
afterwards, so that the losses are those of a training without the callback, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from kernelworks.diagnose import diagnose
from kernelworks.diagnose.snapshot import State, duplicate
from kernelworks.measure.clock.noise import Ambiguous
from kernelworks.profile.process_state import read_random_state, restore_random_state
from kernelworks.records import Diagnosis
from kernelworks.report import quantity
from kernelworks.report.diagnose import headline, sort_worst_first

__all__ = ["DiagnoseCallback"]

Loss = Callable[[Any, Mapping[str, Any]], Tensor]
DEEPEST = 8  # containers in each other
MOST_PRINTED = 3  # hotspots; the page has them all


class DiagnoseCallback(TrainerCallback):
    """Diagnoses training step ``step`` (counted from 1), once.

    Args:
        step: which step. The first ones are slower than the rest: compilers, caches and allocators warm up.
        out: the folder for ``training-step.html`` and ``training-step.json``.
        loss: ``loss(outputs, inputs)``, if the model's output holds no loss, since labels are smoothed or the Trainer
            has a loss of its own.
        rough: give figures even if other processes use the machine; they are marked.

    A step that cannot be diagnosed is a line on stdout, never an error: a training of several processes, a compiled
    model, too little memory for a copy of parameters and optimizer state. What the loader of the data takes is no part
    of a step. ``record`` is the diagnosis afterwards.
    """

    def __init__(
        self, step: int = 10, out: str | Path = "kernelworks-out", loss: Loss | None = None, *, rough: bool = True
    ) -> None:
        if isinstance(step, bool) or not isinstance(step, int):
            raise TypeError(f"step must be an integer, got {type(step).__name__}")
        if step < 1:
            raise ValueError(f"step must be at least 1, got {step}")
        self.step, self.out, self.loss, self.rough = step, Path(out), loss, rough
        self.record: Diagnosis | None = None
        self._batch: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self._hook: Any = None
        self._is_over = False

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Before the step: its first batch will be kept, by a hook that takes itself away."""
        if self._is_over or self._hook is not None or state.global_step != self.step - 1 or model is None:
            return
        reason = _obstacle(args)
        if reason:
            self._give_up(reason)
            return

        def keep(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            if self._batch is None:
                self._batch = duplicate((given, named))

        self._hook = model.register_forward_pre_hook(keep, with_kwargs=True)

    def on_step_end(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """After the step: the diagnosis, if the step was the one."""
        if self._hook is None:
            return
        self._hook.remove()
        self._hook, batch, self._batch = None, self._batch, None
        if batch is None or optimizer is None:
            self._give_up("the model's forward was not called")
            return
        self._is_over = True
        print(f"kernelworks: diagnosing step {self.step}; the training goes on afterwards", flush=True)
        try:
            self.record = self._diagnose(args, model, getattr(optimizer, "optimizer", optimizer), *batch)
            self._report(self.record)
        except Ambiguous as error:
            self._give_up(str(error))
        except (torch.OutOfMemoryError, MemoryError):
            self._give_up("there is no memory for a copy of parameters and optimizer state")
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A training that ends before the step says so."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = self._batch = None
        if not self._is_over:
            self._give_up(f"the training ended at step {state.global_step}")

    # ---------------------------------------------------------------- the step

    def _diagnose(
        self,
        args: Any,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        given: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Diagnosis:
        batches = int(getattr(args, "gradient_accumulation_steps", 1) or 1)
        most_norm = getattr(args, "max_grad_norm", None)

        def training_step() -> None:
            for _ in range(batches):
                loss = self._loss_of(model(*given, **named), named)
                (loss / batches).backward()
            if most_norm is not None and most_norm > 0:
                nn.utils.clip_grad_norm_(model.parameters(), most_norm)
            optimizer.step()
            model.zero_grad()

        kept = TrainingState(model, optimizer)
        try:
            return diagnose(training_step, program=f"training step {self.step}", rough=self.rough)
        finally:
            kept.restore()

    def _loss_of(self, outputs: Any, inputs: Mapping[str, Any]) -> Tensor:
        if self.loss is not None:
            return self.loss(outputs, inputs)
        if isinstance(outputs, Mapping):
            found = outputs.get("loss")
        else:
            found = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else None
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ValueError("the model's output holds no loss: give DiagnoseCallback(loss=...)")
        return found

    # ---------------------------------------------------------------- the report

    def _give_up(self, reason: str) -> None:
        self._is_over = True
        print(f"kernelworks: step {self.step} was not diagnosed: {reason}", flush=True)

    def _report(self, record: Diagnosis) -> None:
        lines = [headline(record)]
        for hotspot in sort_worst_first(record.hotspots)[:MOST_PRINTED]:
            where = " ".join(word for word in (hotspot.module, hotspot.source) if word)
            time = f"{quantity.seconds(hotspot.seconds)}, {quantity.percent(hotspot.share, 1)}"
            lines.append(f"  {hotspot.op} x {hotspot.calls} {where}: {time}, bound by {hotspot.bottleneck}")
        print("\n".join(f"kernelworks: {line}" for line in lines), flush=True)
        try:
            page = record.save(self.out / "training-step.html")
            kept = record.save(self.out / "training-step.json")
        except OSError as error:
            print(f"kernelworks: could not write {self.out}: {error.strerror or error}", flush=True)
        else:
            print(f"kernelworks: the page: {page}   the record: {kept}", flush=True)


def _obstacle(args: Any) -> str:
    """Why a step of this training cannot be run again in this process alone; "" if it can."""
    if getattr(args, "world_size", 1) > 1:
        return "the training runs in several processes, which would wait for each other; diagnose a run of one"
    if getattr(args, "n_gpu", 1) > 1:
        return "the training runs on several GPUs in one process; show it one with CUDA_VISIBLE_DEVICES"
    if getattr(args, "deepspeed", None) or getattr(args, "fsdp", None):
        return "the parameters are not whole in this process (DeepSpeed, FSDP)"
    if getattr(args, "torch_compile", False):
        return "the model is compiled, and watching it would compile it again; diagnose a run without torch_compile"
    return ""


class TrainingState:
    """What a step of training writes: parameters, buffers, gradients, the optimizer's state, what modules keep, and the
    random numbers.

    Memory: a copy of all of it.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._random = read_random_state()
        trained = {id(p): p for group in optimizer.param_groups for p in group["params"]}
        held = {id(p): p for p in model.parameters()} | trained
        self._values = [(p, p.detach().clone()) for p in held.values()]
        self._gradients = [(p, p.grad, None if p.grad is None else p.grad.detach().clone()) for p in held.values()]
        self._rest = State(model, *_containers(optimizer.state), *_containers(optimizer.param_groups))

    def restore(self) -> None:
        self._rest.restore()
        with torch.no_grad():
            for parameter, value in self._values:
                parameter.copy_(value)
            for parameter, gradient, value in self._gradients:
                parameter.grad = gradient
                if gradient is not None and value is not None:
                    gradient.copy_(value)
        restore_random_state(self._random)


def _containers(value: Any, depth: int = 0) -> Iterator[Any]:
    """The dictionaries and lists in each other: an optimizer may keep lists of tensors for a parameter."""
    if isinstance(value, (dict, list)) and depth < DEEPEST:
        yield value
        for item in value.values() if isinstance(value, dict) else value:
            yield from _containers(item, depth + 1)
