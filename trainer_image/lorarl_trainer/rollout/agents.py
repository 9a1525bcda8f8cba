"""Plays episodes with an agent: a function of the user's that calls the model itself, at the endpoint."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.rewards.environment.environment import LOOPBACK
from lorarl_trainer.rewards.environment.playing import EpisodeFailedError, OpenEpisode
from lorarl_trainer.rewards.scores import Outcome
from lorarl_trainer.rollout.endpoint.conversation import Ask, Conversation, Speech
from lorarl_trainer.rollout.endpoint.requests import MODEL
from lorarl_trainer.rollout.played import Played


class Agents:
    """Lets agents play, while `serving`."""

    model: ClassVar = MODEL

    def __init__(self, spec: LoRARLJobSpec, speech: Speech, host: str = LOOPBACK) -> None:
        """Nothing is served before `serving`. `host`: the address of this process at which agents ask for turns."""
        from lorarl_trainer.rollout.endpoint.server import Endpoint  # 60 ms, which other jobs do not need

        self._spec, self._speech = spec, speech
        self._endpoint = Endpoint(spec, speech.bridge.vocabulary_size, host)

    def serving(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Serve the model within the block."""
        return self._endpoint.serving()

    async def play(self, played: Played, episode: OpenEpisode, ask: Ask) -> Outcome:
        """Let the agent play an episode to its end; return its reward, or why it has none.

        Raises:
            LorarlError: a worker failed.
        """
        conversation = Conversation(self._spec, self._speech, played, ask, episode.waits_for_the_model)
        try:
            with self._endpoint.episode(conversation) as key:
                outcome = await self._rewarded(played, episode, key)
            await conversation.end()
        finally:
            conversation.close()
        if conversation.refusal is not None:
            return conversation.refusal
        if not played.course.turns and not outcome.cause:
            return Outcome.failed("no_turn", "the agent returned a reward, and never called the model at llm.base_url")
        if conversation.met_limit and outcome.cause == "exception":
            return Outcome(0.0)  # many clients raise what the endpoint answers then
        return outcome

    async def _rewarded(self, played: Played, episode: OpenEpisode, key: str) -> Outcome:
        try:
            answer = await episode.play(played.first.row.row.raw, self._endpoint.base_url, key, self.model)
        except EpisodeFailedError as failed:
            return Outcome.failed(failed.cause, failed.message)
        assert answer.reward is not None, "an agent returns one"
        return Outcome(answer.reward, components=answer.components)
