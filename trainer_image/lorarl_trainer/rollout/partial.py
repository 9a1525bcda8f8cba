"""Rollouts in which no step waits for its longest answers: the next step continues them (arXiv:2501.12599, 2.6).

More prompts are being answered at a time than a step trains, in rounds of so many tokens for each answer. When enough
groups are whole after a round, the step trains the oldest of these. The others keep the tokens that they have. The next
step's adapter computes their keys and values again, and continues them.

So a few answers have tokens of earlier adapters. Each token has the log-probability that its own adapter gave it, by
which the loss corrects (`samples.correction`). Within a step, rounds change nothing: an answer's tokens depend on its
seed, on their places, and on the adapter.

Shape suffixes: P prompts of a step, G completions per prompt, S = P * G samples.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.protocols.rollouts import StepBatch
from lorarl_trainer.protocols.workers import Generated
from lorarl_trainer.rewards.scores import Outcome, collect
from lorarl_trainer.rollout.collect import ScoredRollouts, Scoring, added_up, require_version
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.rollout.lockstep import Lockstep, metrics_of
from lorarl_trainer.rollout.rounds import Round
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.schedule import seed_of


@dataclass(eq=False)
class _Answer:
    """A completion in the making: what each round has added to it, and its score when it has ended."""

    row: EncodedRow
    seed: int
    longest: int
    parts: list[Completion] = field(default_factory=list)
    text: str = ""
    outcome: Outcome | None = None

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""
        return [token for part in self.parts for token in part.tokens.tolist()]

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return bool(self.parts) and (
            self.parts[-1].finished or sum(len(part.tokens) for part in self.parts) >= self.longest
        )

    @property
    def completion(self) -> Completion:
        """All parts as one, with the last part's version. Its routing is of all tokens, by that version."""
        last = self.parts[-1]
        kept = [part.kept for part in self.parts if part.kept is not None]
        return Completion(
            tokens=np.concatenate([part.tokens for part in self.parts]),
            logprobs=np.concatenate([part.logprobs for part in self.parts]),
            finished=last.finished,
            adapter_version=last.adapter_version,
            kept=np.concatenate(kept) if kept else None,
            routing=last.routing,
        )


@dataclass(eq=False)
class _Group:
    """The completions of a prompt, which had its turn at a position of the stream."""

    position: int
    answers: list[_Answer]

    @property
    def whole(self) -> bool:
        """Whether all have ended."""
        return all(answer.ended for answer in self.answers)


@dataclass
class Partial(Lockstep):
    """G completions of each of P prompts that have ended, while those of others are continued from step to step.

    Attributes:
        extra_prompts: prompts that are answered beside those of a step.
        tokens_per_round: of each answer.
        resumed: positions of rows whose groups begin again, because a resumed run has nothing of them.
    """

    extra_prompts: int = 0
    tokens_per_round: int = 0
    resumed: Sequence[int] = ()
    _groups: list[_Group] = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the groups that were unfinished."""
        super().__post_init__()
        self._groups = [self._group(position, self.rows.at(position)) for position in self.resumed]

    @property
    def unfinished(self) -> Sequence[int]:
        return [group.position for group in self._groups]

    async def next(self, step: int, adapter_version: int) -> StepBatch:
        """Answer prompts until P groups are whole, and return the oldest of them."""
        wanted = self.spec.rollout.prompts_per_step
        while len(self._groups) < wanted + self.extra_prompts:
            position = self.rows.position
            self._groups.append(self._group(position, *self.rows.next(1)))
        everyone = [answer for group in self._groups for answer in group.answers]

        def keep(number: int, outcome: Outcome) -> None:
            everyone[number].outcome = outcome

        rounds, when = list[Generated](), f"in step {step}"
        assert not isinstance(self.scorer, Episodes), "the contract refuses them beside rollout.partial"
        async with Scoring(self.scorer, self.decode, keep) as scoring:
            while sum(group.whole for group in self._groups) < wanted:
                rounds.append(await self._continue(everyone, adapter_version, scoring, when))
            began = time.perf_counter()
            await scoring.all()
        seconds = added_up(one.seconds for one in rounds) | {"reward": time.perf_counter() - began}
        whole = [group for group in self._groups if group.whole][:wanted]
        self._groups = [group for group in self._groups if group not in whole]
        answers_S = [answer for group in whole for answer in group.answers]
        made = self._made(answers_S, adapter_version, seconds, Occupancy.over(one.occupancy for one in rounds))
        self._generation.require_scored(made.rollouts.outcomes, self._generation.limits, when)
        metrics = {"partial/rounds": float(len(rounds)), **_ages(answers_S, adapter_version)}
        return self.batch(made, metrics_of(made.rollouts, self.group_size) | metrics)

    async def _continue(
        self, everyone: Sequence[_Answer], adapter_version: int, scoring: Scoring, when: str
    ) -> Generated:
        """Give all answers that have not ended a round, and begin to score those that end with it."""
        numbers = [number for number, answer in enumerate(everyone) if not answer.ended]
        answers = [everyone[number] for number in numbers]

        def take(indices: Sequence[int], made: Sequence[Completion]) -> None:
            require_version(made, adapter_version)
            for index, part in zip(indices, made, strict=True):
                answers[index].parts.append(part)
            if ended := [index for index in indices if answers[index].ended]:
                of = [answers[index] for index in ended]
                texts = scoring.begin(
                    [numbers[index] for index in ended], [one.row for one in of], [one.completion for one in of]
                )
                for one, text in zip(of, texts, strict=True):
                    one.text = text

        requests = [
            GenerationRequest(
                [*answer.row.prompt_ids, *(made := answer.tokens)],
                when,
                answer.seed,
                begun=len(made),
                max_tokens=self.tokens_per_round,
                adapter=adapter_version,
            )
            for answer in answers
        ]
        await self.workers.submit(requests, take)
        return await self.workers.results()

    def _group(self, position: int, row: EncodedRow) -> _Group:
        longest = self.spec.rollout.max_response_tokens
        seeds = (
            seed_of(self.spec.trainer.seed, "sample of a turn", position, member) for member in range(self.group_size)
        )
        return _Group(position, [_Answer(row, seed, longest) for seed in seeds])

    def _made(
        self, answers_S: Sequence[_Answer], version: int, seconds: dict[str, float], occupancy: Occupancy
    ) -> Round:
        outcomes = [answer.outcome for answer in answers_S if answer.outcome is not None]
        scores = collect(outcomes, self.scorer.field)
        completions = [answer.completion for answer in answers_S]
        samples_S = [
            Sample.of(answer.row.prompt_ids, completion, fresh=not _behind(answer, version))
            for answer, completion in zip(answers_S, completions, strict=True)
        ]
        rollouts = ScoredRollouts(
            rows=[answer.row for answer in answers_S],
            completions=completions,
            texts=[answer.text for answer in answers_S],
            rewards=scores.rewards,
            failures=scores.failures,
            outcomes=outcomes,
            seconds=seconds,
            occupancy=occupancy,
        )
        return Round(samples_S, rollouts)


def _behind(answer: _Answer, version: int) -> int:
    """Return how many versions before this one an answer was begun."""
    return version - answer.parts[0].adapter_version


def _ages(answers_S: Sequence[_Answer], version: int) -> dict[str, float]:
    """Return a step's metrics of how old its answers are.

    partial/older_share: answers with tokens of earlier adapters, 0 to 1. partial/older_tokens_share: tokens of earlier
    adapters, 0 to 1. partial/versions_behind: how many versions ago the oldest answer was begun.
    """
    behind_S = [_behind(answer, version) for answer in answers_S]
    parts = [(len(part.tokens), part.adapter_version < version) for answer in answers_S for part in answer.parts]
    return {
        "partial/older_share": float(np.mean([behind > 0 for behind in behind_S])),
        "partial/older_tokens_share": sum(size for size, older in parts if older) / sum(size for size, _ in parts),
        "partial/versions_behind": float(max(behind_S)),
    }
