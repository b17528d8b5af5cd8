"""Shares of the program's own time: what others took is no part of it, and has none."""

from __future__ import annotations

import dataclasses
import re

from kernelworks.records import Diagnosis
from kernelworks.records.wall_clocks import CONTENTION
from kernelworks.report.diagnosis_page.hotspot_table import hotspot_table
from kernelworks.report.hotspots import hotspots


def test_the_time_of_others_has_no_share_of_the_programs_own(diagnosis: Diagnosis) -> None:
    taken = 0.6 * diagnosis.wall_s
    others = dataclasses.replace(diagnosis.hotspots[0], op=CONTENTION, seconds=taken, parts={CONTENTION: taken})
    busy = dataclasses.replace(diagnosis, hotspots=(others,), time_breakdown={CONTENTION: taken})
    assert re.findall(r'data-label="of own" data-value="[^"]*"><div>([^<]*)<', hotspot_table(busy)) == ["-"]
    told = "\n".join(line.plain for line in hotspots(busy, 120, verbose=True))
    assert "150%" not in told and "of own" in told
