"""A DataLoader over a TensorDataset, which takes it row by row and stacks the rows again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import TensorDataset
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from kernelworks.diagnose.slow_paths.slow_path import SlowPath, Watcher, line_of_program, replaced_attribute, seconds_of


def _at_once(dataset: TensorDataset, index: list[int]) -> list[torch.Tensor]:
    rows = torch.tensor(index)
    return [tensor[rows] for tensor in dataset.tensors]


class Rows(Watcher):
    def __init__(self) -> None:
        self.batches: dict[str, int] = {}
        self.typical: dict[str, tuple[Any, Any]] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        fetch: Any = _MapDatasetFetcher.fetch

        def fetched(fetcher: Any, index: Any) -> Any:
            rows = type(fetcher.dataset) is TensorDataset and fetcher.auto_collation
            if not rows or fetcher.collate_fn is not default_collate:
                return fetch(fetcher, index)
            line = line_of_program()
            self.batches[line] = self.batches.get(line, 0) + 1
            self.typical.setdefault(line, (fetcher, index))
            return fetch(fetcher, index)

        with replaced_attribute(_MapDatasetFetcher, "fetch", fetched):
            yield

    def slow_paths(self, wall_s: float, threads: int) -> Iterator[SlowPath]:
        for line, (fetcher, index) in self.typical.items():
            slow = seconds_of(_MapDatasetFetcher.fetch, fetcher, index)
            fast = seconds_of(_at_once, fetcher.dataset, list(index))
            yield SlowPath(
                f"{line}: the DataLoader takes a TensorDataset row by row, {slow / fast:.0f}x as long as a batch at "
                "once: sampler=BatchSampler(RandomSampler(data), batch_size, drop_last=False), batch_size=None",
                (slow - fast) * self.batches[line],  # of the least times: beside others a run's own say less
            )  # fmt: skip
