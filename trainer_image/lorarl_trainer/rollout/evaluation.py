"""One evaluation of the manifest: its rows, what scores them, and how their completions are drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lorarl_api.v1alpha1 import EvalSource, EvalSpec, RolloutSpec
from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.rewards.scores import Scorer
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.schedule import seed_of


@dataclass(frozen=True)
class Evaluation:
    """Held-out rows and what to do with them.

    Attributes:
        name: of `data.evals`; empty for `data.eval`.
        rows: the held-out rows.
        scorer: scores their completions, or plays their episodes.
        sampling: where completions are drawn from; None takes the best token everywhere.
        samples: completions of each row.
        pass_at: the k of each pass@k.
        pass_reward: least reward of a completion that passes.
        limits: `maxFailedShare` by the path of its own reward; empty if it is scored as the job is.
    """

    name: str
    rows: Sequence[EncodedRow]
    scorer: Scorer | Episodes
    sampling: Sampling | None = None
    samples: int = 1
    pass_at: Sequence[int] = ()
    pass_reward: float = 1.0
    limits: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        source: EvalSource,
        path: str,
        rows: Sequence[EncodedRow],
        scorer: Scorer | Episodes,
        rollout: RolloutSpec,
    ) -> Evaluation:
        """Return the evaluation at a path of the manifest. `data.eval` has no such settings: it is greedy."""
        if not isinstance(source, EvalSpec):
            return cls(name, rows, scorer)
        return cls(
            name=name,
            rows=rows,
            scorer=scorer,
            sampling=Sampling.of(rollout).at(source.temperature) if source.temperature else None,
            samples=source.samples,
            pass_at=source.pass_at_k,
            pass_reward=source.pass_reward,
            limits={f"{path}.reward": source.reward.max_failed_share} if source.reward else {},
        )

    def starts(self, seed: int) -> Iterator[int]:
        """Yield the seed that each episode begins with, of the run's: those of a row are alike, each time."""
        for index in range(len(self.rows)):
            yield from [seed_of(seed, f"episode of evaluation {self.name}", index)] * self.samples
