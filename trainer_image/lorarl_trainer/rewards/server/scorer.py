"""Scores completions by a judge or a reward model that is reached over HTTP."""

from __future__ import annotations

from functools import partial
from typing import Any

from lorarl_api.v1alpha1 import ServerReward
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.server.apis import PATHS, request_body, score_of, status_hint
from lorarl_trainer.rewards.server.client import FIRST_PAUSE_SECONDS, Read
from lorarl_trainer.rewards.server.http_scorer import HttpScorer


class ServerScorer(HttpScorer):
    """Asks a server for a score of each completion."""

    def __init__(
        self,
        spec: ServerReward,
        *,
        timeout_seconds: float,
        field: str,
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        """Make a scorer. Nothing starts before it is used.

        `first_pause_seconds`: before a request is repeated for the first time.
        """
        super().__init__(
            f"{spec.url.rstrip('/')}{PATHS[spec.api]}",
            hint=partial(status_hint, field, spec.url, spec.model, spec.api),
            field=field,
            credentials_secret=spec.credentials_secret,
            timeout_seconds=timeout_seconds,
            retries=spec.retries,
            concurrency=spec.concurrency,
            first_pause_seconds=first_pause_seconds,
        )
        self._spec = spec

    def _request(self, sample: ToScore) -> tuple[dict[str, Any], Read]:
        return request_body(self._spec, sample), lambda answer: Outcome(score_of(self._spec, answer))
