"""What softmax is raced against on a GPU: Liger's kernel, of the last dimension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernelworks.ops.peers import Args, Maker, liger

__all__ = ["PEERS"]


def _liger(args: Args) -> Callable[[], Any] | None:
    peer = liger("softmax", "LigerSoftmaxFunction")
    if peer is None or args["dim"] not in (-1, args["x"].dim() - 1):
        return None
    return functools.partial(peer.apply, args["x"])


PEERS: dict[str, dict[str, Maker]] = {"cuda": {"liger": _liger}}
