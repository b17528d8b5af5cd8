"""The arguments of a call with other values, and of another size: what a compiler made must be right on them too.

A compiler may be wrong where the program's own data do not show it: a reduction of small integers that begins at 0, a
tail that happens to hold zeros. Values are drawn within what the data allow: integers lie between the least and the
largest that were seen, since they may be indices; those in ascending order (offsets, positions), masks, and infinities
stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from kernelworks.contract.leaves import leaves
from kernelworks.diagnose.sites.modules import Sample
from kernelworks.diagnose.snapshot import duplicate, map_tensors, put_values

__all__ = ["MOST_IDS", "ZEROS", "drawn_samples", "shortened_sample", "shorter_samples"]

MOST_IDS = 1024
WIDER, LARGE = 10.0, 1e3  # times the spread of what was seen
ZEROS = "zeros and the least integers"
Draw = Callable[[Tensor, torch.Generator], Tensor]


def drawn_samples(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The same call with other values, each by what they are. None if no argument can be drawn anew."""
    given = leaves((sample.args, sample.kwargs)).values()
    if not any(_is_free_float(t) or _is_free_integer(t) for t in given):
        return
    for number, (name, (floats, integers)) in enumerate(DRAWS.items()):
        source = torch.Generator().manual_seed(number)

        def changed(t: Tensor, floats: Draw = floats, integers: Draw = integers, g: torch.Generator = source) -> Tensor:
            if _is_free_float(t):
                return _like(t, floats(t.detach().to("cpu", torch.float64), g))
            return _like(t, integers(t.detach().cpu(), g)) if _is_free_integer(t) else t

        args, kwargs = map_tensors((sample.args, sample.kwargs), changed)
        yield name, dataclasses.replace(sample, args=args, kwargs=kwargs, stands=1)


def shorter_samples(sample: Sample) -> Iterator[tuple[str, Sample]]:
    """The same call with the last element of a dimension left out that its arguments share: the batch, the sequence."""
    given = [t for t in leaves((sample.args, sample.kwargs)).values() if _is_plain(t)]
    for dim in (0, 1):
        sizes = Counter(t.shape[dim] for t in given if t.dim() > dim + 1)
        size = next((size for size, _ in sizes.most_common(1) if size > 2), 0)
        if not size:
            continue

        def cut(t: Tensor, dim: int = dim, size: int = size) -> Tensor:
            if not _is_plain(t) or t.dim() <= dim or t.shape[dim] != size:
                return t
            return _like(t, t.detach().narrow(dim, 0, size - 1))

        args, kwargs = map_tensors((sample.args, sample.kwargs), cut)
        yield (
            f"{size - 1} in dimension {dim}, not {size}",
            dataclasses.replace(sample, args=args, kwargs=kwargs, stands=1),
        )


def shortened_sample(sample: Sample) -> Sample:
    """On a GPU, with a large batch of token ids: its first sequence, and no more of it than MOST_IDS tokens. What is
    compared does not depend on the batch, and float64 takes sixteen times as long there."""
    values = [v for v in (*sample.args, *sample.kwargs.values()) if isinstance(v, Tensor)]
    ids = next((v for v in values if v.is_cuda and v.dim() == 2 and not v.is_floating_point()), None)
    if ids is None or ids.numel() <= MOST_IDS or any(v.shape[:2] != ids.shape for v in values):
        return sample

    def cut(value: object) -> object:
        return value[:1, :MOST_IDS].contiguous() if isinstance(value, Tensor) else value

    kwargs = {name: cut(value) for name, value in sample.kwargs.items()}
    return dataclasses.replace(sample, args=tuple(cut(v) for v in sample.args), kwargs=kwargs)


def _like(tensor: Tensor, values: Tensor) -> Tensor:
    """Those values in the tensor's dtype and place, infinities and NaN where it has them. Of the same size it lies in
    memory as the tensor does, gaps and repeats too: what was compiled for the tensor is what is asked."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        if values.shape == tensor.shape:
            made: Tensor = duplicate(tensor.detach())
        else:
            made = tensor.detach()[tuple(slice(0, size) for size in values.shape)].clone()
        values = values.to(made.device, made.dtype)
        put_values(made, torch.where(made.isfinite(), values, made) if made.is_floating_point() else values)
    if tensor.requires_grad and not made.is_inference():
        made.requires_grad_()
    return made


def _is_free_float(tensor: Tensor) -> bool:
    """Whether it holds various numbers; a mask holds one beside its infinities."""
    if tensor.dtype not in FLOATS or not _is_plain(tensor) or not tensor.numel():
        return False
    finite = tensor.detach()[tensor.detach().isfinite()]
    return finite.numel() > 0 and bool((finite != finite[0]).any())


def _is_free_integer(tensor: Tensor) -> bool:
    if tensor.dtype not in INTEGERS or not _is_plain(tensor) or tensor.numel() < 2:
        return False
    values = tensor.detach()
    if values.dim() and values.shape[-1] > 2 and bool((values.diff(dim=-1) >= 0).all()):
        return False  # offsets, positions
    return bool(values.max() > values.min())


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def _normal(times: float) -> Draw:
    def draw(x: Tensor, g: torch.Generator) -> Tensor:
        spread = x[x.isfinite()].std(correction=0) * times
        return torch.randn(x.shape, generator=g, dtype=torch.float64, device="cpu") * spread

    return draw


def _edges(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.where(torch.rand(x.shape, generator=g, device="cpu") < 0.5, x.min(), x.max())


def _between(x: Tensor, g: torch.Generator) -> Tensor:
    return torch.randint(int(x.min()), int(x.max()) + 1, x.shape, generator=g, device="cpu")


def _in_upper_half(x: Tensor, g: torch.Generator) -> Tensor:
    low, high = int(x.min()), int(x.max())
    return torch.randint((low + high + 1) // 2, high + 1, x.shape, generator=g, device="cpu")


def _in_lower_half(x: Tensor, g: torch.Generator) -> Tensor:
    low, high = int(x.min()), int(x.max())
    return torch.randint(low, (low + high) // 2 + 1, x.shape, generator=g, device="cpu")


DRAWS: dict[str, tuple[Draw, Draw]] = {
    "normal values, ten times as wide": (_normal(WIDER), _between),
    ZEROS: (lambda x, g: torch.zeros_like(x), lambda x, g: torch.full_like(x, int(x.min()))),
    "negative values and integers of the upper half": (lambda x, g: -x.abs(), _in_upper_half),
    "large values and integers at the ends of their range": (_normal(LARGE), _edges),
    "small values and integers of the lower half": (_normal(1 / LARGE), _in_lower_half),
}
