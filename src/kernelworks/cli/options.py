"""Options that several verbs have."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Device", "Json", "Rough", "Verbose"]

Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda.", metavar="DEVICE")]
Rough = Annotated[
    bool, typer.Option("--rough", help="Give figures, marked as rough, even while other processes use the machine.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print everything that the record holds.")]
