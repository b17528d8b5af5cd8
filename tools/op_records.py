"""What is on record of each op and kernel: docs/reference/op-records.md, which ``reference_pages.py`` writes.

| column | from |
|---|---|
| verified on | the certificates that ship with the package (``dispatch/certified``) |
| chosen at | the tuning records that ship (``dispatch/timed``): of their calls, those that a kernel is taken for |
| share of the limit, over the strongest baseline | ``benchmarks/results/h200-ops.json``, the tuning records |

Only what speaks of a kernel's source as it lies here counts: a certificate or a figure of another source is none.
Nothing is read from this machine's cache, so the page is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from kernelworks import ops as op_functions
from kernelworks.build.cpp import TARGETS
from kernelworks.contract import Kernel, Request, TensorSpec
from kernelworks.dispatch import certificates, tuning_records
from kernelworks.dispatch.op import Op
from kernelworks.dispatch.tuning_records import TuningRecord
from kernelworks.machine.cpu import AVX2, AVX512
from kernelworks.measure.roofline import bound as roofline
from kernelworks.measure.roofline.forecast import limit as limit_of_call
from kernelworks.ops import ops_named
from kernelworks.records import GpuPeaks, Peaks, from_json
from kernelworks.report import quantity

__all__ = ["Figure", "Records", "fits", "lines_of", "lines_of_families", "long_packages", "page", "request_of", "short"]

RESULTS = "benchmarks/results"
NONE = "none"
TORCH = "torch"
LONG = 300  # lines of an op package: from there on it is to hold a kernel that a measurement asked for
SOURCES = (".py", ".cpp", ".hpp", ".cu", ".toml")
BEATEN = 1.1  # of a peak: by more than two measurements differ, so that the peak is none
PASSES = ("forward", "decode", "forward and backward", "backward", "training")
BASELINES = {"eager": "torch", "inductor": "torch.compile", "compile": "torch.compile", "flash2": "FlashAttention-2"}
# The words of a call on record: tensors, and values that are no numbers.
DTYPES = {tuning_records._short(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
TENSOR = re.compile(r"(\w+)\[([\d,]*)\](?: by \[([\d,]*)\])?")
VALUES = {"True": True, "False": False}
# The instruction sets of a kind of CPU, by the last word of its name.
WIDTHS = {"base": frozenset[str](), "avx2": AVX2, "avx512f": AVX512, "avx512_bf16": AVX512 | {"avx512_bf16"}}
HEAD = """# What is on record of each op

For each op and kernel: on which kinds of machine it is verified, at how many of the benchmarked calls it is chosen,
which share of the limit it reaches, and how it compares with the strongest baseline timed beside it. This page is made
of the certificates and tuning records that ship with the package and of
[benchmarks/results](../../benchmarks/results) by `python tools/reference_pages.py`; a test checks that it is current.
What was verified or timed of another source than the one that lies here is left out. "none" is what nothing on record
speaks of.

- **verified on**: kinds of machine with a [certificate](../explanation/certificates.md) of this very source. Elsewhere
  the kernel is not chosen before `kernelworks verify OP.KERNEL`.
- **chosen at**: of the calls with a [tuning record](../explanation/tuning-records.md), those whose record takes this
  kernel. The row `torch` counts the calls at which torch's own function runs. Where there is no record, torch runs.
- **share of the limit**: median, least and most of the cases. *Of a copy*: of the time of a device copy of the same
  bytes. *Of the copy rate*: of that of 1 GiB. Else of the roofline of measured peaks, by what limits a case: arithmetic
  (*of the peak*), a level of the memory hierarchy (*of the HBM rate*, *of the L3 rate*), elementary functions, or the
  dispatch of the call. A case on a CPU is a forward whose data lie where the call before has left them. Of a peak that
  anything on record exceeds by more than a tenth no share is shown: it was measured low, or of other units.
- **over the strongest baseline**: the time of the quickest other variant over this one's, median, least and most of the
  cases, and which variants those were. Below 1x the other is quicker. On a CPU the baseline of a tuning record is
  torch's own function, or torch.compile where that was timed beside it and quicker.

The cases of these figures one by one: [results](results.md). What each op computes: [ops and kernels](ops.md).
"""


def short(kind: str) -> str:
    """A kind of machine as a cell of the table names it: ``AMD 25.17``, by vendor, family and model; ``H200``."""
    cpu = re.fullmatch(r"\w+?-(\w+)-family(\d+)-model(\d+)-\w+", kind)
    if cpu is None:
        return kind.rpartition("_")[2].upper()
    vendor = cpu[1].upper() if len(cpu[1]) < 4 else cpu[1].title()
    return f"{vendor} {cpu[2]}.{cpu[3]}"


@dataclass(frozen=True)
class Figure:
    """One case of one kernel (or of torch) that was timed on a kind of machine."""

    op: str
    kernel: str
    kind: str
    pass_: str
    over: float | None  # the quickest baseline's time over this kernel's
    baseline: str
    share: float | None = None
    limit: str = ""  # what the share is of
    peak: str = ""  # of a roofline: the measured peak that limits the case, in figures


# ---------------------------------------------------------------- what is on record


class Records:
    """All that ships and speaks of these ops as they are. ``root`` is the folder that has ``benchmarks/results``."""

    def __init__(self, root: Path, ops: Sequence[Op]) -> None:
        self.root = root
        self.ops = {op.name: op for op in ops}
        self.kernels = {(op.name, kernel.name): kernel for op in ops for kernel in op.kernels}
        self.hashes = {at: kernel.hash() for at, kernel in self.kernels.items() if kernel.source is not None}
        self.held: dict[str, set[tuple[str, str]]] = {}
        for kind in certificates.shipped_kinds():
            found = certificates.shipped_certificates(kind)
            self.held[kind] = {(c.op, c.kernel) for c in found if self._speaks(c)}
        self.races: dict[str, list[TuningRecord]] = {}
        self.stale: Counter[str] = Counter()  # tuning records of a kind, of another source
        self.before: set[str] = set()  # ops with a kernel of ours that was timed, of whatever source
        for path in sorted(tuning_records.SHIPPED_DIR.glob("*.json")):
            kind = re.sub(r"-\d+cores$", "", path.stem)
            races = tuning_records._read(path)[0]
            self.before |= {t.op for t in races}
            self.races.setdefault(kind, []).extend(t for t in races if self._is_of_this_source(t))
            self.stale[kind] += sum(not self._is_of_this_source(t) for t in races)
        self.figures: dict[tuple[str, str], list[Figure]] = {}
        known = list(self._gpu_figures())
        every = [*known, *self._race_figures(known)]
        beaten = {(f.kind, f.peak) for f in every if f.peak and (f.share or 0.0) > BEATEN}
        for figure in every:
            if (figure.kind, figure.peak) in beaten:
                figure = dataclasses.replace(figure, share=None)
            self.figures.setdefault((figure.op, figure.kernel), []).append(figure)

    def _speaks(self, c: certificates.Certificate) -> bool:
        kernel = self.kernels.get((c.op, c.kernel))
        return kernel is not None and certificates.is_current(c, kernel) and c.worst <= 1

    def _is_of_this_source(self, t: TuningRecord) -> bool:
        return "+".join(self.hashes.get((t.op, name), "?") for name in t.way.split("+")) == t.source_hash

    def _read(self, name: str) -> dict[str, Any]:
        path = self.root / RESULTS / name
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return found

    def _gpu_figures(self) -> Iterable[Figure]:
        found, here = self._read("h200-ops.json"), self._read("h200-machine.json")
        peaks = from_json(GpuPeaks, json.dumps(here["peaks"])) if here else None
        for row in found.get("rows", ()):
            if row.get("source_hash"):
                self.before.add(row["op"])
            if "failed" in row or row["wrong"] or (row["op"], row["kernel"]) not in self.kernels:
                continue
            if row["source_hash"] and row["source_hash"] != self.hashes.get((row["op"], row["kernel"])):
                continue
            if row["share_of_copy"]:
                limits = row["share_of_copy"], "the copy rate" if row["of_1_gib_copy"] else "a copy", ""
            else:
                limits = _roofline_share(row, peaks)
            yield Figure(
                row["op"], row["kernel"], found["machine"]["kind"], row["pass"], row["over_best"],
                BASELINES.get(row["best"], row["best"]), *limits,
            )  # fmt: skip

    def _race_figures(self, known: Iterable[Figure]) -> Iterable[Figure]:
        """Of the tuning records, where no other record speaks of a kernel and pass on that kind of machine."""
        told = {(f.op, f.kernel, f.kind, f.pass_) for f in known}
        beside, peaks = self._variants_of_medians(), self._cpu_peaks()
        for kind, races in self.races.items():
            for t in races:
                kernels = list(dict.fromkeys(t.way.split("+")))
                told_of = ("forward", "backward") if t.pass_ == "training" else ("forward",)
                if any((t.op, kernel, kind, pass_) in told for kernel in kernels for pass_ in told_of):
                    continue
                least, *limits = self._least(t, peaks.get(kind))
                baseline, us = beside.get(t.whole.ours_us, (TORCH, t.whole.torch_us))
                for kernel in kernels:
                    share = least / t.whole.ours_us if least else None
                    yield Figure(t.op, kernel, kind, t.pass_, us / t.whole.ours_us, baseline, share, *limits)
                if least and not t.beats_torch:
                    yield Figure(t.op, TORCH, kind, t.pass_, None, "", least / t.whole.torch_us, *limits)

    def _least(self, t: TuningRecord, peaks: Peaks | None) -> tuple[float | None, str, str]:
        """T_min in microseconds of a forward on a CPU whose peaks are on record, and what limits it. Its data are
        where a call before has left them, as when it was benchmarked."""
        request = None if peaks is None else request_of(self.ops[t.op], t)
        if peaks is None or request is None:
            return None, "", ""
        op = self.ops[t.op]
        found = limit_of_call(op, request, peaks, op.contract.cost(request).bytes)
        return 1e6 * found.seconds, _limit_of(found), found.peak

    def _cpu_peaks(self) -> dict[str, Peaks]:
        """The peaks of CPUs on record, the last ones of each kind."""
        found: dict[str, Peaks] = {}
        for path in (self.root / RESULTS).glob("*.json"):
            peaks = self._read(path.name).get("peaks")
            if isinstance(peaks, dict) and "cache_bytes" in peaks:
                made = from_json(Peaks, json.dumps(peaks))
                if made.kind not in found or made.date > found[made.kind].date:
                    found[made.kind] = made
        return found

    def _variants_of_medians(self) -> dict[float, tuple[str, float]]:
        """The quickest baseline and its time, by our time: tuning records that were made of medians have the same."""
        found = {}
        for path in sorted((self.root / RESULTS).glob("ops-*-threads.json")):
            for row in self._read(path.name)["rows"]:
                us = dict(row["us"])
                ours = us.pop("ours")
                name = min(us, key=us.__getitem__)
                found[ours] = (BASELINES.get(name, name), us[name])
        return found

    def chosen(self, op: str) -> dict[str, dict[tuple[str, str], tuple[int, int]]]:
        """By kernel (or ``torch``), then by kind of machine and pass: at how many calls it is taken, of how many."""
        calls: Counter[tuple[str, str]] = Counter()
        taken: Counter[tuple[str, tuple[str, str]]] = Counter()
        for kind, races in self.races.items():
            for t in (t for t in races if t.op == op):
                place = kind, t.pass_
                calls[place] += 1
                taken.update((kernel, place) for kernel in (set(t.way.split("+")) if t.beats_torch else {TORCH}))
        found: dict[str, dict[tuple[str, str], tuple[int, int]]] = {}
        for (kernel, place), count in sorted(taken.items()):
            found.setdefault(kernel, {})[place] = count, calls[place]
        return found


def _roofline_share(row: Mapping[str, Any], peaks: GpuPeaks | None) -> tuple[float | None, str, str]:
    """T_min over the time, and what limits the case."""
    work = row["work"]
    if peaks is None or not work:
        return None, "", ""
    least = roofline.bound(
        work["flop"], work["transcendental"], work["read"] + work["written"], float("inf"), work["dtype"], 1, peaks,
        written_bytes=work["written"],
    )  # fmt: skip
    return least.seconds / (1e-3 * row["ms"]["ours"]), _limit_of(least), least.peak


def _limit_of(least: roofline.Bound) -> str:
    term = max(least.terms, key=least.terms.__getitem__)
    if term == "memory":
        return f"the {least.level} rate"
    return {"compute": "the peak", "transcendental": "the exp rate"}.get(term, f"a {term}")


def request_of(op: Op, t: TuningRecord) -> Request | None:
    """What a tuning record of a forward on a CPU asked for, read from its words; None where they do not say all of
    it. Whatever is read must give the same words again."""
    if t.pass_ != "forward" or t.place.startswith("sm_"):
        return None
    lists = {a.name for a in torch._C.parse_schema(op.passes["forward"].schema).arguments if "List" in str(a.type)}
    named: dict[str, Any] = dict.fromkeys(op.passes["forward"].names)
    for word in t.call.split("; "):
        name, mark, text = re.fullmatch(r"(\w+)([ =]?)(.*)", word, re.S).groups()  # type: ignore[union-attr]
        tensors = tuple(_tensor(*found) for found in TENSOR.findall(text)) if mark == " " else ()
        if name not in named or (mark == " " and not tensors):
            return None
        named[name] = tensors if name in lists else tensors[0] if tensors else VALUES.get(text, text)
        if re.fullmatch(r"-?\d+", text):
            named[name] = int(text)
    request = Request(op.name, "forward", named, t.threads, switches=op.contract.switches)
    same = tuning_records.call_of(request) == t.call and tuning_records.bucket_of(op.contract, request) == t.bucket
    return request if same else None


def _tensor(dtype: str, sizes: str, strides: str) -> TensorSpec:
    shape = [int(n) for n in sizes.split(",") if n]
    dense = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    stride = [int(n) for n in strides.split(",")] if strides else dense
    return TensorSpec(tuple(shape), DTYPES[dtype], tuple(stride), "cpu")


def fits(kernel: Kernel, kind: str) -> bool:
    """Whether machines of a kind can run a kernel of ours."""
    if kernel.device == "cuda" or kind.startswith("sm_"):
        return kernel.device == "cuda" and kind.startswith("sm_")
    needs = TARGETS[kernel.target].needs if kernel.target in TARGETS else None
    return needs is not None and needs <= WIDTHS.get(kind.rpartition("-")[2], frozenset())


# ---------------------------------------------------------------- cells


def _span(values: Sequence[float], text: Callable[[float], str]) -> str:
    least, most = text(min(values)), text(max(values))
    return text(statistics.median(values)) + (f" ({least} to {most})" if least != most else "")


def _by_place(figures: Iterable[Figure], key: Callable[[Figure], str]) -> Iterator[tuple[str, str, list[Figure]]]:
    def place(f: Figure) -> tuple[str, int, str]:
        return f.kind, PASSES.index(f.pass_), key(f)

    for (kind, pass_, _), group in groupby(sorted(figures, key=place), key=place):
        yield short(kind), PASSES[pass_], list(group)


def _cell(parts: Iterable[tuple[str, str, str]]) -> str:
    """A line for each part; the kind of machine stands in the first line of those that are of it."""
    lines, last = [], ""
    for kind, pass_, text in parts:
        lines.append(f"{'' if kind == last else kind + ' '}{pass_} {text}")
        last = kind
    return "<br>".join(lines) or NONE


def _shares(figures: Iterable[Figure]) -> str:
    known = [f for f in figures if f.share is not None]
    return _cell(
        (kind, pass_, f"{_span([f.share or 0.0 for f in group], quantity.percent)} of {group[0].limit}")
        for kind, pass_, group in _by_place(known, lambda f: f.limit)
    )


def _beside(figures: Iterable[Figure]) -> str:
    return _cell(
        (
            kind,
            pass_,
            f"{_span([f.over or 0.0 for f in group], quantity.ratio)} "
            + ", ".join(name for name, _ in Counter(f.baseline for f in group).most_common()),
        )
        for kind, pass_, group in _by_place((f for f in figures if f.over is not None), lambda f: "")
    )


def _chosen(found: Mapping[tuple[str, str], tuple[int, int]]) -> str:
    return _cell((short(kind), pass_, f"{n}/{of}") for (kind, pass_), (n, of) in found.items())


def _torchs(op: Op) -> str:
    """The calls that no kernel of ours takes, where the public function says so: "(lengths above 9 are torch's)"."""
    said = re.search(
        r"cannot run \((.+?) are\s+torch's\)", inspect.getdoc(getattr(op_functions, op.name, None)) or "", re.S
    )
    return " ".join(said[1].split()) if said else ""


def lines_of(op: Op, records: Records) -> list[str]:
    """The lines of one op: a line for kernels of which the same is on record."""
    cells: dict[tuple[str, ...], list[str]] = {}
    chosen = records.chosen(op.name)
    for kernel in op.kernels:
        if kernel.name == "reference":
            continue
        figures = records.figures.get((op.name, kernel.name), [])
        where = [short(kind) for kind, held in records.held.items() if (op.name, kernel.name) in held]
        verified = ", ".join(where) or NONE if kernel.source is not None else "needs none"
        told = (verified, _chosen(chosen.get(kernel.name, {})), _shares(figures), _beside(figures))
        always = f", always of {_torchs(op)}" if kernel.name == TORCH and _torchs(op) else ""
        cells.setdefault(told, []).append(f"`{kernel.name}`{always}")
    link = f"[{op.name}](ops.md#{op.name})<br>"
    return [
        f"| {'' if i else link}{', '.join(names)} | {' | '.join(told)} |"
        for i, (told, names) in enumerate(cells.items())
    ]


# ---------------------------------------------------------------- the page


def _machines(records: Records) -> list[str]:
    lines = [
        "## Kinds of machine", "",
        "| name here | kind of machine | kernels it can run | verified | tuning records | of another source |",
        "|---|---|--:|--:|--:|--:|",
    ]  # fmt: skip
    for kind in dict.fromkeys((*records.held, *records.races)):
        able = [at for at in records.hashes if fits(records.kernels[at], kind)]
        held, races = records.held.get(kind, set()), records.races.get(kind, [])
        counts = (len({*able, *held}), len(held), len(races), records.stale[kind])
        lines.append(f"| {short(kind)} | `{kind}` | {' | '.join(map(str, counts))} |")
    return lines


def lines_of_families(records: Records, ops: Sequence[Op]) -> list[str]:
    """A line for each family, and one for all."""
    held = {at for found in records.held.values() for at in found}
    lines = [
        "## Families", "",
        "| family | ops | kernels of ours | verified | ours is chosen at some call | at none | no tuning record |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    families = dict.fromkeys(op.contract.family for op in ops)
    for title, its in (*((f, [op for op in ops if op.contract.family == f]) for f in families), ("all", list(ops))):
        kernels = [at for at in records.hashes if at[0] in {op.name for op in its}]
        taken = [set(records.chosen(op.name)) for op in its]
        ours, torchs = sum(bool(t - {TORCH}) for t in taken), sum(t == {TORCH} for t in taken)
        counts = (len(its), len(kernels), len(held.intersection(kernels)), ours, torchs, taken.count(set()))
        lines.append(f"| {title} | {' | '.join(map(str, counts))} |")
    return [
        *lines,
        "",
        "The last three columns count ops: by all tuning records of these sources, of any kind of machine.",
    ]


def _missing(records: Records, ops: Sequence[Op]) -> list[str]:
    """What nothing on record speaks of, as lists."""
    held = {at for found in records.held.values() for at in found}
    on_cpu = {at for kind, found in records.held.items() if not kind.startswith("sm_") for at in found}
    timed = {op for op, _ in records.figures}
    ours_timed = {op for op, kernel in records.figures if kernel != TORCH}
    cpu_timed = {f.op for several in records.figures.values() for f in several if not f.kind.startswith("sm_")}
    has_cpu = {op for (op, name) in records.hashes if records.kernels[op, name].device == "cpu"}
    names = [op.name for op in ops]
    lists = {
        "Ops with no kernel of ours for a CPU": [n for n in names if n not in has_cpu],
        "Ops with no certificate on any kind of CPU": [n for n in names if n in has_cpu - {op for op, _ in on_cpu}],
        "Kernels verified nowhere": [f"{op}.{name}" for op, name in records.hashes if (op, name) not in held],
        "Ops that were never timed": [n for n in names if n not in timed | records.before],
        "Ops whose own kernels were timed only of another source": [
            n for n in names if n in records.before - ours_timed
        ],
        f"Op packages of over {LONG} lines that hold no kernel with a time": long_packages(records, ours_timed),
        "Ops with a kernel for a CPU that have a time on one; no other has": [n for n in names if n in cpu_timed],
    }  # fmt: skip
    lines = ["## What is missing", ""]
    for title, found in lists.items():
        said = ", ".join(f"`{name}`" for name in found) or NONE
        lines.append(f"- {title} ({len(found)}): {said}" if found else f"- {title}: {said}")
    return lines


def long_packages(records: Records, timed: set[str]) -> list[str]:
    """Those whose length no measurement asked for, as far as one is on record."""
    of_package: dict[Path, set[str]] = {}
    for op in records.ops.values():
        of_package.setdefault(op.op_package, set()).add(op.name)
    long = (p for p, names in of_package.items() if not names & timed and _lines_of_code(p) > LONG)
    return ["/".join(path.parts[-2:]) for path in long]


def _lines_of_code(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.suffix in SOURCES)
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def page(root: Path) -> str:
    """The text of docs/reference/op-records.md."""
    ops = ops_named(None)
    records = Records(root, ops)
    lines = [HEAD, *_machines(records), "", *lines_of_families(records, ops), "", *_missing(records, ops)]
    for family in dict.fromkeys(op.contract.family for op in ops):
        lines += [
            "", f"## {family}", "",
            "| op, kernel | verified on | chosen at | share of the limit | over the strongest baseline |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for op in (o for o in ops if o.contract.family == family):
            lines += lines_of(op, records)
    return "\n".join(lines) + "\n"
