"""A teacher behind an OpenAI-compatible API: log-probabilities of the tokens that the policy wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from lorarl_api.v1alpha1.algorithm_options import TeacherServer
from lorarl_trainer.rewards.scores import Outcome, ToScore
from lorarl_trainer.rewards.server.apis import NoScoreError, OtherTokenizerError, status_hint
from lorarl_trainer.rewards.server.client import FIRST_PAUSE_SECONDS, Read
from lorarl_trainer.rewards.server.http_scorer import HttpScorer

PATH = "/completions"
LEAST = -9000.0
"""vLLM writes -9999 for a token that is impossible."""
MOST = 0.01
"""A probability is at most 1, but for rounding. A server that gives logits or probabilities would teach nonsense."""
_BROKEN = "\ufffd"
"""What a token that is a part of a character is decoded as."""

type TextOf = Callable[[int], str]
"""Returns the text of a token of the base model."""


class Teacher(HttpScorer):
    """Asks a server for the log-probabilities of each completion's tokens. `knows` comes before the first one."""

    def __init__(self, spec: TeacherServer, *, field: str, first_pause_seconds: float = FIRST_PAUSE_SECONDS) -> None:
        """Make a scorer. Nothing starts before it is used.

        `first_pause_seconds`: before a request is repeated for the first time.
        """
        super().__init__(
            f"{spec.url.rstrip('/')}{PATH}",
            hint=partial(status_hint, field, spec.url, spec.model, "completions"),
            field=field,
            credentials_secret=spec.credentials_secret,
            timeout_seconds=spec.timeout_seconds,
            retries=spec.retries,
            concurrency=spec.concurrency,
            first_pause_seconds=first_pause_seconds,
            remembered=0,  # no completion comes twice
        )
        self._model = spec.model
        self._text_of: TextOf | None = None

    def knows(self, text_of: TextOf) -> None:
        """Take the base model's tokens, which the server's have to be."""
        self._text_of = cache(text_of)

    def _request(self, sample: ToScore) -> tuple[dict[str, Any], Read]:
        assert self._text_of is not None, "the tokenizer is known before anything is generated"
        ids = [*map(int, sample.prompt_ids), *map(int, sample.completion_ids)]
        return request_body(self._model, ids), partial(
            outcome_of, ids=ids, first=len(sample.prompt_ids), text_of=self._text_of
        )


def request_body(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """Return the body of a request for the log-probabilities of a prompt's tokens, at temperature 1."""
    return {"model": model, "prompt": list(ids), "max_tokens": 0, "echo": True, "logprobs": 0, "temperature": 1.0}


def outcome_of(answer: Any, *, ids: Sequence[int], first: int, text_of: TextOf) -> Outcome:
    """Return the log-probabilities of the tokens from the index `first` on; the score is their mean.

    Raises:
        NoScoreError: the answer has none, or not all.
        OtherTokenizerError: the server reads a token as another text.
    """
    try:
        found = answer["choices"][0]["logprobs"]
        texts, logprobs = list(found["tokens"]), list(found["token_logprobs"])
    except (KeyError, IndexError, TypeError):
        raise NoScoreError("no logprobs.tokens and token_logprobs of the prompt, which echo asks for") from None
    if len(texts) != len(ids) or len(logprobs) != len(ids):
        raise NoScoreError(f"log-probabilities of {len(logprobs)} tokens in place of {len(ids)}")
    for token, theirs in zip(ids, texts, strict=True):
        ours = text_of(token)
        if differ(ours, theirs):
            raise OtherTokenizerError(
                f"reads the token {token} as {theirs!r}, and the base model as {ours!r}: it needs the same tokenizer"
            )
    values = logprobs[first:]
    for value in values:
        if not (isinstance(value, int | float) and LEAST < value < MOST):
            raise NoScoreError(f"{value!r} as a log-probability")
    found_T = np.array(values, np.float32)
    return Outcome(float(found_T.mean()), logprobs=found_T)


def differ(ours: str, theirs: Any) -> bool:
    """Return whether two texts of a token cannot be the same one's.

    Servers differ in white space and in parts of characters, which say nothing about the tokenizer.
    """
    if not isinstance(theirs, str) or _BROKEN in ours + theirs:
        return not isinstance(theirs, str)
    return bool(ours.strip()) and bool(theirs.strip()) and ours.strip() != theirs.strip()
