"""What a terminal shows, as a picture for a page that shows no colours of its own (README.md)."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType
from rich.terminal_theme import TerminalTheme

from kernelworks.report.document import colours

__all__ = ["svg"]

# Rich's own frame asks a server for its font; this one takes what the reader has.
FRAME = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="{paper}"/>
<g transform="translate({terminal_x}, 14)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g></svg>
"""
# In the order of a terminal's colours: black, red, green, yellow, blue, magenta, cyan, white, and the bright ones.
COLOURS = (
    "line", "dispatch", "useful", "compute", "memory", "transcendental", "allocation", "ink",
    "unexplained", "host", "muted", "sync", "waiting", "native", "communication", "ink",
)  # fmt: skip


def _rgb(colour: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return red, green, blue


def svg(shown: RenderableType, width: int, label: str) -> str:
    """The picture of a terminal of ``width`` columns; the same text always makes the same picture."""
    console = Console(
        record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor", highlight=False,
        legacy_windows=False,
    )  # fmt: skip
    console.print(shown)
    inks = colours(dark=True)
    sixteen = [_rgb(inks[name]) for name in COLOURS]
    theme = TerminalTheme(_rgb(inks["paper"]), _rgb(inks["ink"]), sixteen[:8], sixteen[8:])
    frame = FRAME.replace("{paper}", inks["paper"])
    frame = frame.replace("{label}", label.replace("{", "").replace("}", "").replace('"', ""))
    text = console.export_svg(title="", theme=theme, code_format=frame, unique_id="shown")
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip()) + "\n"
