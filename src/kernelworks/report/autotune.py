"""What ``autotune`` found, on the terminal: the configurations that were tried, fastest first; then for each call
signature torch's time beside ours, and which of them runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.text import Text

from kernelworks.records import AutotunedCall, AutotuneResult, ConfigCandidate, ConfigTuning
from kernelworks.report import quantity, verify
from kernelworks.report.table import Table

__all__ = ["autotune_result", "config_tunings", "text"]


def autotune_result(record: AutotuneResult) -> RenderableType:
    """What ``kernelworks autotune`` prints."""
    lines: list[RenderableType] = []
    if record.configs:
        lines += [config_tunings(record.configs), Text()]
    if record.verifications:
        lines += [verify.verifications(record.verifications), Text()]
    for op in dict.fromkeys(call.op for call in record.calls):
        lines += [Text(op, style="bold"), _table([c for c in record.calls if c.op == op]), Text()]
    return Group(*lines, *(Text(line, style="yellow") for line in record.notes), Text(_summary(record)))


def text(record: AutotuneResult) -> str:
    """The same without a terminal: one line a configuration, verification or call."""
    lines = [_config_line(tuning) for tuning in record.configs]
    for verification in record.verifications:
        verdict = "certified" if verification.certified else "not certified: the old table is back"
        lines.append(f"{verification.op}.{verification.kernel}: {verdict}")
    for call in record.calls:
        torch, ours, ratio = _figures(call)
        times = f"torch {torch}, ours ({call.kernel}) {ours}, {ratio}; " if call.kernel else ""
        lines.append(f"{call.op} {call.what} {call.call}: {times}takes {call.taken}: {call.why}")
    return "\n".join([*lines, *record.notes, _summary(record)])


def _table(calls: list[AutotunedCall]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("call", overflow="fold", min_width=24)
    table.add_column("", no_wrap=True)
    for name in ("torch", "ours", "torch / ours"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("takes", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=16)
    for call in calls:
        ours = call.taken != "torch"
        style = "green" if ours else ""
        table.add_row(call.call, call.what, *_figures(call), Text(call.taken, style=style), Text(call.why, style="dim"))
    return table


def _figures(call: AutotunedCall) -> tuple[str, str, str]:
    if not call.torch_us:
        return "-", "-", "-"
    return quantity.seconds(call.torch_us / 1e6), quantity.seconds(call.ours_us / 1e6), quantity.ratio(call.ratio)


def _summary(record: AutotuneResult) -> str:
    signatures = {(call.op, call.what, call.call) for call in record.calls}
    benchmarked = sum(call.rounds > 0 for call in record.calls)
    ours = sum(call.taken != "torch" for call in record.calls)
    if not signatures:
        return _config_summary(record) if record.configs else "no call of an op of ours was made: nothing to autotune"
    threads = f"{record.threads} thread{'s' if record.threads > 1 else ''}"
    return (
        f"{_count(len(signatures), 'call signature')} on {', '.join(record.kinds)} with {threads}: {ours} "
        f"{'takes' if ours == 1 else 'take'} a kernel of ours, the others torch; {benchmarked} benchmarked now, in "
        f"{quantity.seconds(record.seconds)}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ---------------------------------------------------------------- configurations


def config_tunings(results: Sequence[ConfigTuning]) -> RenderableType:
    """The configurations that ``kernelworks autotune --configs`` tried."""
    lines: list[RenderableType] = []
    for result in results:
        sizes = ", ".join(f"{name} {size}" for name, size in result.dims.items())
        title = f"{result.op}.{result.op_kernel} {result.kernel}"
        place = f"  {result.case} {result.dtype} ({sizes})"
        lines += [Text.assemble((title, "bold"), (place, "dim")), _candidate_table(result)]
    return Group(*lines)


def _candidate_table(result: ConfigTuning) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, show_header=False)
    table.add_column(min_width=40)
    table.add_column(justify="right")
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    today = next((c.median_us for c in result.candidates if c.set == result.used), None)
    for candidate in sorted(result.candidates, key=lambda c: c.median_us or float("inf")):
        table.add_row(*_candidate_cells(candidate, result, today))
    return table


def _candidate_cells(
    candidate: ConfigCandidate, result: ConfigTuning, today: float | None
) -> tuple[Text, str, str, Text]:
    words = _settings(candidate.set)
    if candidate.wrong or candidate.median_us is None:
        return Text(words, style="dim"), "", "", Text(candidate.wrong or "not timed", style="red")
    chosen = candidate.set == result.chosen
    note = "used today" if candidate.set == result.used else ""
    if chosen:
        note = "used today, still the best" if note else "best"
    spread = ((candidate.high_us or 0.0) - (candidate.low_us or 0.0)) / candidate.median_us / 2
    time = f"{quantity.seconds(candidate.median_us / 1e6)} ±{quantity.percent(spread)}"
    speedup = quantity.ratio(today / candidate.median_us) if today else "-"
    return Text(words, style="green" if chosen else ""), time, speedup, Text(note, style="green" if chosen else "dim")


def _settings(settings: dict[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _config_line(tuning: ConfigTuning) -> str:
    better = tuning.chosen != tuning.used
    verdict = f"{_settings(tuning.chosen)} is faster than {_settings(tuning.used)}" if better else "none is faster"
    tried = _count(len(tuning.candidates), "configuration")
    return f"{tuning.op}.{tuning.op_kernel} {tuning.kernel} {tuning.case} {tuning.dtype}: {tried} tried: {verdict}"


def _config_summary(record: AutotuneResult) -> str:
    """The last line if no call was benchmarked."""
    better = sum(tuning.chosen != tuning.used for tuning in record.configs)
    tried = sum(len(tuning.candidates) for tuning in record.configs)
    sizes = _count(len(record.configs), "size")
    return f"{_count(tried, 'configuration')} tried for {sizes}: {better} faster than today's; nothing was written"
