"""Loops in which the model is not what takes the time: one waits on its input, one on the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from place import DEVICE, sized
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PAIRS = {"input_bound": "shown", "overhead_bound": "policy"}


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures in memory, each flipped, cropped, tinted and normalised anew whenever it is asked for."""

    def __init__(self, count: int, side: int, crop: int) -> None:
        self.pictures = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (count,)).tolist()
        self.crop = crop

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        x = self.pictures[index].float() / 255
        if torch.rand(1).item() < 0.5:
            x = x.flip(-1)
        top, left = (int(torch.randint(0, x.shape[-1] - self.crop + 1, (1,))) for _ in range(2))
        x = x[:, top : top + self.crop, left : left + self.crop]
        x = (x * (0.8 + 0.4 * torch.rand(3, 1, 1))).clamp(0, 1)
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        return (x - mean[:, None, None]) / deviation[:, None, None], self.labels[index]


@functools.cache
def shown() -> tuple[nn.Module, torch.optim.Optimizer, Iterable[Any]]:
    """A small net, and a loader that works in the same process."""
    torch.manual_seed(0)
    count, side, crop, batch = sized(cpu=(512, 72, 64, 32), gpu=(192, 256, 224, 64))
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    ).to(DEVICE)  # fmt: skip
    loader = DataLoader(Pictures(count, side, crop), batch_size=batch, shuffle=True)
    return model, torch.optim.Adam(model.parameters(), lr=1e-4), loader


def input_bound() -> float:
    """An epoch."""
    model, optimizer, loader = shown()
    total = 0.0
    for pictures, labels in loader:
        pictures, labels = pictures.to(DEVICE), labels.to(DEVICE)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


class CartPole(nn.Module):
    """A policy, and the carts that it balances poles on: one step of both."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1), nn.Tanh())

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        push = 10.0 * self.policy(state).squeeze(-1)
        x, v, angle, turn = state.unbind(-1)
        sin, cos = torch.sin(angle), torch.cos(angle)
        swing = (push + 0.05 * turn**2 * sin) / 1.1
        bend = (9.8 * sin - cos * swing) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
        speed = swing - 0.05 * bend * cos / 1.1
        state = torch.stack([x + 0.02 * v, v + 0.02 * speed, angle + 0.02 * turn, turn + 0.02 * bend], dim=-1)
        upright = (state[:, 2].abs() < 12 * math.pi / 180) & (state[:, 0].abs() < 2.4)
        state = torch.where(upright[:, None], state, torch.zeros_like(state))
        return state, upright.float()


@functools.cache
def policy() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return CartPole().to(DEVICE), 0.05 * torch.randn(64, 4, device=DEVICE)


@torch.no_grad()
def overhead_bound() -> float:
    """What 64 carts earn in some hundred steps."""
    model, state = policy()
    earned = torch.zeros(64, device=DEVICE)
    for _ in range(sized(cpu=1500, gpu=500)):
        state, reward = model(state)
        earned += reward
    return earned.mean().item()
