"""The pages of a diagnosis and of a machine: from a record alone, on any machine."""

from __future__ import annotations

from kernelworks.records import Diagnosis, GpuPeaks, Peaks
from kernelworks.report.diagnosis_page.page_parts import SCRIPTS, STYLES, diagnosis_parts
from kernelworks.report.document import document
from kernelworks.report.machine_page import machine_parts
from kernelworks.report.next_steps import Files

__all__ = ["diagnosis", "machine"]


def diagnosis(record: Diagnosis, files: Files | None = None) -> str:
    """The page of one program, with commands that name ``files``. Without figures it is the sentence that says why."""
    return document(f"{record.program} - kernelworks diagnose", diagnosis_parts(record, files), STYLES, SCRIPTS)


def machine(*records: Peaks | GpuPeaks) -> str:
    """The page of one machine's peaks, or of several: the CPU's and its GPU's."""
    return document(f"{records[0].name} - kernelworks machine", machine_parts(*records))
