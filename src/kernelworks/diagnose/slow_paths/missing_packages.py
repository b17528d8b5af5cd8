"""A model of transformers that runs its slow pure-torch path, as an optional package is not installed.

The file of such a module holds None in the place of each kernel that it could not import, or a function that knows its
package and runs the reference in its place.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher

KERNELS = {
    "selective_state_update": "mamba-ssm", "selective_scan_fn": "mamba-ssm", "mamba_inner_fn": "mamba-ssm",
    "mamba_chunk_scan_combined": "mamba-ssm", "causal_conv1d_fn": "causal-conv1d",
    "causal_conv1d_update": "causal-conv1d", "chunk_gated_delta_rule": "flash-linear-attention",
    "fused_recurrent_gated_delta_rule": "flash-linear-attention",
}  # fmt: skip
FAST, REFERENCE_ALONE = "is_fast_path_available", "is_new_implementation"  # transformers' own names


class Packages(Watcher):
    def __init__(self) -> None:
        self.missing: dict[type[nn.Module], tuple[str, ...]] = {}
        self.begun: dict[int, float] = {}
        self.seconds: dict[type[nn.Module], float] = {}

    def modules(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        kind = type(module)
        if kind not in self.missing:
            self.missing[kind] = _missing(kind)
        if self.missing[kind]:
            self.begun[id(module)] = time.perf_counter()

    def outputs(self, module: nn.Module, output: Any) -> None:
        begun = self.begun.pop(id(module), None)
        if begun is not None:
            self.seconds[type(module)] = self.seconds.get(type(module), 0.0) + time.perf_counter() - begun

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        for kind, seconds in self.seconds.items():
            packages = " and ".join(self.missing[kind])
            text = f"{kind.__name__} runs its slow pure-torch path, {min(1.0, seconds / wall_s):.0%} of the time: "
            if torch.cuda.is_available():
                text += f"not installed: {packages}"
            else:
                text += f"{packages} would gain nothing here: kernels for CUDA alone"
            yield SlowPath(text, seconds)


def _missing(kind: type[nn.Module]) -> tuple[str, ...]:
    """The packages whose kernels a module's methods would call and could not import."""
    file = sys.modules.get(kind.__module__)
    if file is None:
        return ()
    names = _names_in(*vars(kind).values(), kind.forward)
    names |= _names_in(*(value for name, value in vars(file).items() if name in names))  # functions of the file
    values = {name: value for name, value in vars(file).items() if name in names or names & {FAST}}
    found = {KERNELS[name] for name, value in values.items() if value is None and name in KERNELS}
    return tuple(sorted(found | {package for value in values.values() if (package := _package_of(value))}))


def _names_in(*values: Any) -> set[str]:
    """What these functions name, under whatever wraps them."""
    functions = [inspect.unwrap(value) for value in values if inspect.isfunction(value)]
    return {name for function in functions for name in function.__code__.co_names}


def _package_of(value: Any) -> str:
    """The package in whose place a function of transformers' runs its reference; "" if it does not."""
    if not inspect.isfunction(value) or value.__closure__ is None:
        return ""
    held = dict(zip(value.__code__.co_freevars, value.__closure__, strict=True))
    if not {"package", REFERENCE_ALONE} <= held.keys() or held[REFERENCE_ALONE].cell_contents:
        return ""
    return str(held["package"].cell_contents).replace("_", "-")
