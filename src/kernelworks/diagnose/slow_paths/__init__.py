"""The slow paths that a program may have taken without anybody's knowledge: one file each, said before all else."""

from __future__ import annotations

from kernelworks.diagnose.slow_paths import (
    arrays_in_lists,
    denormals,
    generation_without_cache,
    math_attention,
    missing_packages,
    narrow_products,
    rows_of_tensors,
    unread_maps,
)
from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher

__all__ = ["WATCHERS", "SlowPath", "Watcher"]

WATCHERS: tuple[type[Watcher], ...] = (
    missing_packages.Packages, math_attention.Attention, unread_maps.Maps, narrow_products.Products,
    arrays_in_lists.Lists, rows_of_tensors.Rows, generation_without_cache.Prefixes, denormals.Denormals,
)  # fmt: skip
