"""A batch of pictures augmented, on a GPU if there is one: brightness, contrast, saturation, noise, mixup.

    python examples/augment.py
    kernelworks diagnose examples/augment.py:augment --fix

Each line is a pass over all pixels, so the program is memory-bound. The pictures are random; nothing is fetched.
"""

from __future__ import annotations

import time

import torch

PICTURES, SIZE = 16, 160
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

torch.manual_seed(0)
pixels = torch.randint(0, 256, (PICTURES, 3, SIZE, SIZE), dtype=torch.uint8).to(DEVICE)
noise = torch.randn(PICTURES, 3, SIZE, SIZE).to(DEVICE)
brightness, contrast, saturation, mix = ((0.8 + 0.4 * torch.rand(PICTURES, 1, 1, 1)).to(DEVICE) for _ in range(4))


@torch.inference_mode()
def augment() -> torch.Tensor:
    """One augmented batch, float32 [pictures, 3, size, size]."""
    return jitter(pixels)


def jitter(batch: torch.Tensor) -> torch.Tensor:
    """Each picture with its own brightness, contrast and saturation, with noise, and mixed with another one."""
    x = batch.float() / 255
    x = (x * brightness).clamp(0, 1)
    x = ((x - 0.5) * contrast + 0.5).clamp(0, 1)
    gray = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    x = (gray + (x - gray) * saturation).clamp(0, 1)
    x = (x + 0.02 * noise).clamp(0, 1)
    x = (x - 0.45) / 0.225
    return mix * x + (1 - mix) * x.flip(0)


def main() -> None:
    augment().sum().item()
    start = time.perf_counter()
    augment().sum().item()  # the answer is waited for
    elapsed = time.perf_counter() - start
    print(f"{PICTURES} pictures of {SIZE}x{SIZE} in {elapsed * 1e3:.1f} ms on {DEVICE}")


if __name__ == "__main__":
    main()
