"""Pages without matplotlib: each picture is a line that says what draws it. Everything else on a page is the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

__all__ = ["EXTRA", "optional_picture"]

P = ParamSpec("P")
EXTRA = 'pip install "kernelworks[plots]"'
NOTE = f"<p>This picture needs matplotlib: <code>{EXTRA}</code></p>".replace('"', "&quot;")


def optional_picture(draw: Callable[P, str]) -> Callable[P, str]:
    """``draw``, or the line if matplotlib is not installed."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return draw(*args, **kwargs)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "matplotlib":
                raise
            return NOTE

    return drawn
