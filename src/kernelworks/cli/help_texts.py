"""What ``--help`` prints: paragraphs that the terminal wraps, flags without a type, verbs in groups."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

__all__ = ["PANELS", "VerbCommand", "VerbGroup"]

# In the order in which ``--help`` lists the groups: that of the first verb of each.
PANELS = {
    name: panel
    for panel, names in (
        ("Diagnose", ("diagnose", "show", "compare", "predictions", "machine")),
        ("Kernels", ("autotune", "verify", "bench", "explain", "swap", "map", "export", "cache")),
        ("Learn", ("learn", "experiment", "climb", "descend")),
        ("Research", ("judge", "check-problem", "search")),
    )
    for name in names
}
TYPES = {"<path>": "FILE", "<list[path]>": "FILE", "<int>": "NUMBER", "<float>": "NUMBER", "<str>": "TEXT"}


def _paragraphs(text: str | None) -> str | None:
    """The text with each paragraph on one line: how wide it is, is the terminal's to say."""
    if text is None:
        return None
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _named(params: list[Any], ctx: Any) -> list[Any]:
    for param in params:
        if isinstance(param, TyperOption) and param.is_flag:
            param.metavar = ""
        elif isinstance(param, (TyperArgument, TyperOption)) and param.metavar is None:
            shown = param.display_type(ctx)
            if isinstance(param, TyperOption):
                param.metavar = TYPES.get(str(shown), shown)
    return params


OWN_ARGUMENTS = " (a script's own arguments go after `--`)"


class VerbCommand(TyperCommand):
    """One verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # of the parser, whose classes differ between versions of typer
            if type(error).__name__ == "NoSuchOption" and any(each.name == "arguments" for each in self.params):
                wrong: Any = error
                wrong.message += OWN_ARGUMENTS
                wrong.possibilities = [name for name in wrong.possibilities or () if name != "--help"]
            raise

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **{**named, "help": _paragraphs(named.get("help"))})

    def get_params(self, ctx: Any) -> list[Any]:
        return _named(super().get_params(ctx), ctx)


class VerbGroup(TyperGroup):
    """All verbs."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _named(super().get_params(ctx), ctx)
