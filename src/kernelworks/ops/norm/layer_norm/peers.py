"""What layer_norm is raced against on a GPU: Liger's kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kernelworks.ops.peers import Args, Maker, liger

__all__ = ["PEERS"]


def _liger(args: Args) -> Callable[[], Any] | None:
    peer = liger("layer_norm", "LigerLayerNormFunction")
    if peer is None or args.get("weight") is None or args.get("bias") is None:
        return None
    return functools.partial(peer.apply, args["x"], args["weight"], args["bias"], args["eps"])


PEERS: dict[str, dict[str, Maker]] = {"cuda": {"liger": _liger}}
