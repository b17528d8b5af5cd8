"""Work in a thread of its own, so that modes, transforms and tracers of the asking thread do not apply to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["run_in_own_thread"]

T = TypeVar("T")


def run_in_own_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns or raises. Gradients are recorded in it if they are here."""
    made: list[T] = []
    failed: list[BaseException] = []
    recording = torch.is_grad_enabled()

    def run() -> None:
        try:
            with torch.set_grad_enabled(recording):
                made.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="kernelworks fuse")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]
