"""Where ladders lie. Known without torch."""

from __future__ import annotations

from pathlib import Path

__all__ = ["folders", "ladder_folder"]

CHECKOUT = Path(__file__).resolve().parents[3] / "ladders"
SHIPPED_LADDERS = Path(__file__).resolve().parents[1] / "ladders"  # with the wheel


def folders() -> dict[str, Path]:
    """Ladders by name: those of the working folder first, then those of the checkout that this package runs from, or of
    its wheel."""
    found: dict[str, Path] = {}
    for root in (Path("ladders"), CHECKOUT, SHIPPED_LADDERS):
        for path in sorted(root.glob("*/problem.py")):
            found.setdefault(path.parent.name, path.parent.resolve())
    return found


def ladder_folder(name: str) -> Path:
    """The folder of a ladder, by its name or its path. Raises ValueError if there is none."""
    known = folders()
    folder = known.get(name, Path(name))
    if not folder.is_dir():
        raise ValueError(f"there is no ladder {name!r}; there are: {', '.join(known) or 'none'}")
    return folder
