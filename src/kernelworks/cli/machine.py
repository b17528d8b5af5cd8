"""What this machine was measured to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelworks.cli.console import check_device, device_named, faults, first_line, measuring, print_json, show
from kernelworks.cli.files import writable, write
from kernelworks.cli.options import Device, Json, Rough

__all__ = ["VERBS"]


def machine(
    again: Annotated[bool, typer.Option("--again", help="Measure even where the cache has peaks.")] = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the page to this file.")] = None,
    device: Device = None,
    rough: Rough = False,
    json: Json = False,
) -> None:
    """What this machine was measured to do: bandwidths, rates, floors, the memory hierarchy and the roofline.

    The CPU, and its GPU where there is one; with --device one of them. Measured once, each in under a minute, and
    cached with its date. Refuses (exit code 3) while other processes keep the cores busy, since a peak measured
    then would be wrong; with --rough it is measured all the same, marked, and not cached.
    """
    check_device(device)
    from kernelworks.build import BuildError, background
    from kernelworks.machine import has_gpu
    from kernelworks.measure.peaks import get_peaks, unmeasured_peaks
    from kernelworks.records import GpuPeaks, Peaks
    from kernelworks.report import terminal as console

    first, html = device_named(device), writable(html)
    records: list[Peaks | GpuPeaks] = []
    with faults(rough=True), measuring("measuring this machine") as progress:
        if first == "cpu":
            asked: dict[str, Any] = {"again": again} | ({"rough": True} if rough else {})
            try:
                records.append(get_peaks(progress, **asked))
            except BuildError as error:
                records.append(unmeasured_peaks(first_line(error)))
        if first == "cuda" or (device is None and has_gpu()):
            records.append(get_peaks(progress, again=again, device="cuda", rough=rough))
    measured = [record for record in records if not getattr(record, "unknown", "")]
    if html is not None and measured:
        from kernelworks.report import page

        write(html, page.machine(*measured))
    if json:
        print_json(records[0] if len(records) == 1 else records)
        return
    from rich.text import Text

    from kernelworks.report.gpu import gpu
    from kernelworks.report.machine import peaks as picture

    width = console.stdout().width
    for record in records:
        show(gpu(record, width) if isinstance(record, GpuPeaks) else picture(record, width))
    why = background.fallback_reason()
    show(Text(f"calls of ops go through {f'Python: {why}' if why else 'C++'} (docs/explanation/dispatch.md)"))


VERBS: dict[str, Callable[..., None]] = {"machine": machine}
