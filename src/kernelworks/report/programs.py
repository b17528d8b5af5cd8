"""The suite of programs: a line for each run, the table of a record, and what it comes to.

A row is one program under one mode. Under one of torch's switches ``share`` is its time over eager's, measured in
turns; so it is under ``plan``, that of a fix in another process, where ``then`` is the share that the fix had measured.
Under ``fix`` it is ``after_s`` over ``before_s``. So each is a share of the eager time of its own process, and
what is compared are those. Torch's best switch for a program is the least share of those that ran, eager (1) among
them.

Eager times of two processes have been a third apart, and such shares compare the processes besides. So under ``plan``
torch's switches have turns in the same process, and ``switches`` are their shares there. Where a record has those of
all its programs, they are what a reader of its chart is told. A program that has no process of its own for any of
torch's switches has those alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernelworks.records import history
from kernelworks.report import quantity

__all__ = ["chart", "is_rough", "line", "result", "summary", "table"]

SWITCHES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
FIX, BACKEND, INDUCTOR, PLAN = "fix", "kernelworks", "default", "plan"
SAME_GAIN_SHARE = 0.05  # of the time with a plan, within which another process gains the same by it
ROUGH_SPREAD = 0.10  # of the time: runs that lie further apart say that other processes used the machine

Row = Mapping[str, Any]


def _share(row: Row | None) -> float | None:
    """The time under this mode over eager's; None where it did not run."""
    if row is None or "failed" in row:
        return None
    if row["mode"] == FIX:
        return float(row["after_s"] / row["before_s"])
    return float(row["share"])


def is_rough(row: Row) -> bool:
    """Whether other processes had the machine meanwhile, or the runs lay so far apart that the figure is a wide one."""
    if "failed" in row:
        return False
    if row["mode"] == FIX:
        return bool(
            row.get("ambiguous") or row.get("rough") or row.get("noise_s", 0.0) > ROUGH_SPREAD * row["before_s"]
        )
    return bool(row.get("loud") or row["spread"] > ROUGH_SPREAD)


def _prediction_held(row: Row) -> bool | None:
    """Whether the gain was as predicted; None where nothing was predicted."""
    if "failed" in row or row.get("predicted_gain_s") is None:
        return None
    return history.is_prediction_accurate(row["predicted_gain_s"], row["gain_s"], row["before_s"])


def line(row: Row) -> str:
    """One row, as the runner prints it."""
    start = f"{row['program']:15s} {row['mode']:26s} "
    share = _share(row)
    if share is None:
        return f"{start}FAILED: {row['failed']}"
    if row["mode"] == FIX:
        predicted = row["predicted_gain_s"]
        said = "nothing" if predicted is None else quantity.seconds(predicted)
        refused = f"; refused: {row['refused']}" if row.get("refused") else ""
        return (
            f"{start}{quantity.seconds(row['before_s']):>8s} -> {quantity.seconds(row['after_s']):>8s} "
            f"{quantity.ratio(1 / share):>6s} predicted {said}, got {quantity.seconds(row['gain_s'])}; "
            f"{row['took_s']:.0f} s{refused}"
        )
    differs = "" if row.get("differs") is None else f", differs by {row['differs']:.1g}"
    beside = ""
    if row["mode"] == PLAN:
        beside = f" ({quantity.ratio(1 / row['then'])} by the fix), in place in {quantity.seconds(row['apply_s'])}"
        beside += "".join(f", {mode} {quantity.ratio(1 / its)}" for mode, its in row.get("switches", {}).items())
    return (
        f"{start}{quantity.seconds(row['eager_ms'] / 1e3):>8s} -> {quantity.seconds(row['ms'] / 1e3):>8s} "
        f"{quantity.ratio(1 / share):>6s} +-{100 * row['spread']:.0f}%{beside}, compiling {row['compile_s']:.0f} s"
        f"{differs}"
    )


class _Program:
    """What is known of one program."""

    def __init__(self, name: str, rows: Iterable[Row]) -> None:
        self.name = name
        self.modes = {row["mode"]: row for row in rows if row["program"] == name}
        self.fix = _share(self.modes.get(FIX))
        ran = {mode: share for mode in SWITCHES if (share := _share(self.modes.get(mode))) is not None}
        self.alone = alone = any(mode in self.modes for mode in SWITCHES)
        ran = ran if alone else self.plan_switches
        self.best = min(ran, key=lambda mode: ran[mode]) if ran and min(ran.values()) < 1 else "eager"
        self.least = min([1.0, *ran.values()])
        self.switched = alone or bool(self.switches_beside_plan)
        apart = self.least / self.fix if self.fix and alone else None
        self.together = self._together(apart)
        self.over = apart if alone else self.together

    @property
    def plan_switches(self) -> dict[str, float]:
        """The shares of those of torch's switches that ran in the process of the plan."""
        return dict(self.modes.get(PLAN, {}).get("switches") or {})

    def _together(self, apart: float | None) -> float | None:
        """Torch's best over the fix's plan, both in one process; of a fix that found nothing eager stands for it."""
        plan, fix, switches = self.modes.get(PLAN), self.modes.get(FIX), self.plan_switches
        nothing = self.fix == 1 and fix is not None and not fix.get("plan")
        if plan is None or not self.switches_beside_plan:
            return apart if nothing else None
        return min([1.0, *switches.values()]) / (1.0 if nothing else float(plan["share"]))

    def switch_row(self, mode: str) -> Row | None:
        """The row that says its time under one of torch's switches: its own, else that of the plan."""
        return self.modes.get(mode, self.modes.get(PLAN) if mode in self.plan_switches else None)

    @property
    def switches_beside_plan(self) -> set[str]:
        """The switches that had a process of the plan, whether they ran there or raised."""
        return {*self.plan_switches, *self.modes.get(PLAN, {}).get("raised", ())}

    def eager(self) -> str:
        """Its time as its author wrote it: the least of the processes' medians, since neighbours only add to it."""
        best = self._least_eager()
        return "-" if best is None else f"{_mark(best)}{quantity.seconds(_eager_s(best))}"

    def at(self, share: float) -> str:
        """Its time at a share of that."""
        best = self._least_eager()
        return "-" if best is None else f"{_mark(best)}{quantity.seconds(share * _eager_s(best))}"

    def _least_eager(self) -> Row | None:
        return min((row for row in self.modes.values() if "failed" not in row), key=_eager_s, default=None)


def _eager_s(row: Row) -> float:
    return float(row["before_s"]) if row["mode"] == FIX else float(row["eager_ms"]) / 1e3


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def _programs(rows: Sequence[Row]) -> list[_Program]:
    return [_Program(name, rows) for name in dict.fromkeys(row["program"] for row in rows)]


def _over(named: str, ratios: Sequence[float]) -> str:
    mean, least = quantity.ratio(_mean(ratios)), quantity.ratio(min(ratios))
    return f"{named}: geometric mean {mean}, least {least}, of {len(ratios)}"


def summary(rows: Sequence[Row]) -> str:
    """The suite in one sentence: geometric means, the least, and how many predictions held."""
    found = _programs(rows)
    said = []
    over = [p.over for p in found if p.over]
    together = [p.together for p in found if p.together]
    if over:
        said += [
            _over("the fix over torch's best switch", over),
            *([_over("its plan over that in one process", together)] if _beside(found) else []),
            _over("over eager", [1 / p.fix for p in found if p.fix]),
        ]
    else:
        switched = [1 / p.least for p in found if p.switched]
        said += [_over("torch's best switch over eager", switched)] if switched else []
    beside = [
        inductor / share
        for p in found
        if (share := _share(p.modes.get(BACKEND))) and (inductor := _share(p.modes.get(INDUCTOR)))
    ]
    said += [_over('`backend="kernelworks"` over inductor', beside)] if beside else []
    held = [h for p in found if FIX in p.modes and (h := _prediction_held(p.modes[FIX])) is not None]
    said += [f"{sum(held)} of {len(held)} predictions held"] if held else []
    budgets = _budgets([p.modes[FIX] for p in found if FIX in p.modes])
    said += [f"each fix had a budget of {budgets}"] if budgets else []
    said += _again([p.modes[PLAN] for p in found if PLAN in p.modes])
    wide = sum(map(is_rough, rows))
    said += [f"{wide} of {len(rows)} figures are rough"] if wide else []
    text = "; ".join(said) or "nothing is measured yet"
    return text[0].upper() + text[1:]


def _budgets(fixes: Sequence[Row]) -> str:
    """The seconds that fixes had, where they are on record; "" if they are on none."""
    budgets = sorted(row["budget_s"] for row in fixes if row.get("budget_s"))
    if not budgets:
        return ""
    least, most = f"{budgets[0]:.0f}", f"{budgets[-1]:.0f}"
    return f"{least if least == most else f'{least} to {most}'} s"


def _beside(found: Sequence[_Program]) -> bool:
    """Whether plans were held against torch's switches in one process."""
    return any(p.switches_beside_plan for p in found)


def _again(plans: Sequence[Row]) -> list[str]:
    """How many plans gained the same in a process of their own, and what it took to put them in place."""
    ran = [row for row in plans if "failed" not in row]
    if not plans:
        return []
    same = sum(abs(row["share"] / row["then"] - 1) <= SAME_GAIN_SHARE for row in ran)
    slowest = f", in place in {quantity.seconds(max(row['apply_s'] for row in ran))} at the most" if ran else ""
    beside = " beside compilers" if ran else ""
    return [
        f"{same} of {len(plans)} plans gained the same within {100 * SAME_GAIN_SHARE:.0f}% in another "
        f"process{slowest}{beside}"
    ]


# ---------------------------------------------------------------- the table


def _mark(row: Row) -> str:
    return "~" if is_rough(row) else ""


def _switch(program: _Program) -> str:
    if not program.switched:
        return ""
    of = (program.best,) if program.best != "eager" else SWITCHES
    rough = any(is_rough(row) for mode in of if (row := program.switch_row(mode)) is not None)
    said = "none" if program.best == "eager" else f"{quantity.ratio(1 / program.least)} {program.best}"
    return f"{'~' if rough else ''}{said}"


def _together(program: _Program) -> str:
    plan = program.modes.get(PLAN)
    return f"{_mark(plan) if plan else ''}{quantity.ratio(program.together)}" if program.together else ""


def _prediction_cell(row: Row | None) -> str:
    if row is None or "failed" in row:
        return ""
    predicted = row["predicted_gain_s"]
    said = "-" if predicted is None else quantity.seconds(predicted)
    return f"{said}, {quantity.seconds(row['gain_s'])}"


def _ours(program: _Program) -> str:
    row = program.modes.get(FIX)
    if row is None:
        return ""
    if program.fix is None:
        return "failed"
    return f"{_mark(row)}{quantity.ratio(1 / program.fix)}"


def table(rows: Sequence[Row], programs: Sequence[str] = (), modes: Sequence[str] = ()) -> list[str]:
    """The lines of a table in Markdown, and below it what failed and what is missing: of all ``programs`` of the suite
    and of all ``modes`` that it has on this device."""
    found = _programs(rows)
    beside = _beside(found)
    lines = [
        f"| program | eager | torch's best switch | `--fix` | over torch's best |{' in one process |' * beside} "
        "gain predicted, got |",
        f"|---|---:|---:|---:|---:|{'---:|' * beside}---:|",
    ]
    for p in found:
        over = f"**{quantity.ratio(p.over)}**" if p.over else ""
        own = f" {_together(p)} |" if beside else ""
        lines.append(
            f"| {p.name} | {p.eager()} | {_switch(p)} | {_ours(p)} | {over} |{own} "
            f"{_prediction_cell(p.modes.get(FIX))} |"
        )
    said = [f"{summary(rows)}."]
    if any(map(is_rough, rows)):
        said.append(f"~: other processes used the machine, or runs lay more than {100 * ROUGH_SPREAD:.0f}% apart.")
    failed = [f"{mode} of {p.name}" for p in found for mode, row in p.modes.items() if "failed" in row]
    failed += [f"{mode} of {p.name}" for p in found for mode in p.modes.get(PLAN, {}).get("raised", ())]
    if failed:
        said.append(f"Failed: {', '.join(failed)}.")
    return [*lines, "", " ".join([*said, *_missing(found, programs, modes)]), ""]


class _Compared(NamedTuple):
    """What a program comes to for a reader: shares of its eager time, and the fix's speedup over torch's best mode."""

    program: _Program
    mode: str
    least: float
    fix: float
    over: float


def _compared(rows: Sequence[Row]) -> list[_Compared]:
    """Those that have both. Shares are those of one process if a plan was measured so for every program, or if a switch
    had no other: what the host of a GPU does meanwhile has moved eager times of two processes apart by two thirds."""
    found = [p for p in _programs(rows) if p.over and p.fix]
    in_one = all(p.together for p in found)
    made = []
    for p in found:
        if (in_one or not p.alone) and PLAN in p.modes and p.together:
            switches = {"eager": 1.0, **p.plan_switches}
            mode = min(switches, key=lambda mode: switches[mode])
            made.append(_Compared(p, mode, switches[mode], switches[mode] / p.together, p.together))
        else:
            made.append(_Compared(p, p.best, p.least, p.fix or 1.0, p.over or 1.0))
    return made


BAR_CELLS = 8  # of a bar of the chart that stands for 1x: the time of torch's best switch


def chart(suites: Mapping[str, Sequence[Row]], counts: Mapping[str, int], descriptions: Mapping[str, str]) -> list[str]:
    """A short table in Markdown of several records by the machine's name: of each the program with the highest speedup
    over torch's best switch, that with the least, and as many between them as ``counts`` says in all. A program is
    named by its description, if there is one. Times of a run: of the program as it is, and from that by the shares that
    were measured in turns with it."""
    lines = [
        "| program | as written | fastest mode of `torch.compile` | with `--fix` | `--fix` against that mode |",
        "|---|---:|---:|---:|---|",
    ]
    for name, rows in suites.items():
        ranked = sorted(_compared(rows), key=lambda each: each.over, reverse=True)
        for p, mode, least, fix, over in _spread_over(ranked, counts[name]):
            bar = "█" * max(1, round(BAR_CELLS * over))
            what = descriptions.get(p.name, p.name)
            switch = "none is faster" if mode == "eager" else f"{p.at(least)} ({mode})"
            verdict = f"{quantity.ratio(over)} {'as fast' if over >= 1 else 'as fast: slower'}"
            lines.append(f"| {name}: {what} | {p.at(1.0)} | {switch} | {p.at(fix)} | {bar} {verdict} |")
    return lines


def _spread_over(ranked: Sequence[_Compared], count: int) -> list[_Compared]:
    """The first, the last, and what lies at even distances between them."""
    last = len(ranked) - 1
    places = [round(last * i / (count - 1)) for i in range(count)] if count > 1 else [0]
    return [ranked[place] for place in dict.fromkeys(places) if ranked]


def result(rows: Sequence[Row]) -> str:
    """What a record comes to, for a reader of the chart: the geometric mean, how many programs lose, how many
    predictions held."""
    found = _programs(rows)
    over = [each.over for each in _compared(rows)]
    if not over:
        return "nothing is measured yet"
    slower = sum(ratio < 1 for ratio in over)
    held = [h for p in found if FIX in p.modes and (h := _prediction_held(p.modes[FIX])) is not None]
    tolerance = quantity.percent(history.GAIN_TOLERANCE)
    budgets = _budgets([p.modes[FIX] for p in found if FIX in p.modes]).replace(" to ", "-")
    return (
        f"{len(over)} programs, {quantity.ratio(_mean(over))} as fast as that mode (geometric mean), {slower} slower; "
        f"gain predicted within {tolerance} for {sum(held)} of {len(held)}{f'; budget {budgets}' if budgets else ''}"
    )


def _missing(found: Sequence[_Program], programs: Sequence[str], modes: Sequence[str]) -> list[str]:
    """What is not on record, so that nobody takes a gap for a result."""
    known = {p.name for p in found}
    gone = [name for name in programs if name not in known]
    said = [f"Not measured yet: {', '.join(gone)}."] if gone else []
    without: dict[str, list[str]] = {}
    for mode in modes:
        names = [p.name for p in found if mode not in p.modes and mode not in p.switches_beside_plan]
        if names:
            said_of = "any of them" if len(names) == len(found) else ", ".join(names)
            without.setdefault(said_of, []).append(f"`{mode}`")
    return [*said, *(f"Not measured yet under {', '.join(which)}: {names}." for names, which in without.items())]
