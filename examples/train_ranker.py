"""One training step of a ranking model: two embedding tables, two linear layers, AdamW as torch makes it by default.

    python examples/train_ranker.py
    kernelworks diagnose examples/train_ranker.py:step --fix

Most weights lie in the tables, of which a batch reads a few rows: the step waits for the optimizer. Data are random.
"""

from __future__ import annotations

import time

import torch
from torch import nn

ROWS, WIDTH, BATCH = 25_000, 64, 256
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Ranker(nn.Module):
    """The score of a user and an item."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(ROWS, WIDTH), nn.Embedding(ROWS, WIDTH)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return self.score(torch.cat((self.users(user), self.items(item)), -1)).squeeze(-1)


torch.manual_seed(0)
model = Ranker().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
user, item = torch.randint(0, ROWS, (2, BATCH)).to(DEVICE)
clicked = torch.randint(0, 2, (BATCH,)).float().to(DEVICE)


def step() -> torch.Tensor:
    """Forward, backward and optimizer. Returns the loss."""
    loss = nn.functional.binary_cross_entropy_with_logits(model(user, item), clicked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    step().item()
    start = time.perf_counter()
    loss = step().item()
    elapsed = time.perf_counter() - start
    print(f"a step of {BATCH} in {elapsed * 1e3:.1f} ms on {DEVICE}, loss {loss:.4f}")


if __name__ == "__main__":
    main()
