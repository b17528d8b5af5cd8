"""The warnings of torch's compilers, which a user reads of what he compiles, and not of what a fix tries."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

__all__ = ["without_compiler_warnings"]

LOGGERS = ("torch._dynamo", "torch._inductor", "torch._functorch")


@contextlib.contextmanager
def without_compiler_warnings() -> Iterator[None]:
    """Within, their loggers tell of errors alone; not those that the user has set (``TORCH_LOGS``)."""
    unset = [logger for logger in map(logging.getLogger, LOGGERS) if logger.level == logging.NOTSET]
    for logger in unset:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger in unset:
            logger.setLevel(logging.NOTSET)
