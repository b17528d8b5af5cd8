"""Timings as if calls had been raced on this machine, and a place to keep them where there are no others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from eligible import ROWS

from kernelworks import certificates, environment, timings
from kernelworks.machine import place_of
from kernelworks.op import OPS
from kernelworks.plans import forget_all
from kernelworks.timings import Raced, Timing

ROW = ROWS[-1]


@contextlib.contextmanager
def nothing_timed(folder: Path) -> Iterator[None]:
    """Within, rows are chosen by timings, of which there are none yet, and every row is proved."""
    own = environment.cache_dir
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWORKS_CHOOSE", "timed")
        patch.setattr(environment, "cache_dir", lambda kind: folder / kind if kind == "timings" else own(kind))
        patch.setattr(timings, "SHIPPED", folder / "timed")
        patch.setattr(certificates, "invalid", lambda *args: None)
        timings.reread()
        forget_all()
        yield
    timings.reread()
    forget_all()


def raced(op: str, *args: Any, ratio: float = 1.5, wanted: tuple[str, ...] = ()) -> None:
    """Keeps the timing of a call: torch's time over ours is ``ratio``. With ``wanted`` it is of a training step."""
    of, pass_ = OPS[op], "training" if wanted else "forward"
    request = of.request(pass_, args, wanted)
    rows = (of.row(ROW),) * (2 if wanted else 1)
    sources, toolchain = timings.sources_of(rows)
    one = Raced(1.0, ratio, (ratio, ratio), 0.01)
    timings.write(
        Timing(
            op=op, pass_=pass_, way="+".join(r.name for r in rows), bucket=timings.bucket_of(of.contract, request),
            call=timings.call_of(request), place=place_of("cpu"), threads=torch.get_num_threads(),
            source_hash=sources, toolchain=toolchain, torch=timings.torch_version(), whole=one,
            backward=one if wanted else None, date="2026-11-22",
        )
    )  # fmt: skip
    forget_all()
