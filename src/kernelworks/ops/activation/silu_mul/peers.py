"""What silu_mul is raced against on a GPU: Liger's kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernelworks.ops.peers import Args, Maker, liger

__all__ = ["PEERS"]


def _liger(args: Args) -> Callable[[], Any] | None:
    peer = liger("swiglu", "LigerSiLUMulFunction")
    return None if peer is None else functools.partial(peer.apply, args["gate"], args["up"])


PEERS: dict[str, dict[str, Maker]] = {"cuda": {"liger": _liger}}
