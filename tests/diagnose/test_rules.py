"""Every rule finds its problem, and does not find it in a hotspot that nearly has it."""

from __future__ import annotations

import pytest
from rule_fixtures import FIXTURES

from kernelworks.diagnose.rules import RULES, Rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_hit_and_miss(rule: Rule) -> None:
    hit, miss = FIXTURES[rule.name]
    advice = rule.applies(hit)
    assert advice is not None
    assert advice.problem and advice.action
    assert 0 <= advice.low <= advice.high <= hit.seconds
    assert rule.applies(miss) is None


def test_every_rule_has_fixtures_and_the_other_way_round() -> None:
    assert {rule.name for rule in RULES} == set(FIXTURES)


def test_names_are_those_of_the_files() -> None:
    assert [rule.applies.__module__.rpartition(".")[2] for rule in RULES] == [rule.name for rule in RULES]
