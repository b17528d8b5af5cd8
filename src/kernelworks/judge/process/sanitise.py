"""What a candidate's process says of itself, as the supervisor takes it: nothing but short texts that can be shown. A
candidate may write whatever it likes on the socket; words that are none of the judge's end its process, not the judge.
"""

from __future__ import annotations

from typing import Any

__all__ = ["lines", "one_line", "parse_load_answer", "sanitize_text", "seconds", "words"]

MOST_TEXT, MOST_LINES, MOST_NAME = 4000, 200, 80
WEIGHTS = ("none", "the reference's", "drawn from the same seed")
ALLOWED_CONTROLS = "\n\t"  # of compilers' errors


def sanitize_text(value: object, most: int = MOST_TEXT) -> str:
    """A text with nothing in it that a terminal or a file would take for more than letters."""
    text = value[:most] if isinstance(value, str) else ""
    return "".join(c if c.isprintable() or c in ALLOWED_CONTROLS else c.encode("unicode_escape").decode() for c in text)


def one_line(value: object) -> str:
    """A name, which whoever is judged has chosen: nothing in it begins a line of its own."""
    return " ".join(sanitize_text(value, MOST_NAME).split())


def lines(value: object) -> list[str]:
    """A list of texts; what else is in it is left out."""
    return [sanitize_text(one) for one in value[:MOST_LINES] if isinstance(one, str)] if isinstance(value, list) else []


def words(value: object) -> dict[str, Any]:
    """An answer by its names; none of another kind."""
    return value if isinstance(value, dict) else {}


def seconds(value: object) -> float:
    """Seconds; 0 where it is none."""
    return value if isinstance(value, float) and 0 <= value < float("inf") else 0.0


def parse_load_answer(value: object) -> dict[str, Any]:
    """What a process says once it has made its callable, or could not."""
    said = words(value)
    if "raised" in said:
        return {"raised": sanitize_text(said["raised"])}
    constants, elements, weights = said.get("constants"), said.get("elements"), said.get("weights")
    return {
        "loaded": True, "changed": lines(said.get("changed")), "weights": weights if weights in WEIGHTS else "",
        "constants": constants if isinstance(constants, int) else 0,
        "elements": elements if isinstance(elements, int) else 0,
    }  # fmt: skip
