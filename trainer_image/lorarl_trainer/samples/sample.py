"""What an engine makes, and what a trainer trains on. Each field says by its column how it travels and is kept.

Nothing here imports torch: the driver is a light process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from lorarl_trainer.samples.arrays import Bools, Floats, Ints
from lorarl_trainer.samples.fields import Column, Per
from lorarl_trainer.samples.routing import Routing


@dataclass(frozen=True)
class Completion:
    """One generated sequence, or with an environment all that follows an episode's prompt.

    Attributes:
        logprobs: log-probability of each at the sampling temperature, in nats, [T]; empty for greedy ones.
        finished: it ended by itself; False if it was cut off at maxResponseTokens.
        adapter_version: the version that generated all of it. Of an episode whose turns several made, the oldest.
        kept: how many tokens, the most probable ones, were possible in the place of each, [T]; None if all were.
        routing: the experts that each token was sent to, of the prompt and of all but the last of the response; None
            without experts.
        mask: which of the tokens the model made, [T]; None for all. `logprobs` and `kept` are of those alone.
    """

    tokens: Annotated[Ints, Column("response", np.int64)]
    logprobs: Annotated[Floats, Column("trained", np.float32)]
    finished: Annotated[bool, Column("sequence", np.bool_)]
    adapter_version: Annotated[int, Column("sequence", np.int64)]
    kept: Annotated[Ints | None, Column("trained", np.int64)] = None
    routing: Annotated[Routing | None, Column("computed", None)] = None
    mask: Annotated[Bools | None, Column("response", np.bool_)] = None


@dataclass(frozen=True)
class Sample:
    """One sequence to train on. Its columns say what its arrays are of: those "trained" are of trained tokens alone.

    Attributes:
        tokens: prompt and response, [T].
        prompt_length: number of prompt tokens, 1 <= prompt_length < T.
        advantage: the weight of the trained tokens in the policy gradient: one for all, or one of each.
        rollout_logprobs: vLLM's log-probabilities; None for sft.
        kept: see `Completion.kept`. All samples of an update have it, or none.
        old_logprobs: the trainer's log-probabilities at the beginning of the step; None where no loss needs them.
        pair: which preference pair of the update it belongs to; None for none. The chosen answer is followed by the
            rejected one, of the same prompt, and nothing separates the two: neither workers nor micro-batches.
        mask: which of the response's tokens are trained; None for all.
        values, returns: what the critic expected at the beginning of the step before each token, and what it is to
            expect; None without a critic.
        routing: see `Completion.routing`, [T - 1, layers, experts of a token]; None if the rollout's is not known.
        fresh: the newest adapter generated all of it, so engine and trainer must agree about it.
        version: the adapter version that generated it; of one that was continued, the last, and of an episode, the
            oldest. None for the data's own.
        targets: the tokens whose log-probabilities are trained, in the places of the trained ones; None for these.
        episode_length: trained tokens of all samples of its episode, over which a mean over its tokens is taken; None
            for its own.
    """

    tokens: Annotated[Ints, Column("token", np.int64)]
    prompt_length: Annotated[int, Column("sequence", np.int64)]
    advantage: Annotated[float | Floats, Column("trained", np.float32, of_step=True)] = 0.0
    rollout_logprobs: Annotated[Floats | None, Column("trained", np.float32)] = None
    kept: Annotated[Ints | None, Column("trained", np.int64)] = None
    old_logprobs: Annotated[Floats | None, Column("trained", np.float32, of_step=True)] = None
    pair: Annotated[int | None, Column("sequence", np.int64)] = None
    mask: Annotated[Bools | None, Column("response", np.bool_)] = None
    values: Annotated[Floats | None, Column("trained", np.float32, of_step=True)] = None
    returns: Annotated[Floats | None, Column("trained", np.float32, of_step=True)] = None
    routing: Annotated[Routing | None, Column("computed", None)] = None
    fresh: Annotated[bool, Column("sequence", np.bool_)] = True
    version: Annotated[int | None, Column("sequence", np.int64)] = None
    targets: Annotated[Ints | None, Column("trained", np.int64)] = None
    episode_length: Annotated[int | None, Column("sequence", np.int64, of_step=True)] = None

    @classmethod
    def of(cls, prompt: Sequence[int], completion: Completion, *, fresh: bool = True) -> Sample:
        """Return a prompt with a completion of it, as the rollout made it."""
        return cls(
            tokens=np.concatenate([np.asarray(prompt), completion.tokens]),
            prompt_length=len(prompt),
            rollout_logprobs=completion.logprobs,
            kept=completion.kept,
            routing=completion.routing,
            mask=completion.mask,
            fresh=fresh,
            version=completion.adapter_version,
        )

    @property
    def response_length(self) -> int:
        """Number of tokens after the prompt."""
        return len(self.tokens) - self.prompt_length

    @property
    def trained_length(self) -> int:
        """Number of tokens that are trained."""
        return self.response_length if self.mask is None else int(self.mask.sum())

    def of_trained(self, values: Ints) -> Ints:
        """Return what belongs to trained tokens, of values of each of the response's tokens, [T - prompt_length]."""
        return values if self.mask is None else values[self.mask]

    @property
    def trained_targets(self) -> Ints:
        """The tokens whose log-probabilities are trained."""
        return self.of_trained(self.tokens[self.prompt_length :]) if self.targets is None else self.targets

    @property
    def lengths(self) -> Mapping[Per, int]:
        """How many values an array has that has one of each."""
        return {
            "sequence": 1,
            "token": len(self.tokens),
            "computed": len(self.tokens) - 1,
            "response": self.response_length,
            "trained": self.trained_length,
        }
