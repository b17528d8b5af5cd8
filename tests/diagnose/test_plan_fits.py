"""A plan is put into the models that it was made of: what a model lacks is said, and another model is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_plan import INNER, Block, Net, X, applied, planned
from torch import nn

from kernelworks.diagnose.optimization import EVERYWHERE, PROCESS, Candidate, Site, kind_name


def test_a_smaller_model_gets_what_fits_it_and_hears_of_the_rest() -> None:
    net = Net()
    net.blocks = net.blocks[:1]
    plan = planned(*(Candidate("marks", replace(INNER, path=f"blocks.{n}"), "yes") for n in range(3)))
    for at_once in (True, False):
        with pytest.warns(RuntimeWarning) as warned, applied(plan, *([net] if at_once else [])) as found:
            net(X)
            assert vars(net.blocks[0])["marked"] == "yes" and len(found.done) == 1 and not found.waiting
        assert [str(one.message).count("blocks.1") + str(one.message).count("blocks.2") for one in warned] == [2, 2]


def test_a_part_of_another_type_is_not_changed() -> None:
    there = replace(INNER, type="nobody.Else")
    missing = pytest.warns(RuntimeWarning, match=r"not applied: marks: yes \(blocks.1\): there is no nobody.Else at")
    with missing, applied(planned(Candidate("marks", there, "yes")), Net()) as found:
        assert "not applied" in str(found) and not found.waiting and not found.done


@pytest.mark.parametrize("site", [PROCESS, EVERYWHERE, INNER])
def test_a_model_that_the_plan_was_not_made_of_is_refused(site: Site) -> None:
    plan = planned(Candidate("marks", site, "yes"))
    for given in ([nn.Linear(8, 8)], [Net(), nn.Linear(8, 8)]):
        with pytest.raises(ValueError, match=r"the plan's program calls \(.*\.Net\), got torch.nn.*Linear"):
            applied(plan, *given)
        assert not any("marked" in vars(part) for module in given for part in module.modules())


def test_a_module_that_is_not_given_is_waited_for() -> None:
    first, second, call = Net(), Block(), nn.Module.__call__
    there = Site("module", kind_name(second), 0, "", kind_name(second))
    with applied(planned(Candidate("marks", there, "yes"), roots=(first, second)), first) as found:
        assert found.waiting and not found.failed
        second(X)
        assert vars(second)["marked"] == "yes" and not found.waiting and nn.Module.__call__ is call
