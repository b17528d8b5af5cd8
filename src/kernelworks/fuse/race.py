"""Whether a kernel is quicker than the function that it was made of: benchmarked once for each call signature, kept as
a tuning record, and decided by the rules that all our ops have (``dispatch/tuning_records.py``)."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from kernelworks.contract import Contract, Kernel, Request, TensorSpec, spec
from kernelworks.dispatch import tuning_records
from kernelworks.dispatch.tuning_records import TuningRecord, Verdict
from kernelworks.fuse.making import FusedKernel
from kernelworks.machine import place_of
from kernelworks.measure.clock.duel import duel
from kernelworks.measure.clock.turns import measuring_alone

__all__ = ["decide", "record_of"]

ALIKE = 4  # so many calls of a bucket that agree are enough: the next ones follow them
WAIT_S = 5.0  # for other processes that measure

Call = Callable[[], object]
SIGNATURE_TYPES = (Tensor, bool, int, float, str)


class _Signature:
    """What tuning records ask of a contract."""

    bucket = None

    def dims(self, request: Request) -> Mapping[str, int]:
        """The sizes of all tensors."""
        specs = ((name, t) for name, t in request.args.items() if isinstance(t, TensorSpec))
        return {f"{name}.{d}": n for name, t in specs for d, n in enumerate(t.shape)}


SIGNATURE = cast(Contract, _Signature())


def decide(kernels: Sequence[FusedKernel], leaves: Sequence[Any], pass_: str, ours: Call, eager: Call) -> Verdict:
    """What serves such calls: ``way`` is the kernel's target, or "" where the function itself is as quick. ``pass_`` is
    "forward", or "training" for a forward with its gradients. Cost: 0.3 s, once for a call signature."""
    name = "fuse_" + _digest(kernels)[:16]
    request, ways = _request(name, leaves, pass_), {kernels[0].target: (_kernel(kernels),)}
    exact, near = tuning_records.valid_records(name, SIGNATURE, request, ways)
    found = tuning_records.verdict(name, SIGNATURE, request, ways)
    if any(not t.is_noisy for t in exact) or (not exact and (found.way or _agree(near))):
        return found
    record = record_of(name, request, ways, ours, eager)
    if record.is_noisy:  # a later process measures again
        tuning_records.remember(record)
    else:
        try:
            tuning_records.write(record)
        except OSError:
            tuning_records.remember(record)
    return tuning_records.verdict(name, SIGNATURE, request, ways)


def _agree(near: Sequence[TuningRecord]) -> bool:
    """Whether calls like this one were lost, all of them."""
    clear = [t for t in near if not t.is_noisy]
    return len(clear) >= ALIKE and all(t.ratio < tuning_records.MARGIN for t in clear)


def record_of(
    name: str, request: Request, ways: Mapping[str, Sequence[Kernel]], ours: Call, eager: Call
) -> TuningRecord:
    """The race of one call."""
    device = request.device
    wait = (lambda: torch.cuda.synchronize(device)) if device.startswith("cuda") else None
    with measuring_alone(lambda said: None, most_s=WAIT_S):
        found = duel(ours, eager, wait).result
    ((way, kernels),) = ways.items()
    source_hash, toolchain = tuning_records.sources_of(kernels)
    return TuningRecord(
        op=name, pass_=request.pass_, way=way, bucket=tuning_records.bucket_of(SIGNATURE, request),
        call=tuning_records.call_of(request), place=place_of(device), threads=tuning_records.threads_of(request),
        source_hash=source_hash, toolchain=toolchain, torch=tuning_records.torch_version(), whole=found,
        backward=found if request.pass_ == "training" else None,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"), among=tuning_records.ways_digest(ways),
    )  # fmt: skip


def _digest(kernels: Sequence[FusedKernel]) -> str:
    return hashlib.sha256("\0".join(k.text for k in kernels).encode()).hexdigest()


def _kernel(kernels: Sequence[FusedKernel]) -> Kernel:
    """As a tuning record names it."""
    target, digest = kernels[0].target, _digest(kernels)
    return Kernel(
        name=target, target=target, load=lambda pass_: kernels[0].launch, hashed=lambda kernel: digest,
        toolchain=lambda: " ".join(kernels[0].toolchain),
    )  # fmt: skip


def _request(name: str, leaves: Sequence[Any], pass_: str) -> Request:
    args = {f"a{i}": spec(v) if isinstance(v, SIGNATURE_TYPES) else None for i, v in enumerate(leaves)}
    wanted = [f"a{i}" for i, v in enumerate(leaves) if isinstance(v, Tensor) and v.requires_grad]
    numbers = frozenset(name for name, value in args.items() if type(value) in (int, float))
    return Request(
        name, pass_, args, torch.get_num_threads(), wanted=tuple(wanted) if pass_ == "training" else (), free=numbers
    )
