"""Carries certificates, timings and records over to hashes of format 2: ``python benchmarks/carried_over.py``.

Those of format 1 left out the code that launches a row. A row's certificate is carried over where, at the commit that
it is compared with, its hash of format 1 is the one that was proved, and where what it speaks for is the same to the
byte now: the flags, the machine code (the bytes of all sources, or else the libraries that this machine's compiler
makes of both) and the text of what launches it, as ``build/launch_code.py`` reads both trees. The new certificate says so
(``carried_from``). Certificates of GPUs are left alone: they are proved anew on the card.

Timings and records are of the same bytes and so of the same speed: they get the new hash for a row of which the same
holds, a GPU's too, where ``SAME`` says why a text that is another one launches the same.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMMIT = "57ed2ab"  # the last with hashes of format 1
HASH = re.compile(r"\b[0-9a-f]{64}\b")
READERS = ("indexed", "launching", "reading", "scopes", "sources", "stripped")  # of ``build``; they read either tree
SAME = {"add_layer_norm.triton": "its arguments are named by a constant of the contract, not by the form"}


# ---------------------------------------------------------------- one tree


def _keep_written() -> None:
    """Functions that are made of a text keep it, as ``templates/launches.py`` has it since."""
    run = builtins.exec

    def keeping(text: Any, scope: Any = None, *more: Any) -> None:
        run(text, scope, *more)
        if isinstance(text, str) and isinstance(scope, dict) and "bind" in scope:
            vars(scope["bind"])["written"] = text

    builtins.exec = keeping  # type: ignore[assignment]


def listed() -> dict[str, dict[str, Any]]:
    """Of every row of the package that is imported: its hash, what its machine code is made of, what launches it."""
    _keep_written()
    from kernelworks.build import cpp, cuda
    from kernelworks.build.configs import configs
    from kernelworks.build.constants import constants_of
    from kernelworks.build.launch_code import Launches, Walk
    from kernelworks.build.source_index import PACKAGE, Files
    from kernelworks.build.sources import with_includes
    from kernelworks.dispatch.op import OPS

    class Launching(Walk):
        """What rows of rows hash to depends on the format."""

        def _row(self, v: Any) -> str:
            return "row" if v.device == "cuda" else f"row {Launching((v.load, v.prepare), self.files).text}"

    def digest(*parts: Any) -> str:
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def made_of(paths: list[Path], shared: Path) -> str:
        files = list(dict.fromkeys(f for path in paths for f in with_includes(path, shared)))
        return digest([(f.name, f.read_bytes()) for f in files])

    def of_cpp(row: Any) -> dict[str, Any]:
        walk = Launching((row.load, row.prepare), Files())
        sources = sorted(walk.sources, key=lambda path: path.name)
        flags = [(cpp.COMMON_FLAGS, cpp.TARGETS[row.target].flags, constants_of(s, row.target).text) for s in sources]
        return {"sources": [str(s) for s in sources], "code": made_of(sources, cpp.SIMD), "flags": digest(flags),
                "launch": digest(walk.text)}  # fmt: skip

    def of_gpu(row: Any) -> dict[str, Any]:
        room = ".".join(("kernelworks", *row.source.parent.relative_to(PACKAGE).parts))
        modules = dict.fromkeys((row.name if row.source.suffix == ".cu" else "triton", "triton"))
        roots: list[Any] = [Launches(f"{room}.{m}", row.passes) for m in modules]
        roots += [Launches(f"kernelworks.build.{m}", ("replayed",)) for m in ("series", "replay")]
        roots += [f for f in (row.load, row.prepare) if not isinstance(f, functools.partial)]
        code = [made_of([row.source], cuda.TILE)] if row.source.suffix == ".cu" else []
        texts = [configs(row.source).text(name) for name in dict.fromkeys((row.name, "triton"))]
        return {"sources": [], "code": digest(code), "flags": digest(cuda.FLAGS, texts),
                "launch": digest(Launching(roots, Files()).text)}  # fmt: skip

    return {
        f"{op.name}.{row.name}": {
            "hash": row.hash(), "device": row.device, "target": row.target,
            **(of_gpu(row) if row.device == "cuda" else of_cpp(row)),
        }
        for op in OPS.values() for row in op.rows if row.source is not None
    }  # fmt: skip


def libraries(rows: list[str]) -> dict[str, list[str]]:
    """Of some rows the digests of the libraries that this machine's compiler makes."""
    from kernelworks.build import cpp

    found: dict[str, list[str]] = {}
    for name, its in listed().items():
        if name in rows:
            paths = [cpp.built(Path(source), its["target"]) for source in its["sources"]]
            found[name] = [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    return found


def in_tree(source: Path, *arguments: str) -> Any:
    """What this script says as a program of the package that lies there."""
    environment = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, str(Path(__file__).resolve()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, cwd=source)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout)


def checked_out(commit: str, folder: Path) -> Path:
    """The package as it was, with what reads either tree; hashes do not depend on that."""
    archive = subprocess.run(
        ["git", "archive", commit, "src", "benchmarks/results"], capture_output=True, check=True, cwd=ROOT
    )
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    for name in READERS:
        text = (ROOT / "src/kernelworks/build" / f"{name}.py").read_bytes()
        (folder / "src/kernelworks/build" / f"{name}.py").write_bytes(text)
    return folder / "src"


# ---------------------------------------------------------------- both


def alike(then: dict[str, Any], now: dict[str, Any], source: Path) -> dict[str, str]:
    """The rows that are the same in both trees -> how the machine code is known to be."""
    same: dict[str, str] = {}
    compiled = []
    for name in then.keys() & now.keys():
        if then[name]["flags"] == now[name]["flags"] and then[name]["launch"] == now[name]["launch"]:
            if then[name]["code"] == now[name]["code"]:
                same[name] = "sources"
            elif now[name]["device"] == "cpu":
                compiled.append(name)
    if compiled:
        before, after = (in_tree(at, "--libraries", *compiled) for at in (source, ROOT / "src"))
        same |= {name: "libraries" for name in compiled if before[name] == after[name]}
    return same


def carried(
    then: dict[str, Any], now: dict[str, Any], same: Mapping[str, str], commit: str, source: Path
) -> Iterator[str]:  # fmt: skip
    """Certificates of CPUs, from those of the commit; what was proved since under a hash of format 2 stays."""
    from kernelworks.build.launch_code import FORMAT
    from kernelworks.dispatch import certificates

    for path in sorted((source / "kernelworks" / "certified").glob("*.json")):
        kind = path.stem
        if kind.startswith("sm_"):
            continue
        held = [certificates._read(record) for record in json.loads(path.read_text(encoding="utf-8"))]
        proved = {(c.op, c.row): c for c in certificates._shipped(kind).values() if not c.carried_from}
        found, left = [c for c in proved.values() if c.format == FORMAT], []
        for c in held:
            name = f"{c.op}.{c.row}"
            if any((c.op, c.row) == (other.op, other.row) for other in found):
                continue
            if name in same and c.format == 1 and then[name]["hash"] == c.source_hash:
                why = (
                    f"format 1, {c.source_hash}: at {commit} flags, {same[name]} and launch text are what they are now"
                )
                found.append(replace(c, source_hash=now[name]["hash"], format=FORMAT, carried_from=why))
            else:
                left.append(name)
        certificates.write_shipped(found, kind)
        yield f"{kind}: {len(found)} of {len(held)} certificates" + (f"; not {', '.join(left)}" if left else "")


def among(said: str, op: str, way: str, sources: Mapping[str, tuple[str, str, str]]) -> str:
    """``timings.among`` with new hashes, of whichever of an op's ways it was made; "" where that is not found.

    ``sources``: row -> old hash, new hash, toolchain.
    """

    def digest(ways: tuple[tuple[str, ...], ...], at: int) -> str:
        lines = []
        for rows in sorted(ways, key="+".join):
            hashes = "+".join(sources[row][at] for row in rows)
            lines.append(f"{'+'.join(rows)} {hashes} {'+'.join(dict.fromkeys(sources[row][2] for row in rows))}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]

    singles = [(row,) for row in sources]
    pairs = list(itertools.product(sources, sources))
    for some in subsets(singles):
        if digest(some, 0) == said:
            return digest(some, 1)
        if "+" in way:
            for firsts in subsets(list(sources)):
                for seconds in subsets(list(sources)):
                    ways = (*some, *(pair for pair in pairs if pair[0] in firsts and pair[1] in seconds))
                    if ways and digest(ways, 0) == said:
                        return digest(ways, 1)
    return ""


def subsets(items: list[Any]) -> list[tuple[Any, ...]]:
    return [some for n in range(len(items) + 1) for some in itertools.combinations(items, n)]


def rekeyed(hashes: Mapping[str, str], then: Mapping[str, Any], now: Mapping[str, Any], source: Path) -> Iterator[str]:
    """Timings of the commit: the source's hash, and of what they were raced among. Those that were made of the rows as
    they are now stay."""
    from kernelworks.dispatch import tuning_records

    known = {its["hash"] for its in now.values()}
    for path in sorted((source / "kernelworks" / "timed").glob("*.json")):
        changed = 0
        remade: dict[tuple[str, ...], str] = {}
        found = {(t.op, t.key): t for t in tuning_records._read(tuning_records.SHIPPED / path.name)[0]}
        made = {at for at, t in found.items() if known.issuperset(t.source_hash.split("+"))}
        for t in tuning_records._read(path)[0]:
            if (t.op, t.key) in made:
                continue
            new = "+".join(hashes.get(one, one) for one in t.source_hash.split("+"))
            if new != t.source_hash:
                device = "cuda" if path.stem.startswith("sm_") else "cpu"
                mine = {n.split(".", 1)[1]: n for n in now if n.startswith(f"{t.op}.") and now[n]["device"] == device}
                tools = toolchains(path.stem, t.op)
                sources = {r: (then[n]["hash"], now[n]["hash"], tools.get(r, "")) for r, n in mine.items() if n in then}
                key = (t.among, t.op, t.way)
                if t.among and key not in remade:
                    remade[key] = among(*key, sources)
                t, changed = replace(t, source_hash=new, among=remade.get(key, "") if t.among else ""), changed + 1
            found[t.op, t.key] = t
        tuning_records.write_shipped(found.values(), path.stem)
        lost = sum(not new for new in remade.values())
        yield f"{path.name}: {changed} of {len(found)} timings" + (
            f", {lost} without what they were among" if lost else ""
        )


def records(hashes: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Results that name hashes: those of the commit, where nothing else changed in a file since; else as they lie."""
    for path in sorted((ROOT / "benchmarks" / "results").glob("*.json")):
        text = path.read_text(encoding="utf-8")
        before = (folder / path.name).read_text(encoding="utf-8") if (folder / path.name).is_file() else text
        said = before if HASH.sub("", before) == HASH.sub("", text) else text
        new = HASH.sub(lambda found: hashes.get(found[0], found[0]), said)
        if new != text:
            path.write_text(new, encoding="utf-8")
            yield f"{path.name}: {len(hashes.keys() & set(HASH.findall(said)))} hashes"


def toolchains(place: str, op: str) -> dict[str, str]:
    """Row -> the toolchain that its certificate names on that machine."""
    from kernelworks.dispatch import certificates

    kind = next((k for k in certificates.shipped_kinds() if place.startswith(k)), "")
    return {c.row: c.toolchain for c in certificates._shipped(kind).values() if c.op == op}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=COMMIT, help="the commit whose hashes are of format 1")
    parser.add_argument("--listed", action="store_true", help="prints what the rows of the package at hand are made of")
    parser.add_argument("--libraries", nargs="+", help="prints digests of these rows' libraries")
    given = parser.parse_args()
    if given.listed or given.libraries:
        print(json.dumps(libraries(given.libraries) if given.libraries else listed()))
        return
    with tempfile.TemporaryDirectory() as folder:
        source = checked_out(given.commit, Path(folder))
        then, now = (in_tree(at, "--listed") for at in (source, ROOT / "src"))
        same = alike(then, now, source)
        hashes = {then[n]["hash"]: now[n]["hash"] for n in then.keys() & now.keys() if n in same or n in SAME}
        lines = carried(then, now, same, given.commit, source), rekeyed(hashes, then, now, source)
        for line in itertools.chain(*lines, records(hashes, source.parent / "benchmarks" / "results")):
            print(line)
    print(f"not the same: {', '.join(sorted(n for n in now if n not in same and n not in SAME)) or 'none'}")


if __name__ == "__main__":
    main()
