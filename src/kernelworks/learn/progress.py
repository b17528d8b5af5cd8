"""How far a learner has come: one file in the learner's own folder, written whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from kernelworks.learn.exercise import Exercise
from kernelworks.machine.environment import write_whole
from kernelworks.records.json_text import read_json

__all__ = ["FOLDER", "Progress", "ProgressOfOne", "folder_of_learner"]

FOLDER = Path("kernelworks-learn")
FILE = "progress.json"


def folder_of_learner(here: Path | None = None) -> Path:
    """The folder that holds a learner's files: that of ``here`` (where the command is typed) or of the nearest folder
    above it that has one, so that a check works from among the files as well; ``FOLDER`` if there is none yet."""
    here = here or Path.cwd()
    for folder in (here, *here.parents):
        if folder.name == FOLDER.name and (folder / FILE).is_file():
            return folder
        if (folder / FOLDER / FILE).is_file():
            return FOLDER if folder == here else folder / FOLDER
    return FOLDER


@dataclass(frozen=True)
class ProgressOfOne:
    """Of one exercise. ``right`` says whether a check has passed; ``best_s`` is the shortest time of a call,
    None where nothing was timed."""

    checks: int = 0
    right: bool = False
    hints: int = 0
    gave_up: bool = False
    best_s: float | None = None

    @property
    def word(self) -> str:
        return "done" if self.right else "solution seen" if self.gave_up else "begun"


class Progress:
    """The progress of the learner whose folder this is. Raises ValueError where its file is damaged, OSError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.exercises: dict[str, ProgressOfOne] = {}
        self.last = ""  # the exercise that was started or checked last
        path = folder / FILE
        if not path.exists():
            return
        try:
            found = read_json(path)
            self.exercises = {name: ProgressOfOne(**entry) for name, entry in found["exercises"].items()}
            self.last = str(found.get("last", ""))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is damaged ({error}): mend or remove it") from error

    def file(self, exercise: Exercise) -> Path:
        """Where the learner writes."""
        return self.folder / exercise.name / exercise.file_name

    def of(self, exercise: Exercise) -> ProgressOfOne | None:
        """None of an exercise that was not begun."""
        return self.exercises.get(exercise.name)

    def keep(self, exercise: Exercise, **changes: object) -> ProgressOfOne:
        """Changes what is known of one exercise, and writes the file."""
        now = self.exercises.get(exercise.name, ProgressOfOne())
        self.exercises[exercise.name] = changed = dataclasses.replace(now, **changes)  # type: ignore[arg-type]
        self.last = exercise.name
        entries = {name: dataclasses.asdict(entry) for name, entry in self.exercises.items()}
        write_whole(
            self.folder / FILE,
            json.dumps({"exercises": entries, "last": self.last}, indent=1) + "\n",
            prefix=".progress-",
        )
        return changed
