"""The generated parts of README.md and of pages in docs: ``python tools/readme.py [--check] [FOLDER]``.

What stands between ``<!-- generated: NAME -->`` and ``<!-- end generated -->`` is written anew from
``benchmarks/results/``, ``ladders/`` and the kernel map. ``--check`` writes nothing and exits with 1 where a page is
out of date.

| part | from | shows |
|---|---|---|
| ``diagnose`` | ``diagnose-minilm.json``, a Diagnosis | the whole report |
| ``readme_fix`` | ``diagnose-qwen3.json`` | the result of its fix |
| ``gpu_training`` | ``h200-diagnose-training.json`` | the first screen of the report |
| ``tutorial_program`` | ``examples/classify.py`` | the tutorial's program |
| ``tutorial_diagnosis`` | ``tutorial-before.json``, a Diagnosis | its report |
| ``tutorial_fix``, ``tutorial_patch`` | ``tutorial-fix.json`` | the report of its fix, and the fix as a diff |
| ``compared`` | ``tutorial-before.json``, ``tutorial-after.json`` | what ``kernelworks compare`` prints of the two |
| ``programs`` | ``programs-cpu.json`` | the suite on a CPU: eager, torch's best switch, the fix, predicted beside got |
| ``programs_intel`` | ``programs-cpu-intel.json`` | the same on a CPU of another make |
| ``programs_avx2`` | ``programs-cpu-avx2.json`` | the same on a CPU without AVX-512 |
| ``gpu_programs`` | ``programs-cuda.json`` | the same on a GPU |
| ``models`` | ``models.json`` | models before and after a swap |
| ``ops`` | ``ops-2-threads.json`` | one line an op: the median speedup over its cases |
| ``cases`` | ``ops-*-threads.json`` | every case |
| ``gpu_ops`` | ``h200-ops.json`` | one line an op and pass: how near to a copy, over the best peer |
| ``gpu_models`` | ``h200-models.json`` | models on the GPU before and after a swap |
| ``gpu_cases`` | ``h200-ops.json`` | every case on the GPU |
| ``gpu_times`` | ``h200-ops.json``, ``h200-machine.json`` | what the model of time says of each case, what it took |
| ``ladders`` | ``ladders/**/results.json``, Climbs | one line a ladder and machine: from where to where |
| ``exercises`` | ``exercises/*/exercise.toml`` | the course, one line an exercise |
| ``results`` | ``programs-cpu.json``, ``programs-cuda.json`` | five programs of the suites, from best to worst |

A figure of a GPU kernel carries the hash of the source that it was measured with. Where that source has changed since
(here, where there may be no GPU to measure it anew), the figure is left out and the page says so. Rows that came after
a measurement, and that a call may take by now, are named below it.

The pictures ``docs/pictures/*.svg`` are drawn from ``diagnose-qwen3.json``.

A part whose file is not there is left empty: no figure stands in the page that no file holds.
"""

from __future__ import annotations

import ast
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import report_excerpts
from gpu_models import model_lines, unchanged_runs
from kernelworks.learn.exercise import exercises
from kernelworks.measure.bench.kernel_map import source_hashes
from kernelworks.measure.roofline.kernel_time import compare_model
from kernelworks.records import BenchResult, GpuPeaks, from_json
from kernelworks.records.climb import Climb
from kernelworks.report import bench, expectations, programs, quantity
from kernelworks.report.climb import words as climb_words

__all__ = ["PAGES", "generate", "main", "outdated"]

PAGES = (
    "README.md", "docs/tutorial.md", "docs/how-to/gpu-training.md",
    "docs/how-to/learn.md",
    "docs/reference/results.md", "docs/reference/climb.md", "docs/reference/suite.md",
)  # fmt: skip
RESULTS, LADDERS = Path("benchmarks") / "results", "ladders"
PART = re.compile(r"(<!-- generated: (?P<name>\w+) -->\n).*?(<!-- end generated -->)", re.S)

Hashes = Mapping[str, str]  # of the sources as they lie here, by "op.kernel"


def _read(root: Path, name: str) -> dict[str, Any] | None:
    path = root / RESULTS / name
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if "results" in found:  # a document of `kernelworks bench`
        results = [from_json(BenchResult, json.dumps(item)) for item in found["results"]]
        found |= {"rows": [_row(r) for r in results], "threads": results[0].threads if results else 0}
    return found


def _row(result: BenchResult) -> dict[str, Any]:
    """A bench result as the line of a table."""
    us = {("ours" if arm.name == bench.OUR_VARIANT else arm.name): arm.median_us for arm in result.variants}
    over = {name: us[name] / us["ours"] for name in us if name != "ours" and us.get("ours")}
    return {
        "case": f"{result.op} {result.dtype} {result.case}",
        "us": us,
        "over_eager": over.get("eager", 0.0),
        "over_inductor": over.get("inductor"),
        "wrong": bool(result.gate) or "eager" not in over,
    }


def _provenance(found: dict[str, Any], name: str) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in found["versions"].items())
    link = f"[{name}]({{up}}{RESULTS.as_posix()}/{name})"
    machine = found["machine"]
    pieces = (
        machine["name"],
        f"{found['threads']} threads" if "threads" in found else "",
        f"driver {machine['driver']}" if machine.get("driver") else "",
        versions,
        found["date"][:10],
        f"commit {found['commit']}",
    )
    return f"<sub>{', '.join(p for p in pieces if p)}; {link}</sub>"


# ---------------------------------------------------------------- the parts


def _excerpt(write: Callable[[Path], str]) -> Callable[[Path, Hashes], str]:
    return lambda root, hashes: write(root)


def _suite(root: Path) -> list[str]:
    """The names of the suite's programs, as the files of ``benchmarks/programs`` list them."""
    names: list[str] = []
    for path in sorted((root / "benchmarks" / "programs").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "PAIRS"
                and isinstance(node.value, ast.Dict)
            ):
                names += ast.literal_eval(node.value)
    return names


def _of_the_suite(name: str, *modes: str) -> Callable[[Path, Hashes], str]:
    def part(root: Path, hashes: Hashes) -> str:
        found = _read(root, name)
        if found is None:
            return ""
        head = [f"## The suite on one {found['machine']['name']}", ""] if "power_limit_w" in found["machine"] else []
        return "\n".join([*head, *programs.table(found["rows"], _suite(root), modes), _provenance(found, name), ""])

    return part


SUITE_PAGE = "docs/reference/suite.md"
SHOWN_SUITES = {"CPU": ("programs-cpu.json", 3), "GPU": ("programs-cuda.json", 2)}  # in README: record, programs


def _results(root: Path, hashes: Hashes) -> str:
    """Five programs of the suites, the best and the worst of each among them, and what all of each come to."""
    records = {name: record for name, (file, _) in SHOWN_SUITES.items() if (record := _read(root, file))}
    if not records:
        return ""
    lines = programs.chart(
        {name: record["rows"] for name, record in records.items()},
        {name: count for name, (_, count) in SHOWN_SUITES.items()},
        _descriptions(root),
    )
    said = [
        f"**{name}**: {programs.result(record['rows'])} ({record['machine']['name']}, {record['date'][:10]})."
        for name, record in records.items()
    ]
    return "\n".join([*lines, "", *said, ""])


def _descriptions(root: Path) -> dict[str, str]:
    """What each program of the suite does, as the suite's page says."""
    page = root / SUITE_PAGE
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    return dict(re.findall(r"^\| (\w+) \| ([^|]+?) \| [^|]+ \| [^|]+ \|$", text, re.M))


def _models(root: Path, hashes: Hashes) -> str:
    found = _read(root, "models.json")
    if found is None:
        return ""
    lines = [
        "| model | torch eager | after `kw.swap` | speedup over eager | undo |",
        "|---|---:|---:|---:|---|",
    ]
    for row in found["rows"]:
        eager, ours = (quantity.seconds(row[key] / 1e3) for key in ("eager_ms", "swapped_ms"))
        undo = {True: "bit-identical", False: "DIFFERS"}.get(row.get("undo_exact"), "")
        lines.append(f"| {row['case']} | {eager} | {ours} | **{quantity.ratio(row['speedup'])}** | {undo} |")
    return "\n".join([*lines, "", _provenance(found, "models.json"), ""])


def _ops(root: Path, hashes: Hashes) -> str:
    name = "ops-2-threads.json"
    found = _read(root, name)
    if found is None:
        return ""
    lines = [
        "| op | cases | over torch eager, median (least to most) | over torch.compile, median |",
        "|---|---:|---:|---:|",
    ]
    for op in dict.fromkeys(row["case"].split()[0] for row in found["rows"]):
        rows = [r for r in found["rows"] if r["case"].split()[0] == op and not r["wrong"]]
        if not rows:
            continue
        eager = [r["over_eager"] for r in rows]
        compiled = [r["over_inductor"] for r in rows if r.get("over_inductor")]
        median, least, most = (quantity.ratio(f(eager)) for f in (statistics.median, min, max))
        beside = quantity.ratio(statistics.median(compiled)) if compiled else ""
        lines.append(f"| `{op}` | {len(rows)} | **{median}** ({least} to {most}) | {beside} |")
    return "\n".join([*lines, "", _provenance(found, name), ""])


def _cases(root: Path, hashes: Hashes) -> str:
    parts = []
    for path in sorted((root / RESULTS).glob("ops-*-threads.json"), reverse=True):
        found = _read(root, path.name)
        if found is None:
            continue
        title = f"### {found['threads']} thread{'s' if found['threads'] > 1 else ''}"
        lines = [
            title, "",
            "| case | torch eager, us | torch.compile, us | kernelworks, us | over eager | over torch.compile |",
            "|---|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
        for row in found["rows"]:
            times = (
                quantity.figures(row["us"][arm]) if arm in row["us"] else "" for arm in ("eager", "inductor", "ours")
            )
            over = quantity.ratio(row["over_inductor"]) if row.get("over_inductor") else ""
            eager = "WRONG" if row["wrong"] else quantity.ratio(row["over_eager"])
            lines.append(f"| {row['case']} | {' | '.join(times)} | {eager} | {over} |")
        parts.append("\n".join([*lines, "", _provenance(found, path.name), ""]))
    return "\n".join(parts)


# ---------------------------------------------------------------- the parts about a GPU


def _current(rows: Iterable[dict[str, Any]], hashes: Hashes) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows whose source is still what was measured, and the names of those whose is not. Torch's own kernels have
    no source of ours."""
    kept, changed = [], []
    for row in rows:
        name = f"{row['op']}.{row.get('kernel')}"
        if row.get("source_hash") and row["source_hash"] != hashes.get(name):
            changed.append(name)
        else:
            kept.append(row)
    return kept, list(dict.fromkeys(changed))


def _left_out(changed: list[str]) -> list[str]:
    if not changed:
        return []
    names = ", ".join(f"`{name}`" for name in changed)
    return [f"Left out, since the source changed after it was measured: {names}.", ""]


def _newer(found: dict[str, Any], hashes: Hashes) -> list[str]:
    """The rows that were not there when a record was made, whose place others have in its tables."""
    known = found.get("sources", {})
    names = ", ".join(f"`{name}`" for name in hashes if known and name not in known)
    return [f"Measured before these kernels were there, which calls may take by now: {names}.", ""] if names else []


def _measured(found: dict[str, Any], hashes: Hashes) -> tuple[list[dict[str, Any]], list[str]]:
    rows, changed = _current((r for r in found["rows"] if "failed" not in r), hashes)
    return rows, changed


def _reached(rows: list[dict[str, Any]]) -> str:
    """How fast these cases ran: the median, and from the least to the most."""
    if rows[0].get("share_of_copy"):
        shares = [r["share_of_copy"] for r in rows]
        median, least, most = (quantity.percent(f(shares)) for f in (statistics.median, min, max))
        span = f" ({least} to {most})" if len(rows) > 1 else ""
        of = "the 1 GiB copy's rate" if rows[0].get("of_1_gib_copy") else "a copy of the same bytes"
        return f"**{median}** of {of}{span}"
    rates = [r["tflops"] for r in rows]
    median, least, most = (f"{f(rates):.0f}" for f in (statistics.median, min, max))
    return f"**{median} TFLOP/s**" + (f" ({least} to {most})" if len(rows) > 1 else "")


def _waited(wall: Mapping[str, float] | None) -> str:
    """Of gradients, whose host time counts: the caller's clock a call in a queue, the copy's and the best other's over
    it."""
    if not wall:
        return ""
    ours = wall["ours"]
    best, name = min((ms, name) for name, ms in wall.items() if name not in ("ours", "copy"))
    share = f", {quantity.percent(wall['copy'] / ours)} of a copy" if "copy" in wall else ""
    return f"{quantity.figures(1e3 * ours)} us{share}, {quantity.ratio(best / ours)} {name}"


def _gpu_ops(root: Path, hashes: Hashes) -> str:
    name = "h200-ops.json"
    found = _read(root, name)
    if found is None:
        return ""
    rows, changed = _measured(found, hashes)
    lines = [
        f"And on one {found['machine']['name']}, in bfloat16:",
        "",
        "| op | pass | kernel | cases | reached | over the best of eager, torch.compile, Liger, cuDNN, FlexAttention |",
        "|---|---|---|---:|---|---:|",
    ]
    kinds = dict.fromkeys(
        (r["op"], r["pass"], bool(r.get("share_of_copy")), bool(r.get("of_1_gib_copy"))) for r in rows
    )
    for op, pass_, moves, of_peak in kinds:
        group = [
            r
            for r in rows
            if (r["op"], r["pass"], bool(r.get("share_of_copy")), bool(r.get("of_1_gib_copy")))
            == (op, pass_, moves, of_peak)
            and not r["wrong"]
        ]
        if not group:
            continue
        over = [r["over_best"] for r in group]
        median, least, most = (quantity.ratio(f(over)) for f in (statistics.median, min, max))
        span = f" ({least} to {most})" if len(group) > 1 else ""
        taken = ", ".join(dict.fromkeys(str(r.get("kernel") or "") for r in group))
        lines.append(f"| `{op}` | {pass_} | {taken} | {len(group)} | {_reached(group)} | {median}{span} |")
    return "\n".join([*lines, "", *_left_out(changed), *_newer(found, hashes), _provenance(found, name), ""])


def _gpu_cases(root: Path, hashes: Hashes) -> str:
    name = "h200-ops.json"
    found = _read(root, name)
    if found is None:
        return ""
    rows, changed = _measured(found, hashes)
    arms = list(dict.fromkeys(arm for r in rows for arm in r["ms"] if arm != "ours"))
    lines = [
        f"### {found['machine']['name']}",
        "",
        f"| case | kernel | {', us | '.join(arms)}, us | ours, us | reached "
        "| over the best other | as its caller waits |",
        f"|---|---|{'---:|' * len(arms)}---:|---|---:|---|",
    ]
    for r in rows:
        times = (quantity.figures(1e3 * r["ms"][arm]) if arm in r["ms"] else "" for arm in (*arms, "ours"))
        over = "WRONG" if r["wrong"] else f"{quantity.ratio(r['over_best'])} {r['best']}"
        reached = _reached([r]).replace("**", "")
        case, waited = f"{r['op']} {r['pass']} {r['shape']}", _waited(r.get("wall_ms"))
        lines.append(f"| {case} | {r.get('kernel') or ''} | {' | '.join(times)} | {reached} | {over} | {waited} |")
    calls = found.get("small_calls", [])
    if calls:
        lines += [
            "",
            "| eager call, host time | torch forward, us | ours, us | torch backward, us | ours, us |",
            "|---|---:|---:|---:|---:|",
        ]
        for call in calls:
            columns = ("forward_torch_us", "forward_ours_us", "backward_torch_us", "backward_ours_us")
            cells = " | ".join(quantity.figures(call[c], 2) if c in call else "" for c in columns)
            lines.append(f"| {call['op']} {call['shape']} | {cells} |")
    return "\n".join([*lines, "", *_left_out(changed), *_newer(found, hashes), _provenance(found, name), ""])


def _gpu_times(root: Path, hashes: Hashes) -> str:
    """Predicted anew from the shapes and peaks on record, whenever the page is written."""
    name = "h200-ops.json"
    found, here = _read(root, name), _read(root, "h200-machine.json")
    if found is None or here is None:
        return ""
    rows, changed = _measured(found, hashes)
    known = from_json(GpuPeaks, json.dumps(here["peaks"]))
    lines = expectations.table(compare_model(rows, known))
    unseen = expectations.unseen_calls(_read(root, "h200-unseen.json"), "h200-unseen.json")
    return "\n".join([*lines, "", *_left_out(changed), *unseen, _provenance(found, name), ""])


def _took(figures: Mapping[str, Any]) -> set[str] | None:
    """The kernels that the programs called; None where the record does not say."""
    runs = [run for run in (figures.get("train"), *figures.get("decode", ())) if run and "failed" not in run]
    return (
        {row for run in runs for row in run["kernels_taken"]} if all("kernels_taken" in run for run in runs) else None
    )


def _gpu_models(root: Path, hashes: Hashes) -> str:
    name = "h200-models.json"
    found = _read(root, name)
    if found is None:
        return ""
    figures, sources = found.get("figures", {}), found.get("sources", {})
    took = _took(figures)
    changed = [
        kernel for kernel in sources if (took is None or kernel in took) and sources[kernel] != hashes.get(kernel)
    ]
    runs = model_lines(unchanged_runs(figures, changed))
    lines = [f"| on one {found['machine']['name']}, bfloat16 | torch eager | after `kw.swap` | speedup over eager |"]
    lines += ["|---|---:|---:|---:|", *runs, ""]
    return "\n".join(
        [*(lines if runs else []), *_left_out(changed), *_newer(found, hashes), _provenance(found, name), ""]
    )


# ---------------------------------------------------------------- ladders


def _ladders(root: Path, hashes: Hashes) -> str:
    """The CPU's ladders first, each on its own machine before any other."""
    found = []
    for path in (root / LADDERS).glob("*/**/results.json"):
        record = from_json(Climb, path.read_text(encoding="utf-8"))
        below = path.parent.relative_to(root / LADDERS)
        found.append((record.device, len(below.parts), below.as_posix(), record))
    lines = []
    for *_, place, record in sorted(found, key=lambda item: item[:3]):
        links = f"[{record.ladder}]({{up}}{LADDERS}/{place}/worklog.md)"
        on = f"{climb_words.machine(record)}, {record.date[:10]}"
        lines.append(f"| {links} | {climb_words.headline(record)} | {on} |")
    for path in sorted((root / LADDERS).glob("*/problem.py")):
        if not path.with_name("results.json").is_file():
            rungs = len(list(path.parent.glob("[0-9][0-9]_*.c*")))
            name = f"[{path.parent.name}]({{up}}{LADDERS}/{path.parent.name}/problem.py)"
            lines.append(f"| {name} | {rungs} rungs; no record yet: your own climb has its figures | |")
    return "\n".join(["| ladder | from where to where | on |", "|---|---|---|", *lines, ""]) if lines else ""


def _exercises(root: Path, hashes: Hashes) -> str:
    lines = ["| family | exercise | what is computed | ladder that goes on |", "|---|---|---|---|"]
    family = ""
    for one in exercises().values():
        shown, family = "" if one.family == family else one.family, one.family
        lines.append(f"| {shown} | [{one.name}]({{up}}exercises/{one.name}/README.md) | {one.title} | {one.ladder} |")
    return "\n".join([*lines, ""])


ON_CPU = ("default", "max-autotune-no-cudagraphs", "fix", "kernelworks")  # what the suite is measured under
PICTURES: dict[str, Callable[[Path], str]] = {
    "docs/pictures/diagnosis.svg": report_excerpts.draw_screen,
    "docs/pictures/numbered.svg": report_excerpts.draw_numbered,
}  # fmt: skip
PARTS: dict[str, Callable[[Path, Hashes], str]] = {
     "programs": _of_the_suite("programs-cpu.json", *ON_CPU),
    "programs_intel": _of_the_suite("programs-cpu-intel.json", *ON_CPU),
    "programs_avx2": _of_the_suite("programs-cpu-avx2.json", *ON_CPU),
    "gpu_programs": _of_the_suite("programs-cuda.json", "reduce-overhead", *ON_CPU), "models": _models, "ops": _ops,
    "cases": _cases, "gpu_ops": _gpu_ops, "gpu_models": _gpu_models, "gpu_cases": _gpu_cases, "gpu_times": _gpu_times,
    "ladders": _ladders, "exercises": _exercises, "results": _results,
    **{name: _excerpt(draw) for name, draw in report_excerpts.PARTS.items()},
}  # fmt: skip


# ---------------------------------------------------------------- the pages


def generate(root: Path, page: str, hashes: Hashes | None = None) -> str:
    """The text of one page with its generated parts as the results have them now. KeyError for an unknown part.

    ``hashes`` are those of the kernels' sources by "op.kernel", by default as they lie here.
    """
    up = "../" * page.count("/")
    known = source_hashes() if hashes is None else hashes

    def part(match: re.Match[str]) -> str:
        return match[1] + PARTS[match["name"]](root, known).replace("{up}", up) + match[3]

    return PART.sub(part, (root / page).read_text(encoding="utf-8"))


def made(root: Path) -> dict[str, str]:
    """Every page and picture as the results have it now."""
    drawn = {name: draw(root) for name, draw in PICTURES.items()}
    return {page: generate(root, page) for page in PAGES} | {name: text for name, text in drawn.items() if text}


def _as_it_is(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def outdated(root: Path) -> list[str]:
    """The pages and pictures that ``main`` would change."""
    return [name for name, text in made(root).items() if text != _as_it_is(root / name)]


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    root = Path(next((a for a in arguments if not a.startswith("-")), "."))
    stale = {name: text for name, text in made(root).items() if text != _as_it_is(root / name)}
    for name, text in stale.items():
        if not check:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text, encoding="utf-8")
        print(f"{name}: {'out of date' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
