"""The plans that docs/models.md and docs/choices.md print are those that are made."""

from __future__ import annotations

import re
from pathlib import Path

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.planning.choices_table import plan_table
from unit.trainer.planning.test_choice import GPUS, H200, chosen, decisions

ROOT = Path(__file__).parents[4]
COMMON = {
    "Qwen2.5-0.5B": "0.5B",
    "Qwen2.5-1.5B": "1.5B",
    "Qwen2.5-7B": "7B",
    "Llama-3.1-8B": "Llama-3.1-8B",
    "Qwen2.5-14B": "14B",
    "Qwen2.5-32B": "32B",
    "Llama-3.1-70B": "Llama-3.1-70B",
}


def common_plans() -> str:
    """The table of docs/models.md: what is chosen for common models on common GPUs."""
    sizes = {**GPUS, 141: H200}
    rows = [["", *(f"{gigabytes} GB" for gigabytes in sizes)], ["---"] * (1 + len(sizes))]
    for model, name in COMMON.items():
        rows.append([model, *(described(name, gpu) for gpu in sizes.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def described(name: str, gpu: Gpu) -> str:
    """The layout, the micro-batch, and what is recomputed or given up, if anything."""
    for gpus in (1, 2, 4, 8):
        plan = chosen(name, gpu=gpu, gpus=gpus, prompt_tokens=512, response_tokens=1024)
        if plan.fits:
            ranks, tokens, recompute, offload = decisions(plan)
            extra = [f"recompute {recompute}"] * (recompute != "none") + [f"offload {one}" for one in sorted(offload)]
            return ", ".join([f"{ranks} x {tokens:,}", *extra])
    return "more than 8"


def section(document: str, name: str) -> str:
    """What is between the comments of this name in a document."""
    text = (ROOT / "docs" / document).read_text()
    return re.search(rf"<!-- {name}: .*? -->\n(.*?)<!-- end of the {name} -->", text, re.DOTALL).group(1)


def test_common_models_on_common_gpus_are_as_documented() -> None:
    assert section("models.md", "plans") == common_plans(), f"write this into docs/models.md:\n{common_plans()}"


def test_the_plan_that_is_documented_is_the_one_that_is_made() -> None:
    made = f"```\n{plan_table(chosen('32B'))}\n```\n"
    assert section("choices.md", "plan") == made, f"write this into docs/choices.md:\n{made}"
