"""One evaluation of the manifest: its rows, what scores them, and how their completions are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lorarl_api.v1alpha1 import EvalSource, EvalSpec, LoRARLJobSpec, RewardSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.samples.sampling import Sampling


@dataclass(frozen=True)
class Evaluation:
    """Held-out rows and what to do with them.

    Attributes:
        name: of `data.evals`; empty for `data.eval`.
        rows: the held-out rows.
        scorer: scores the completions.
        sampling: where completions are drawn from; None takes the best token everywhere.
        samples: completions of each row.
        pass_at: the k of each pass@k.
        pass_reward: least reward of a completion that passes.
        limits: `maxFailedShare` of each reward, by the reward's path in the manifest.
    """

    name: str
    rows: Sequence[EncodedRow]
    scorer: Scorer
    sampling: Sampling | None = None
    samples: int = 1
    pass_at: Sequence[int] = ()
    pass_reward: float = 1.0
    limits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, name: str, source: EvalSource, rows: Sequence[EncodedRow], scorer: Scorer, spec: LoRARLJobSpec
    ) -> Evaluation:
        """Return the evaluation of a field. `data.eval` has no settings of its own: it is greedy."""
        limits = failure_limits(spec.rewards_of(name))
        if not isinstance(source, EvalSpec):
            return cls(name, rows, scorer, limits=limits)
        return cls(
            name=name,
            rows=rows,
            scorer=scorer,
            sampling=Sampling.of(spec.rollout).at(source.temperature) if source.temperature else None,
            samples=source.samples,
            pass_at=source.pass_at_k,
            pass_reward=source.pass_reward,
            limits=limits,
        )


def failure_limits(rewards: Mapping[str, RewardSpec]) -> dict[str, float]:
    """Return `maxFailedShare` of each reward, by the reward's path in the manifest."""
    return {path: reward.max_failed_share for path, reward in rewards.items()}
