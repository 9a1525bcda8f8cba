"""What an evaluation found, for people and as JSON. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial

from lorarl_api.v1alpha1 import EvalSpec
from lorarl_trainer.progress.tables import table
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.samples.arrays import Sums
from lorarl_trainer.samples.statistics import Estimate, estimate, estimate_gain, row_means, row_passes
from lorarl_trainer.trained_adapters.request import Task
from lorarl_trainer.trained_adapters.source import Source


@dataclass(frozen=True)
class Side:
    """What base or adapter reached.

    Attributes:
        rewards_P_K: NaN where a completion could not be scored.
        components: means of the reward's components, by metric (`reward/NAME`).
    """

    rewards_P_K: Sums
    components: Mapping[str, float]


@dataclass(frozen=True)
class Result:
    """Base and adapter on the same rows, and what they were evaluated with."""

    source: Source
    task: Task
    evaluation: Evaluation
    base: Side
    adapter: Side

    @property
    def rows(self) -> int:
        """How many rows were used."""
        return len(self.base.rewards_P_K)

    @property
    def reward(self) -> str:
        """The reward's function or type."""
        own = self.task.source.reward if isinstance(self.task.source, EvalSpec) else None
        return own.kind if own else self.task.spec.reward_names

    def estimates(self) -> dict[str, dict[str, Estimate]]:
        """Return the score and each pass@k of base and adapter, and the gain."""
        least = self.evaluation.pass_reward
        measures: dict[str, Callable[[Sums], Sums]] = {"score": row_means}
        for k in self.evaluation.pass_at:
            measures[f"pass@{k}"] = partial(row_passes, k=k, least=least)
        found = {}
        for name, measure in measures.items():
            before_P, after_P = measure(self.base.rewards_P_K), measure(self.adapter.rewards_P_K)
            if any(map(math.isfinite, before_P + after_P)):  # or no row has so many scored completions on both sides
                gain = estimate_gain(before_P, after_P)
                found[name] = {"base": estimate(before_P), "adapter": estimate(after_P), "gain": gain}
        return found

    def components(self) -> dict[str, dict[str, float]]:
        """Return the means of the components that both sides have."""
        base, adapter = self.base.components, self.adapter.components
        return {name: {"base": base[name], "adapter": adapter[name]} for name in base if name in adapter}


def to_json(result: Result) -> str:
    """Return a result as JSON, with the score of each completion; null where it has none."""
    evaluation, task = result.evaluation, result.task
    about = {
        "adapter": str(result.source.adapter),
        "checkpoint": result.source.which or None,
        "base_model": result.source.base,
        "evaluation": (task.name or "data.eval") if task.of_job else None,
        "data": task.source.origin,
        "rows": result.rows,
        "samples": evaluation.samples,
        "temperature": evaluation.sampling.temperature if evaluation.sampling else 0.0,
        "reward": result.reward,
        "passing": evaluation.pass_reward,
    }
    estimates = {name: {side: asdict(one) for side, one in sides.items()} for name, sides in result.estimates().items()}
    scores = {"base_scores": _rows(result.base), "adapter_scores": _rows(result.adapter)}
    return json.dumps({**about, **estimates, "components": result.components(), **scores}, indent=2)


def report(result: Result) -> str:
    """Return a result as lines for people."""
    evaluation, task = result.evaluation, result.task
    how = "greedy"
    if evaluation.sampling:
        how = f"{evaluation.samples} samples at temperature {evaluation.sampling.temperature:g}"
    cells = [["", "base", "adapter", "gain"]]
    for name, sides in result.estimates().items():
        if name == "pass@1" and evaluation.samples == 1:
            continue  # the share of rows that pass: with one sample, most rewards say the same
        cells.append([name, *(_shown(one, signed=side == "gain") for side, one in sides.items())])
    for name, means in result.components().items():
        before, after = means["base"], means["adapter"]
        cells.append([name, f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"])
    passing = any(row[0].startswith("pass@") for row in cells)
    return "\n".join(
        [
            f"{result.rows:,} rows of {task.title}, {how}, reward {result.reward}",
            f"adapter  {result.source.label}",
            *_notes(result),
            "",
            table(cells),
            "in brackets: 95% intervals" + f"; a completion passes with {evaluation.pass_reward:g}" * passing,
        ]
    )


def _notes(result: Result) -> list[str]:
    source, task = result.source, result.task
    notes = []
    if source.best_by and task.is_chosen_by(source.best_by):
        notes.append("note     this evaluation chose the checkpoint, which flatters it: test it on other rows too")
    if task.others and task.of_job:
        notes.append(f"note     the job has other evaluations, for --eval: {', '.join(task.others)}")
    return notes


def _rows(side: Side) -> list[list[float | None]]:
    return [[None if math.isnan(value) else float(value) for value in row] for row in side.rewards_P_K]


def _shown(one: Estimate, *, signed: bool) -> str:
    sign = "+" if signed else ""
    if one.low is None:
        return f"{one.mean:{sign}.3f}"
    return f"{one.mean:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]"
