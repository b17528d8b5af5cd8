"""Pages of the reference that are written from the code: ``python tools/reference_pages.py [--check] [FOLDER]``.

| page | from |
|---|---|
| ``docs/reference/cli.md`` | the command's own ``--help``: every verb, argument and option |
| ``docs/reference/api.md`` | the docstrings of what ``import kernelworks`` offers |
| ``docs/reference/kernelbench.md`` | ``benchmarks/kernelbench_calls.toml`` and the ops there are |
| ``docs/reference/op-records.md`` | certificates, tuning records and figures on record, op by op (``op_records.py``) |

``--check`` writes nothing and exits with 1 if a page is out of date.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from typer.main import get_command

import kernelbench_coverage
import kernelworks
import op_records
from kernelworks import nn, ops, records
from kernelworks.cli import app

__all__ = ["PAGES", "api", "cli", "main", "outdated"]

SECTION = re.compile(r"(Args|Returns|Raises|Error bound|Cost|Source|Yields|Example):(.*)", re.S)
ENTRY = re.compile(r"[\w*, .]+:")  # of a section: a name, or several, and what it is
RECORDS = ("Diagnosis", "Hotspot", "BenchResult", "AutotuneResult")


def code_spans(text: str) -> str:
    """Text of a docstring as Markdown: what is code there is code here, and no sign means anything else."""
    parts = re.split(r"(``.+?``|`[^`\n]+`)", " ".join(text.split()))
    for at, part in enumerate(parts):
        parts[at] = f"`{part.strip('`')}`" if at % 2 else re.sub(r"([*_<|])", r"\\\1", part)
    return "".join(parts)


# ---------------------------------------------------------------- the command line


def _names(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    record = parameter.get_help_record(context)
    value = record[0].rpartition("--")[2].partition(" ")[2] if record and not parameter.is_flag else ""
    return ", ".join(f"`{name} {value}`".replace(" `", "`") for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    plain = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    return f"`{default}`" if plain and default != "" else ""


def _parameters(command: Any, context: Any) -> Iterator[str]:
    shown = [p for p in command.params if not getattr(p, "hidden", False) and p.name != "help"]
    if shown:
        yield from ("| argument or option | meaning | default |", "|---|---|---|")
    for parameter in shown:
        names = _names(parameter, context).replace("|", "\\|")
        yield f"| {names} | {code_spans(getattr(parameter, 'help', None) or '')} | {_default(parameter)} |"


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        yield from (code_spans(paragraph), "")


def _verb(name: str, command: Any, docs: Path) -> Iterator[str]:
    with click.Context(command, info_name=f"kernelworks {name}") as context:
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        yield from (f"## {name}", "", f"    {usage}", "")
        yield from _paragraphs(command.help or "")
        yield from (*_parameters(command, context), "")
    for inner, its in getattr(command, "commands", {}).items():
        yield from _verb(f"{name} {inner}", its, docs)
    if (docs / f"{name}.md").is_file():
        yield from (f"More: [{name}]({name}.md).", "")


def cli(root: Path) -> str:
    """The reference of the command line."""
    command: Any = get_command(app)
    lines = [
        "# Command line", "",
        "Written from `kernelworks --help` by `make docs`; a test checks that it is current.", "",
        *_paragraphs(command.help or ""),
        *_paragraphs(command.epilog or ""),
        "[Troubleshooting](../troubleshooting.md) says what to do about each exit code.", "",
    ]  # fmt: skip
    for name, verb in command.commands.items():
        lines += _verb(name, verb, root / "docs" / "reference")
    return "\n".join(lines).rstrip() + "\n"


# ---------------------------------------------------------------- Python


def _signature(function: Callable[..., Any], *, bound: bool = False) -> str:
    """The names and defaults of a function's parameters, the same on every version of Python."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[int(bound) :]
    except (TypeError, ValueError):
        return "(...)"
    blank = inspect.Parameter.empty
    plain = []
    for parameter in parameters:
        default = parameter.default
        shown = default if default is blank or not repr(default).startswith("<") else ...
        plain.append(parameter.replace(annotation=blank, default=shown))
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


def _items(text: str) -> Iterator[str]:
    """The entries of an indented section, ``name: what it is``, as a list; plain text as a paragraph."""
    entries: list[str] = []
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(text).strip("\n")):
        if entries and not ENTRY.match(entry):
            entries[-1] += f"\n{entry}"
        else:
            entries.append(entry)
    for entry in entries:
        name, _, rest = entry.partition(":")
        yield f"- `{name}`: {code_spans(rest)}" if ENTRY.match(entry) else f"- {code_spans(entry)}"


def docstring(thing: Any) -> list[str]:
    """A docstring as lines of Markdown: paragraphs, and sections as lists."""
    text = inspect.getdoc(thing) or ""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        for part in re.split(r"\n(?=(?:Args|Returns|Raises|Error bound|Cost|Source|Yields):)", block):
            section = SECTION.fullmatch(part)
            if section is None:
                lines += [code_spans(part), ""]
            elif section[2].startswith("\n"):
                lines += [f"**{section[1]}**", "", *_items(section[2]), ""]
            else:
                lines += [f"**{section[1]}:** {code_spans(section[2])}", ""]
    return lines


def _members(kind: type) -> Iterator[str]:
    """The public methods and properties of a class that its own code has and describes."""
    for name, member in sorted(vars(kind).items()):
        plain = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if name.startswith("_") or not (inspect.getdoc(plain) or "").strip():
            continue
        if isinstance(plain, property):
            yield f"- `.{name}`: {code_spans(_first_paragraph(plain))}"
        elif inspect.isfunction(plain):
            yield f"- `.{name}{_signature(plain, bound=True)}`: {code_spans(_first_paragraph(plain))}"


def _first_paragraph(thing: Any) -> str:
    return re.split(r"\n\s*\n", inspect.getdoc(thing) or "")[0]


def _fields(kind: type) -> Iterator[str]:
    for field in dataclasses.fields(kind):
        yield f"- `{field.name}`: `{field.type if isinstance(field.type, str) else field.type.__name__}`"


def _entry(name: str, thing: Any, *, fields: bool = False) -> list[str]:
    lines = [f"### {name}", ""]
    if inspect.isclass(thing):
        if not dataclasses.is_dataclass(thing):
            lines += [f"    kernelworks.{name}{_signature(thing)}", ""]
        lines += docstring(thing) if thing.__doc__ and not thing.__doc__.startswith(f"{thing.__name__}(") else []
        lines += [*_members(thing), ""]
        lines += [*_fields(thing), ""] if fields and dataclasses.is_dataclass(thing) else []
        return lines
    return [*lines, f"    kernelworks.{name}{_signature(thing)}", "", *docstring(thing)]


def _entries(names: Iterable[str], home: Any, prefix: str = "", *, fields: bool = False) -> list[str]:
    return [line for name in names for line in _entry(prefix + name, getattr(home, name), fields=fields)]


def api(root: Path) -> str:
    """The reference of the package's names in Python."""
    own = [name for name in kernelworks.__all__ if name not in ops.NAMES and name not in ("__version__", "nn")]
    verbs = [name for name in own if name[0].islower()]
    classes = [name for name in own if name[0].isupper()]
    lines = [
        "# Python API", "",
        "Written from the docstrings by `make docs`; a test checks that it is current. `import kernelworks as kw` "
        "loads names only: what a name stands for is loaded when it is first used.", "",
        "## Verbs", "", *_entries(verbs, kernelworks),
        "## Classes", "", *_entries(classes, kernelworks),
        "## Ops", "",
        "Every op takes and returns torch tensors, NumPy arrays or anything with DLPack. "
        "[Calling conventions](calling-conventions.md) has what they share, [ops and kernels](ops.md) their kernels.",
        "",
        *_entries(ops.NAMES, kernelworks),
        "## Modules", "", *docstring(nn), *(f"- `kernelworks.nn.{name}`" for name in nn.__all__), "",
        "## Records", "",
        "What the verbs return, as plain data. `kernelworks.records.to_json` and `from_json` write and read them.", "",
        *_entries(RECORDS, records, "records.", fields=True),
    ]  # fmt: skip
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


# ---------------------------------------------------------------- the pages

PAGES: dict[str, Callable[[Path], str]] = {
    "docs/reference/cli.md": cli,
    "docs/reference/api.md": api,
    "docs/reference/kernelbench.md": kernelbench_coverage.page,
    "docs/reference/op-records.md": op_records.page,
}


def outdated(root: Path) -> dict[str, str]:
    """The pages that are not what the code says now, with what it says."""
    made = {page: write(root) for page, write in PAGES.items()}
    return {
        page: text
        for page, text in made.items()
        if not (root / page).is_file() or (root / page).read_text(encoding="utf-8") != text
    }


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    root = Path(next((a for a in arguments if not a.startswith("-")), "."))
    stale = outdated(root)
    for page, text in stale.items():
        if not check:
            (root / page).parent.mkdir(parents=True, exist_ok=True)
            (root / page).write_text(text, encoding="utf-8")
        print(f"{page}: {'out of date' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
