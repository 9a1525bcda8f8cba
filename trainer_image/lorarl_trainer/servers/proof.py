"""How a server proves a version: it generates a few tokens, and the trainer computes their log-probabilities too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lorarl_trainer.samples.agreement import Agreement, AgreementLimits
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.servers.faults import ServerError


@dataclass(frozen=True)
class Proof:
    """What each version is proven by.

    Attributes:
        prompts, seeds: of the completions that a server makes.
        max_tokens: of each.
        sampling: as in the start's check of the engine.
        limits: how well server and trainer must agree.
    """

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    max_tokens: int
    sampling: Sampling
    limits: AgreementLimits

    def requests(self) -> list[GenerationRequest]:
        """Return what a server is asked for."""
        return [
            GenerationRequest(prompt, "the proof of a server", seed, max_tokens=self.max_tokens, sampling=self.sampling)
            for prompt, seed in zip(self.prompts, self.seeds, strict=True)
        ]

    def require(self, url: str, version: int, samples: Sequence[Sample], scores: Floats, if_wrong: str) -> None:
        """Compare a server's samples with the trainer's log-probabilities of their tokens. `if_wrong`: the fix.

        Raises:
            ServerError: they differ by more than rounding.
        """
        found = Agreement.of_samples(samples, scores)
        if self.limits.exceeded(found):
            raise ServerError(f"{differs(url, f'adapter version {version}', found)}. {if_wrong}")


def differs(url: str, what: str, found: Agreement) -> str:
    """Return that a server computes something else than the trainer."""
    return (
        f"{url} and the trainer do not compute the same with {what}: their log-probabilities of the same tokens differ "
        f"by {found.mean:.2e} nats on average, expected rounding alone"
    )
