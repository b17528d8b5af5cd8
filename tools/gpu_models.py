"""The table of whole models on a GPU, of what ``benchmarks/h200_models.py`` measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kernelworks.report import quantity

__all__ = ["model_lines", "unchanged_runs"]

CAPTURED, OPTIMIZED = "swapped and captured", "swapped, kw.AdamW"
OURS = ("swapped", CAPTURED, OPTIMIZED)


def model_lines(figures: Mapping[str, Any]) -> list[str]:
    """What ``benchmarks/h200_models.py`` measured: a training step, and decoding."""
    lines = []
    step = figures.get("train")
    if step and "ms" in step:
        ms, peak = step["ms"], step["peak_gb"]
        eager, ours = (
            f"{quantity.seconds(ms[variant] / 1e3)}, {peak[variant]:.1f} GB" for variant in ("eager", "swapped")
        )
        what = f"training step, {step['parameters'] / 1e9:.2f}B parameters, {step['rows']} x {step['length']} tokens"
        lines.append(f"| {what} | {eager} | {ours} | **{quantity.ratio(ms['eager'] / ms['swapped'])}** |")
        for variant, words in ((CAPTURED, "and captured"), (OPTIMIZED, "and `kw.AdamW`")):
            if variant in ms:
                ours = f"{quantity.seconds(ms[variant] / 1e3)}, {peak[variant]:.1f} GB, {words}"
                lines.append(f"| {what} | {eager} | {ours} | **{quantity.ratio(ms['eager'] / ms[variant])}** |")
    for run in figures.get("decode", ()):
        if "ms_a_token" not in run:  # cut off, which the record says
            continue
        ms = run["ms_a_token"]
        eager, ours = (quantity.seconds(ms[variant] / 1e3) for variant in ("eager", "swapped"))
        what = f"decode, batch {run['batch']}, a token"
        lines.append(f"| {what} | {eager} | {ours} | **{quantity.ratio(ms['eager'] / ms['swapped'])}** |")
        if CAPTURED in ms:
            ours = f"{quantity.seconds(ms[CAPTURED] / 1e3)}, and captured"
            lines.append(f"| {what} | {eager} | {ours} | **{quantity.ratio(ms['eager'] / ms[CAPTURED])}** |")
    return [*lines, *_beside_compiled(figures)]


def _beside_compiled(figures: Mapping[str, Any]) -> list[str]:
    """The same beside what torch.compile made of the model, each mode in turns with ours in one process."""
    found = []
    for run in [each for each in (figures.get("train"), *figures.get("decode", ())) if each]:
        what = f"decode, batch {run['batch']}" if "batch" in run else "training step"
        for took in run.get("modes", {}).values():
            ms = took.get("ms") or took.get("ms_a_token") or {}
            ours = min((ms[variant] for variant in OURS if variant in ms), default=None)
            for mode in ms.keys() - {"eager", *OURS}:
                ratio = f"{quantity.ratio(ms[mode] / ours)} over `{mode}`" if ours is not None else ""
                found.append(f"{what} {quantity.seconds(ms[mode] / 1e3)}, ours {ratio}")
    return ["", f"Under torch.compile: {'; '.join(found)}."] if found else []


def unchanged_runs(figures: Mapping[str, Any], changed: Collection[str]) -> dict[str, Any]:
    """The figures of programs that called none of the kernels whose source has changed since."""

    def holds(run: Mapping[str, Any]) -> bool:
        return not changed or ("kernels_taken" in run and not {*run["kernels_taken"]} & {*changed})

    kept = {name: value for name, value in figures.items() if name not in ("train", "decode")}
    if figures.get("train") and holds(figures["train"]):
        kept["train"] = figures["train"]
    return kept | {"decode": [run for run in figures.get("decode", ()) if holds(run)]}
