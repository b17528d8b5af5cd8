"""JSON as files of records hold it: a line for each field, and where that is a list of records, for each of them. So a
file shows as many changed lines as records changed, and no more lines than it has records."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["in_lines"]


def in_lines(value: Any) -> str:
    """The text of plain values: dictionaries, lists, numbers, strings."""
    if not isinstance(value, dict):
        return _items(value, "\n")
    fields = (f"\n {json.dumps(name)}: {_items(held, chr(10) + ' ')}" for name, held in value.items())
    return "{" + ",".join(fields) + "\n}"


def _items(value: Any, at: str) -> str:
    if isinstance(value, (list, tuple)) and any(isinstance(item, (dict, list)) for item in value):
        return "[" + ",".join(f"{at} {json.dumps(item)}" for item in value) + f"{at}]"
    return json.dumps(value)
