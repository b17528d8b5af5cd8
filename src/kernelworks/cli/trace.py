"""``kernelworks diagnose --trace FILE``: a trace that somebody else recorded."""

from __future__ import annotations

from pathlib import Path

from kernelworks.cli.console import faults, print_json, show
from kernelworks.cli.files import write
from kernelworks.cli.names import readable_file

__all__ = ["diagnose_trace_file"]


def diagnose_trace_file(path: Path, out: Path | None, *, json: bool) -> int:
    """Prints what a trace tells, and with ``out`` writes it as a page and as JSON. Gives the exit code."""
    readable_file(path)
    from kernelworks.diagnose.foreign_trace import TraceError, diagnose_trace
    from kernelworks.records import to_json
    from kernelworks.report import terminal as console
    from kernelworks.report.html import render_page
    from kernelworks.report.trace import trace_diagnosis

    with faults((TraceError, FileNotFoundError)), console.progress("diagnose") as progress:
        progress(f"reading {path}")
        record = diagnose_trace(path)
    if json:
        print_json(record)
    else:
        show(trace_diagnosis(record, console.stdout().width))
    if out is not None:
        name = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
        write(out / f"{name}.html", render_page([record]))
        write(out / f"{name}.json", to_json(record) + "\n")
        console.stderr().print(f"\nthe page: {out / name}.html   the record: {out / name}.json", soft_wrap=True)
    return 0
