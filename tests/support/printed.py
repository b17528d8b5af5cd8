"""What a table prints, as plain text."""

from __future__ import annotations

from rich.console import Console, RenderableType


def printed(table: RenderableType, width: int = 140) -> str:
    console = Console(width=width, force_terminal=False, no_color=True)
    with console.capture() as captured:
        console.print(table)
    return captured.get()
