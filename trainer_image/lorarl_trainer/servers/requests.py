"""What a server is asked for a completion, and which server is asked. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sampling import Sampling


def sampling_params(
    request: GenerationRequest, *, sampling: Sampling, most: int, stop_token_ids: tuple[int, ...], stop: tuple[str, ...]
) -> dict[str, Any]:
    """Return a request's SamplingParams as vLLM names them, so that it is made as an engine in a worker makes it.

    Args:
        request: what is wanted.
        sampling: the job's, where the request has no own.
        most: tokens of a completion.
        stop_token_ids: the job's, of which any ends a completion.
        stop: the job's texts that end one.
    """
    ids = stop_token_ids if request.stop_token_ids is None else request.stop_token_ids
    texts = stop if request.stop is None else request.stop
    drawn: dict[str, Any] = {"temperature": 0.0}
    if request.seed is not None:
        drawn = {"seed": request.seed, "logprobs": 0, **asdict(request.sampling or sampling)}
    return drawn | {
        "max_tokens": min(request.max_tokens or most, most),
        "stop_token_ids": list(ids),
        "stop": list(texts),
        "include_stop_str_in_output": True,
        "ignore_eos": True,  # the server would add the model's own to `stop_token_ids`
        "skip_special_tokens": False,
        "detokenize": bool(texts),
    }


def server_for(running: Mapping[str, int], waiting: int, most: int) -> str | None:
    """Return the server that gets the next request; None if all have enough.

    Each gets its share of what is left, the same for all, and the fullest one is filled first: so neighbours stay
    together, and a server computes a group's prompt once. A fast server ends its share sooner and gets the next
    waiting ones.

    Args:
        running: requests that each server has, by URL.
        waiting: requests that none has, with this one.
        most: requests that a server gets at a time.
    """
    if not running:
        return None
    share = min(most, -(-(sum(running.values()) + waiting) // len(running)))
    with_room = [url for url, count in running.items() if count < share]
    return max(with_room, key=running.__getitem__, default=None)
