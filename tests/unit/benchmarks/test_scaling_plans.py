"""Every row of the benchmark of several GPUs has a plan on H200s, which docs/performance.md prints."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.choice import JobPlan
from scaling.machine import planned
from scaling.rows import ROWS, Row
from unit.trainer.planning.test_choice import H200
from unit.trainer.planning.test_documented_plans import section

TOO_LARGE = "a22b-8"
PLANNED = [row for row in ROWS if row.system == "lorarl" and row.name != TOO_LARGE]
BY_NAME = {row.name: row for row in ROWS}


def plan_of(row: Row) -> JobPlan:
    plan = planned(row, H200).plan
    assert plan is not None and plan.fits
    return plan


def table() -> str:
    """The table of docs/performance.md: rows beside each other with the same plan are a line."""
    lines = ["| rows | parallel | tokens of a micro-batch | else | GB planned of 149 |", "|---|---|---|---|---|"]
    for plan, rows in itertools.groupby(PLANNED, key=described):
        lines.append(f"| {', '.join(row.name for row in rows)} | {plan} |")
    return "".join(f"{line}\n" for line in lines)


def described(row: Row) -> str:
    """The cells of a row's plan."""
    plan = plan_of(row)
    layout, trainer, engine = plan.execution.layout, plan.execution.trainer, plan.execution.engine
    parts = {"tensor": layout.trainer_ranks, "context": layout.context_ranks, "expert": layout.expert_ranks}
    shared = ", ".join(f"{what} {ranks}" for what, ranks in parts.items() if ranks > 1) or "none"
    extra = [f"recompute {trainer.recompute}"] * (trainer.recompute != "none")
    extra += [f"offload {one}" for one in sorted(engine.offload)]
    cells = [shared, f"{trainer.micro_batch_tokens:,}", ", ".join(extra), f"{plan.memory.needed / 1e9:.0f}"]
    return " | ".join(cells)


def test_the_plans_of_all_rows_are_as_documented() -> None:
    made = table()
    assert section("performance.md", "plans") == made, f"write this into docs/performance.md:\n{made}"


@pytest.mark.parametrize(("name", "tried"), [("70b-4", {2, 4}), ("70b-8", {2, 4, 8})])
def test_the_rows_of_70b_try_every_layout_that_fits(name: str, tried: set[int]) -> None:
    """What is planned with nothing set, and the alternatives."""
    row = BY_NAME[name]
    alternatives = [one for one in ROWS if (one.group, one.gpus) == (row.group, row.gpus) and one.settings]
    assert {plan_of(one).execution.layout.trainer_ranks for one in (row, *alternatives)} == tried
    assert len(alternatives) == len(tried) - 1


def test_rollouts_of_235b_are_refused_at_once() -> None:
    """Each engine has all experts. The adapter's size on 36,000 layers takes a second, and is found once."""
    measured = AdapterSize._measured
    with (
        patch.object(AdapterSize, "_measured", wraps=measured) as counted,
        pytest.raises(
            InputError, match=r"got a job that needs 49\d\.\d GB on each GPU, expected at most the 149\.0 GB"
        ),
    ):
        planned(BY_NAME[TOO_LARGE], H200)
    adapters = [call.args[0].model_dump_json() for call in counted.call_args_list]
    assert len(adapters) == len(set(adapters))
