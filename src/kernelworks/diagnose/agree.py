"""Whether a swapped module still agrees with float64 as well as it did: the same inputs through both and the truth."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernelworks.contract import UNIT_ROUNDOFF
from kernelworks.diagnose.roots import Sample
from kernelworks.models.swap import swap

__all__ = ["Agreement", "compare", "in_float64", "tensors"]

SHARE_OF_MEMORY = 0.6


@dataclass(frozen=True)
class Agreement:
    """Relative errors against float64 in the 2-norm, the worst over the samples. ``note`` says what was not checked."""

    before: float
    after: float
    agrees: bool
    note: str = ""


def compare(samples: Sequence[Sample]) -> Agreement:
    """Runs each sample through the module as it is, swapped, and in float64. Where the program trains the module, and
    it drops nothing out, its loss and the gradients of its parameters are compared, else its outputs.

    It agrees where the error grows by at most a tenth for bfloat16 and float16, whose roundings between ops dominate,
    and at most threefold for float32, where it measures the order of summation, plus one rounding of the dtype.
    Memory: a float64 copy of one module at a time; where that is not there nothing is compared and ``agrees`` is False.
    """
    if not samples:
        return Agreement(0.0, 0.0, False, "no module was called, so nothing was compared with float64")
    worst = Agreement(0.0, 0.0, True)
    modules = {id(s.module): s.module for s in samples}
    shorter = [_shortened(s) for s in samples]
    if any(a is not b for a, b in zip(shorter, samples, strict=True)):
        note = f"compared with float64 on the first {MOST_IDS} tokens of the first sequence"
        samples, worst = shorter, dataclasses.replace(worst, note=note)
    for key, module in modules.items():
        places = {t.device for t in (*module.parameters(), *module.buffers())}
        need = sum(8 * t.numel() for t in (*module.parameters(), *module.buffers()))
        room = min((_available_bytes(place) for place in places), default=_available_bytes(torch.device("cpu")))
        if need > SHARE_OF_MEMORY * room:
            note = f"float64 needs {need / 1e9:.1f} GB of {room / 1e9:.1f} GB free: not compared with it"
            worst = Agreement(worst.before, worst.after, False, note)
            continue
        truth = copy.deepcopy(module).double()
        for sample in samples:
            if id(sample.module) == key:
                found = _compare(sample, truth)
                later = found if found.after > worst.after else worst
                worst = Agreement(later.before, later.after, worst.agrees and found.agrees, worst.note)
    return worst


def _compare(sample: Sample, truth_module: nn.Module) -> Agreement:
    learns = sample.training and not any(_drops_out(m) for m in sample.module.modules())
    results = _learned if learns else _answers
    before = results(sample)
    with swap(sample.module, verbose=False):
        after = results(sample)
    wide = dataclasses.replace(
        sample, module=truth_module, args=in_float64(sample.args), kwargs=in_float64(sample.kwargs)
    )
    truth = results(wide)
    narrow = min((t.dtype for t in before), key=lambda d: -UNIT_ROUNDOFF.get(d, 0.0))
    factor = 3.0 if narrow is torch.float32 else 1.1
    errors = _error(before, truth), _error(after, truth)
    return Agreement(*errors, errors[1] <= factor * errors[0] + UNIT_ROUNDOFF.get(narrow, 0.0))


def _drops_out(module: nn.Module) -> bool:
    """Whether a module in training draws random numbers, so that no two runs agree."""
    return (
        module.training
        and any(isinstance(value, float) and "drop" in name and value > 0 for name, value in vars(module).items())
    ) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0)


def _answers(sample: Sample) -> list[Tensor]:
    with _same_mode(sample):
        return _outputs(sample.module, sample)


def _learned(sample: Sample) -> list[Tensor]:
    """The loss, and its gradient by every parameter. Without a loss in the output, of the sum of what is in it."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    with torch.enable_grad():
        output = sample.module(*args, **kwargs)
        given = output.get("loss") if isinstance(output, Mapping) else None
        loss = torch.stack([t.double().sum() for t in tensors(output)]).sum() if given is None else given
        wanted = [p for p in sample.module.parameters() if p.requires_grad]
        found: tuple[Tensor | None, ...] = torch.autograd.grad(loss, wanted, allow_unused=True)
    zero = [torch.zeros_like(p) if g is None else g for p, g in zip(wanted, found, strict=True)]
    return [loss.detach(), *zero]


MOST_IDS = 1024


def _shortened(sample: Sample) -> Sample:
    """On a GPU, with a large batch of token ids: its first sequence, and no more of it than MOST_IDS tokens. What is
    compared does not depend on the batch, and float64 takes sixteen times as long there."""
    values = [v for v in (*sample.args, *sample.kwargs.values()) if isinstance(v, Tensor)]
    ids = next((v for v in values if v.is_cuda and v.dim() == 2 and not v.is_floating_point()), None)
    if ids is None or ids.numel() <= MOST_IDS or any(v.shape[:2] != ids.shape for v in values):
        return sample

    def cut(value: Any) -> Any:
        return value[:1, :MOST_IDS].contiguous() if isinstance(value, Tensor) else value

    kwargs = {name: cut(value) for name, value in sample.kwargs.items()}
    return dataclasses.replace(sample, args=tuple(cut(v) for v in sample.args), kwargs=kwargs)


@contextlib.contextmanager
def _same_mode(sample: Sample) -> Iterator[None]:
    """Inference mode for what was captured in it (its tensors take no gradients), else no gradients; no dropout."""
    training = [m for m in sample.module.modules() if m.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode() if sample.inference else torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _outputs(module: nn.Module, sample: Sample) -> list[Tensor]:
    """The floating-point tensors of the output; caches that the call grew are its affair and not compared."""
    args, kwargs = copy.deepcopy((sample.args, sample.kwargs))
    found = tensors(module(*args, **kwargs))
    if not found:
        raise TypeError(f"{type(module).__name__} returned no floating-point tensor to compare")
    return [t.clone() for t in found]


def tensors(value: Any) -> list[Tensor]:
    """The floating-point tensors in a tensor, a sequence or a mapping (transformers' outputs are mappings)."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in tensors(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors(item)]
    return []


def _error(values: list[Tensor], truths: list[Tensor]) -> float:
    """|values - truths| / |truths| over all of them as one vector; inf where shapes or NaN differ."""
    if len(values) != len(truths) or any(v.shape != t.shape for v, t in zip(values, truths, strict=True)):
        return float("inf")
    distance, size = 0.0, 0.0
    for value, truth in zip(values, truths, strict=True):
        value, truth = value.double(), truth.double()
        if not torch.equal(value.isfinite(), truth.isfinite()):
            return float("inf")
        value, truth = value.nan_to_num(0.0, 0.0, 0.0), truth.nan_to_num(0.0, 0.0, 0.0)
        distance += float((value - truth).norm()) ** 2
        size += float(truth.norm()) ** 2
    return float((distance / max(size, 1e-300)) ** 0.5)


def in_float64(value: Any) -> Any:
    """A deep copy with every floating-point tensor in float64, inside objects such as caches as well."""
    return _widen(copy.deepcopy(value), set())


def _widen(value: Any, seen: set[int]) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if id(value) in seen:
        return value
    if isinstance(value, dict):
        seen.add(id(value))
        for key in value:
            value[key] = _widen(value[key], seen)
    elif isinstance(value, list):
        seen.add(id(value))
        value[:] = [_widen(item, seen) for item in value]
    elif type(value) is tuple:
        return tuple(_widen(item, seen) for item in value)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)) and not callable(value):
        seen.add(id(value))
        for name, item in vars(value).items():
            if item is not None and not isinstance(item, (str, int, float, torch.dtype, torch.device)):
                value.__dict__[name] = _widen(item, seen)
    return value


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 1 << 62
