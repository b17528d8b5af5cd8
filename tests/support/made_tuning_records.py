"""Tuning records as if calls had been benchmarked on this machine, and a place to keep them where there are no
others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from eligible import KERNELS

from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.op import OPS
from kernelworks.dispatch.plans import forget_all
from kernelworks.dispatch.tuning_records import RaceResult, TuningRecord
from kernelworks.machine import environment, place_of

KERNEL = KERNELS[-1]


@contextlib.contextmanager
def no_tuning_records(folder: Path) -> Iterator[None]:
    """Within, kernels are chosen by tuning records, of which there are none yet, and every kernel is verified."""
    own = environment.cache_dir
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWORKS_CHOOSE", "timed")
        patch.setattr(environment, "cache_dir", lambda kind: folder / kind if kind == "tuning_records" else own(kind))
        patch.setattr(tuning_records, "SHIPPED_DIR", folder / "timed")
        patch.setattr(certificates, "invalid_reason", lambda *args: None)
        tuning_records.reread()
        forget_all()
        yield
    tuning_records.reread()
    forget_all()


def add_tuning_record(op: str, *args: Any, ratio: float = 1.5, wanted: tuple[str, ...] = ()) -> None:
    """Keeps the tuning record of a call: torch's time over ours is ``ratio``. With ``wanted`` it is of a training
    step."""
    of, pass_ = OPS[op], "training" if wanted else "forward"
    request = of.request(pass_, args, wanted)
    kernels = (of.kernel(KERNEL),) * (2 if wanted else 1)
    sources, toolchain = tuning_records.sources_of(kernels)
    one = RaceResult(1.0, ratio, (ratio, ratio), 0.01)
    tuning_records.write(
        TuningRecord(
            op=op, pass_=pass_, way="+".join(r.name for r in kernels),
            bucket=tuning_records.bucket_of(of.contract, request), call=tuning_records.call_of(request),
            place=place_of("cpu"), threads=torch.get_num_threads(),
            source_hash=sources, toolchain=toolchain, torch=tuning_records.torch_version(), whole=one,
            backward=one if wanted else None, date="2026-11-22",
        )
    )  # fmt: skip
    forget_all()
