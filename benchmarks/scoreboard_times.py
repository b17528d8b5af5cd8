"""The scoreboard's times: a process for each problem (``scoreboard_race.py``), several of which compile beside each
other while one at a time, the others halted, is timed; and the page's table of what a GPU's found."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from side_by_side import Entry, Heard, Started, Task, end_on_sigterm, side_by_side

from kernelworks.measure.clock.turns import measuring_alone

__all__ = ["FAILED", "raced", "ratios", "table"]

RACE = Path(__file__).resolve().with_name("scoreboard_race.py")
PEAKS = Path(__file__).resolve().parent / "results" / "h200-machine.json"
FAILED = "failed"  # a row of a problem that raised, or took too long
STANDING_S = 30.0  # for which the others stand still while one is timed
MODES = ("default", "reduce-overhead")
Row = dict[str, Any]


def raced(
    files: Mapping[str, Path], args: argparse.Namespace, tell: Callable[[str, Row], None],
    sizes: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> None:  # fmt: skip
    """Tells the row of each problem, as it is made: at these sizes, or else at its own as far as memory goes. What the
    end of the time cuts off has none. On cores that are a part of the machine's others may measure on the rest."""
    end_on_sigterm()
    seconds = min(args.seconds, args.until - time.time())
    end = time.monotonic() + seconds
    with contextlib.ExitStack() as held:
        if args.device == "cuda" or len(os.sched_getaffinity(0)) == os.cpu_count():
            held.enter_context(measuring_alone(lambda line: print(line, file=sys.stderr)))
        root = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="kernelworks-scoreboard-")))
        begun: dict[str, float] = {}
        more = {
            "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p),
            "KERNELWORKS_SCOREBOARD_TURNS": str(root),
        }

        def start(task: Task, heard: Heard) -> Started:
            begun[task[0]] = time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix="problem-", dir=root))
            asked = json.dumps(dict(sizes[task[0]])) if task[0] in sizes else ""
            command = [sys.executable, str(RACE), str(files[task[0]].resolve()), args.device, str(args.peaks)]
            command += [str(args.threads), asked]
            return Started(command, folder, args.most, heard=heard, environment=more)

        def told(task: Task, entry: Entry | None) -> None:
            if entry is None:
                return
            row: Row = {"problem": task[0], "took_s": round(time.monotonic() - begun.get(task[0], end), 1)}
            if "failed" in entry:
                row |= {"verdict": FAILED, "sizes": {}, "findings": [entry["failed"]]}
            tell(task[0], row | {k: v for k, v in entry.items() if k != "failed"})

        tasks = [(name, "race") for name in files]
        side_by_side(tasks, start, end=end, together=args.jobs, tell=told, standing=STANDING_S)


def said(row: Row) -> str:
    """A row in a line."""
    times = ", ".join(f"{name} {_us(seconds)}" for name, seconds in row.get("seconds", {}).items())
    why = "; ".join(row["findings"])[:120]
    return f"{row['verdict']} {times} {why} ({row['took_s']} s)"


# ---------------------------------------------------------------- the page


def best(row: Row) -> str:
    """The mode of torch.compile that was the quickest."""
    modes = [mode for mode in MODES if mode in row.get("seconds", {})]
    return min(modes, key=lambda mode: row["seconds"][mode], default="")


def table(rows: Sequence[Row]) -> str:
    if not rows:
        return "No GPU has been asked yet.\n"
    machines = list(dict.fromkeys(r["machine"] for r in rows))
    lines = [*summary(rows), ""]
    lines += [
        "| problem | sizes | sound | eager | torch.compile | ours | ours over eager | ours over torch.compile | "
        "share of the limit | ops of ours | machine |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        sizes = ", ".join(f"`{name}={size}`" for name, size in r["sizes"].items()) or "its own"
        sound = _cell("; ".join([r["verdict"], *r["findings"]][:2]) if r["findings"] else r["verdict"])
        number = 1 + machines.index(r["machine"])
        lines.append(f"| {' | '.join([r['problem'], sizes, sound[:160], *_figures(r)])} | {number} |")
    named = (f"<sub>Machine {number}: {name}</sub>" for number, name in enumerate(machines, 1))
    return "\n".join([*lines, "", "<br>\n".join(named), ""])


def _figures(r: Row) -> list[str]:
    seconds, mode = r.get("seconds", {}), best(r)
    wrong = "; ".join(f"{name}: {why}" for name, why in r.get("failed_variants", {}).items())
    ours = _us(seconds["ours"]) if "ours" in seconds else _cell(wrong)[:120]
    compiled = f"{_us(seconds[mode])} ({mode})" if mode else ""
    share = f"{100 * limit_share(r):.0f}% ({r['bound_by']})" if limit_share(r) else ""
    ratios = [_ratio(r.get("over", {}).get(name)) for name in ("eager", mode)]
    return [_us(seconds.get("eager")), compiled, ours, *ratios, share, ", ".join(r.get("ops", []))]


def limit_share(r: Row) -> float:
    ours = r.get("seconds", {}).get("ours")
    return float(r["limit_s"] / ours) if ours and r.get("limit_s") else 0.0


def summary(rows: Sequence[Row]) -> list[str]:
    """What is said of all of them, above the table."""
    clocked = [r for r in rows if "ours" in r.get("seconds", {}) and "eager" in r["seconds"] and best(r)]
    sound = [r for r in clocked if r["verdict"] == "sound"]
    failed = sum("seconds" not in r for r in rows)
    cards = ", ".join(dict.fromkeys(r["device"] for r in rows if "device" in r))
    found = [
        f"On {cards or 'a GPU'}: {len(rows)} problems, {len(clocked)} of them timed with every variant right, "
        f"{len(sound)} of these sound. {failed} failed.",
        "",
        *ratios((("all that are timed", clocked), ("sound ones", sound))),
    ]
    shares = [limit_share(r) for r in sound if limit_share(r)]
    if shares:
        found += [
            "",
            f"Of the sound ones ours reaches {100 * statistics.median(shares):.0f}% of the limit in the median.",
        ]
    return found


def ratios(groups: Sequence[tuple[str, Sequence[Row]]]) -> list[str]:
    """The table of the means of each group of rows."""
    lines = [
        "| of | problems | ours over eager | at or over it | ours over torch.compile's best | at or over it | "
        "ours over torch.compile's default | with torch where ours is slower |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for word, some in groups:
        cells = [_over(some, lambda r: "eager"), _over(some, best), _over(some, lambda r: "default")]
        told = [f"{mean:.2f}x | {reached} of {of}" if of else " | " for mean, reached, of in cells[:2]]
        default = f"{cells[2][0]:.2f}x" if cells[2][2] else ""
        chosen = _mean(max(1.0, r["over"]["eager"][0]) for r in some if "eager" in r["over"])
        kept = f"{chosen:.2f}x eager" if chosen else ""
        lines.append(f"| {word} | {len(some)} | {' | '.join(told)} | {default} | {kept} |")
    return lines


def _over(rows: Sequence[Row], name: Callable[[Row], str]) -> tuple[float, int, int]:
    """The geometric mean of the ratios, how many intervals reach 1, and how many there are."""
    each = [r["over"][name(r)] for r in rows if name(r) in r.get("over", {})]
    return _mean(one[0] for one in each), sum(one[2] >= 1 for one in each), len(each)


def _mean(ratios: Iterable[float]) -> float:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else 0.0


def _ratio(found: Sequence[float] | None) -> str:
    return f"{found[0]:.2f}x ({found[1]:.2f} to {found[2]:.2f})" if found else ""


def _us(seconds: float | None) -> str:
    return f"{1e6 * seconds:.4g} us" if seconds else ""


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")
