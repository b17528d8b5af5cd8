"""A recommender (DLRM, Naumov et al. 2019): bags of embeddings, their products with each other, two small nets."""

from __future__ import annotations

import functools
import itertools

import torch
from place import DEVICE, sized
from torch import Tensor, nn

PAIRS = {"recommender": "dlrm"}


def layers(*widths: int) -> nn.Sequential:
    found: list[nn.Module] = []
    for inside, outside in itertools.pairwise(widths):
        found += [nn.Linear(inside, outside), nn.ReLU()]
    return nn.Sequential(*found)


class DLRM(nn.Module):
    def __init__(self, dense: int, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.bottom = layers(dense, 512, 256, width)
        self.embeddings = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for _ in range(tables)])
        pairs = (tables + 1) * tables // 2
        self.top = layers(width + pairs, 512, 256)
        self.score = nn.Linear(256, 1)
        one, other = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("one", one)
        self.register_buffer("other", other)

    def forward(self, dense: Tensor, ids: list[Tensor], offsets: list[Tensor]) -> Tensor:
        x = self.bottom(dense)
        bags = [bag(i, o) for bag, i, o in zip(self.embeddings, ids, offsets, strict=True)]
        features = torch.stack([x, *bags], dim=1)
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, self.one, self.other]
        return self.score(self.top(torch.cat([x, pairs], dim=1))).squeeze(1)


@functools.cache
def dlrm() -> tuple[nn.Module, torch.optim.Optimizer, Tensor, list[Tensor], list[Tensor], Tensor]:
    torch.manual_seed(0)
    tables, rows, width, batch = sized(cpu=(26, 20000, 32, 4096), gpu=(26, 1000000, 128, 8192))
    with torch.device(DEVICE):
        model = DLRM(13, tables, rows, width)
    ids, offsets = [], []
    for _ in range(tables):
        counts = torch.randint(1, 8, (batch,))
        offsets.append((counts.cumsum(0) - counts).to(DEVICE))
        ids.append(torch.randint(0, rows, (int(counts.sum()),)).to(DEVICE))
    clicks = torch.randint(0, 2, (batch,), device=DEVICE).float()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, torch.rand(batch, 13, device=DEVICE), ids, offsets, clicks


def recommender() -> float:
    """One step."""
    model, optimizer, dense, ids, offsets, clicks = dlrm()
    loss = nn.functional.binary_cross_entropy_with_logits(model(dense, ids, offsets), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
