"""Times ops against their baselines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from kernelworks.cli.console import FAILED, check_device, device_named, faults, measuring, print_json, show
from kernelworks.cli.files import writable
from kernelworks.cli.names import check_op
from kernelworks.cli.options import Device, Json, Rough

__all__ = ["VERBS"]


def bench(
    op: Annotated[str | None, typer.Argument(help="One op; every op without it.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="For every variant; torch's own count without it.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Also with the caches overwritten before each call.")] = False,
    device: Device = None,
    kernels: Annotated[
        list[str] | None, typer.Option("--kernel", help="Time this kernel too, by name; may be repeated.")
    ] = None,
    cases: Annotated[list[str] | None, typer.Option("--case", help="Only this case; may be repeated.")] = None,
    save: Annotated[Path | None, typer.Option("--save", help="Also write a document with machine and commit.")] = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """Times ops against torch eager, torch.compile and, where installed, tuned baselines: interleaved, each case gated.

    A case whose outputs were wrong for any variant gives no figure and exit code 1. On a GPU L2 is emptied before each
    call, and one variant is a device copy of the same bytes. While other processes keep the cores busy there is no
    figure (exit code 3); with --rough there are wide ones, marked, and the map does not keep them.
    """
    check_op(op)
    check_device(device)
    from kernelworks.measure.bench import bench as run
    from kernelworks.measure.bench import check_names as check
    from kernelworks.measure.bench import save_results as write
    from kernelworks.measure.bench.kernel_map import keep_benches
    from kernelworks.ops import ops_named
    from kernelworks.records import BenchResult
    from kernelworks.report import bench as report

    where, save = device_named(device), writable(save)
    results: list[BenchResult] = []
    with faults((ValueError,), rough=True), measuring("bench") as progress:
        caches = ("warm", "cold") if cold else ("warm",)
        chosen = ops_named(op)
        for found in chosen:
            check(found.name, cases=cases, kernels=kernels or (), device=where)
        for found in chosen:
            results += run(
                found.name, cases=cases, threads=threads, kernels=kernels or (), caches=caches, progress=progress,
                device=where, rough=rough,
            )  # fmt: skip
    if not cases:
        with contextlib.suppress(OSError):  # a map without speeds is no reason to lose the results
            keep_benches([result for result in results if not result.rough])
    if save is not None:
        write(
            results,
            save,
            " ".join(("kernelworks bench", *([op] if op else []), *(["--device", where] if device else []))),
        )
    if json:
        print_json(results)
    else:
        show(report.benches(results))
    if any(result.gate for result in results):
        raise typer.Exit(FAILED)


VERBS: dict[str, Callable[..., None]] = {"bench": bench}
