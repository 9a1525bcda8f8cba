"""Episodes with a job's environment, whose turns a loaded model writes: as in a run, without its engines."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence

import numpy as np

from lorarl_trainer.protocols.workers import Generated, TakeCompletions
from lorarl_trainer.rollout.collect import ScoredRollouts
from lorarl_trainer.rollout.episodes import Episodes
from lorarl_trainer.rollout.evaluation import Evaluation
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.trained_adapters.model import AdaptedModel, Answer, Decoding

_EVERY_SECONDS = 10.0
"""How often long episodes say how far they are."""


class _Writer:
    """Writes turns, for all episodes that wait for one at a time."""

    def __init__(self, name: str, model: AdaptedModel, decoding: Decoding) -> None:
        self._name, self._model, self._decoding = name, model, decoding
        self._began = self._said = time.monotonic()
        self._turns = 0

    async def submit(self, requests: Sequence[GenerationRequest], take: TakeCompletions) -> None:
        rooms = [request.max_tokens or self._decoding.max_tokens for request in requests]
        decoding = Decoding(1, max(rooms), self._decoding.sampling, self._decoding.stop)
        answers = self._model.generate([request.tokens for request in requests], decoding)
        parts = zip(answers, rooms, requests, strict=True)
        ended = [_turn(answer, room, request.stop_token_ids or ()) for (answer,), room, request in parts]
        take(range(len(ended)), ended)
        self._turns += 1
        if (now := time.monotonic()) - self._said >= _EVERY_SECONDS:
            self._said = now
            told = f"{self._turns} turns, {len(rooms)} episodes under way, {now - self._began:.0f} s"
            print(f"{self._name}: {told}", file=sys.stderr, flush=True)

    async def results(self) -> Generated:
        return Generated()


def _turn(answer: Answer, room: int, stops: Collection[int]) -> Completion:
    """Return a turn of at most so many tokens, which these end too.

    The episode that has the most room decides how many are generated, and only an agent's request has its own stops.
    """
    ended = next((place for place, token in enumerate(answer.ids[:room], 1) if token in stops), None)
    return Completion(
        tokens=np.array(answer.ids[: ended or room], np.int64),
        logprobs=np.empty(0, np.float32),
        finished=ended is not None or (not answer.truncated and answer.tokens <= room),
        adapter_version=0,
    )


async def play(
    name: str, model: AdaptedModel, decoding: Decoding, episodes: Episodes, evaluation: Evaluation, seed: int
) -> ScoredRollouts:
    """Play the episodes of an evaluation, `samples` of each row.

    Args:
        name: of the side, for people.
        model: writes the turns.
        decoding: how. An episode's own limits are smaller, if it has any.
        episodes: play; they take their turns together.
        evaluation: has the rows.
        seed: the run's: its evaluations play the same games.

    Raises:
        InputError: not one episode got a reward.
    """
    rows = [row for row in evaluation.rows for _ in range(evaluation.samples)]
    requests = [GenerationRequest(row.prompt_ids) for row in rows]
    writer = _Writer(name, model, decoding)
    return await episodes.play(writer, rows, requests, list(evaluation.starts(seed)), 0)
