"""Before the first step: do the engine and the trainer apply the same adapter to the same model?

Two generations of a few tokens answer it. The first is by the base model alone. How far engine and trainer are apart
there is their noise on this model, in this precision, layout and temperature, and all later steps are held to it. The
second is by a probe, an adapter of known values that changes what the model says. If the engine binds it to other
modules, scales it otherwise or leaves it out, they are further apart than by noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lorarl_trainer.errors import PolicyDriftError
from lorarl_trainer.guards.servers import require_probe, require_same_base
from lorarl_trainer.lora.config import Probe
from lorarl_trainer.progress import Noted
from lorarl_trainer.protocols.workers import Workers
from lorarl_trainer.samples.agreement import Agreement, AgreementLimits
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.schedule import seed_of
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.servers.proof import Proof
from lorarl_trainer.session import Session

FIRST_VERSION = 2**30
"""Probes have adapter versions from here on. The job's own begin at 1, and no version is used twice."""
LONGEST_PROMPT = 256
_GAIN = 0.05
_EFFECT = 1.0
"""How much the probe should change log-probabilities, in nats on average: far above any noise."""
_LEAST_NOISE = {"fp32": 1e-6, "bf16": 0.03}
"""A few times the precision's own rounding. Healthy: from 3e-6 in fp32; 0.003 to 0.05 in bf16."""
_ROUNDING = {"fp32": 1e-5, "bf16": 0.03}
"""The share of a probe's effect that may be lost to rounding. Healthy: up to 0.01 in bf16, in a small model that is
nearly sure of its answers (benchmarks/results/agreement-2026-11-26.md)."""
_COMPLETIONS = 8
"""Of each prompt, so that there are enough tokens also where answers are short. Its prompt is computed once."""
_OF_A_PROOF = 16
"""Completions by which a server proves a version. More tokens would only delay each step."""
_LARGEST_MEAN = {"fp32": 1e-3, "bf16": 0.5}
"""More than this at temperature 1, in nats, is no rounding. Healthy: 1e-5 in fp32; 0.01 to 0.11 in bf16."""


@dataclass
class _Check:
    """The prompts, and the workers that generate from them and score what comes out."""

    workers: Workers
    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    max_tokens: int
    sampling: Sampling
    servers: Servers | None = None
    asked: Sequence[str | None] = (None,)
    version: int = FIRST_VERSION

    async def generate(self, probe: Probe) -> Samples:
        """Let the engine generate with a probe, or each server that serves it."""
        await self.workers.hold_probe(probe)
        await self.workers.sync(self.version, verify=True)
        self.version += 1
        if self.servers:
            self.asked = self.servers.serving
        completions: dict[int, Completion] = {}

        def take(indices: Sequence[int], ended: Sequence[Completion]) -> None:
            completions.update(zip(indices, ended, strict=True))

        requests = [
            GenerationRequest(
                prompt,
                "the check of the engine",
                seed,
                max_tokens=self.max_tokens,
                sampling=self.sampling,
                server=server,
            )
            for server in self.asked
            for prompt, seed in zip(self.prompts, self.seeds, strict=True)
        ]
        lane = self.workers.lane()
        await lane.submit(requests, take)
        await lane.results()
        return Samples(Sample.of(request.tokens, completions[index]) for index, request in enumerate(requests))

    async def score(self, samples: Samples) -> Floats:
        """Return the trainer's log-probabilities with the adapter that it has."""
        return np.concatenate(await self.workers.log_probabilities(samples, self.sampling.temperature))

    def by_server(self, samples: Samples, scores: Floats) -> dict[str, Agreement]:
        """Return how well each server agrees; nothing without servers."""
        ends = np.cumsum([sample.response_length for sample in samples])
        each = np.split(scores, ends[len(self.prompts) - 1 : -1 : len(self.prompts)])
        parts = (samples[start : start + len(self.prompts)] for start in range(0, len(samples), len(self.prompts)))
        return {
            url: Agreement.of_samples(part, of_part)
            for url, part, of_part in zip(self.asked, parts, each, strict=True)
            if url is not None
        }

    def proof(self, limits: AgreementLimits) -> Proof:
        """Return what servers prove each version by: some of these completions."""
        some = slice(None, None, -(-len(self.prompts) // _OF_A_PROOF))
        return Proof(self.prompts[some], self.seeds[some], self.max_tokens, self.sampling, limits)

    async def agreement(self, probe: Probe) -> Agreement:
        """Compare engine and trainer with a probe."""
        samples = await self.generate(probe)
        return Agreement.of_samples(samples, await self.score(samples))

    async def probe(self, base: Samples, scores: Floats) -> tuple[Probe, float]:
        """Return a probe of about the wanted effect on the trainer's log-probabilities, and that effect."""
        probe = Probe(_GAIN)
        for left in reversed(range(3)):
            await self.workers.hold_probe(probe)
            effect = float(np.abs(await self.score(base) - scores).mean())
            if not left or _EFFECT / 4 <= effect <= _EFFECT * 4:
                break
            probe = Probe(probe.gain * min(8.0, max(1 / 8, _EFFECT / max(effect, 1e-9))))
        return probe, effect


async def check_engine(session: Session) -> AgreementLimits | None:
    """Return what all updates must keep to, after the engine was found to apply what the trainer trains.

    None without an engine, as for most jobs of sft.

    The adapter is as before afterwards, but the engine no longer holds it: sync next.

    Raises:
        PolicyDriftError: engine and trainer do not compute the same; names the modules in which they differ.
        StaleAdapterError: the adapter does not reach the engine.
        RolloutServerError: a server does not; names it.
    """
    rollout, spec = session.spec.rollout, session.spec
    prompts = session.rollouts.probe_prompts(32 if spec.on_gpu else 4)
    if not prompts:
        return None
    check = _Check(
        workers=session.workers,
        prompts=[prompt[-LONGEST_PROMPT:] for prompt in prompts for _ in range(_COMPLETIONS)],
        seeds=[seed_of(spec.trainer.seed, "probe", 0, index) for index in range(_COMPLETIONS * len(prompts))],
        max_tokens=min(rollout.max_response_tokens, 32 if spec.on_gpu else 8),
        # Whatever is truncated later: a token that is the only possible one would say nothing.
        sampling=Sampling.of(rollout).untruncated,
        servers=session.servers,
    )
    try:
        samples = await check.generate(Probe(0.0))
        scores = await check.score(samples)
        base = Agreement.of_samples(samples, scores)
        tolerance = rollout.logprob_tolerance
        least, largest = (of[spec.precision] / rollout.temperature for of in (_LEAST_NOISE, _LARGEST_MEAN))
        limits = AgreementLimits.from_base(base, least) if tolerance is None else AgreementLimits(tolerance=tolerance)
        if tolerance is None:
            if session.servers:
                require_same_base(session.servers.origin, check.by_server(samples, scores), least, largest)
            if not base.mean <= largest:
                raise PolicyDriftError(_base_differs(base))
        probe, effect = await check.probe(samples, scores)
        allowed, scale = limits, 1.0
        if not effect > base.mean and rollout.temperature < 1:
            # Sure of each token at this temperature, the model gives it the probability 1 whatever the adapter does.
            check.sampling, scale = check.sampling.at(1.0), 1 / rollout.temperature
            samples = await check.generate(Probe(0.0))
            scores = await check.score(samples)
            base = Agreement.of_samples(samples, scores)
            allowed = AgreementLimits.from_base(base, _LEAST_NOISE[spec.precision]) if tolerance is None else limits
            probe, effect = await check.probe(samples, scores)
        if not effect > base.mean:
            raise PolicyDriftError(_no_effect(effect))
        samples = await check.generate(probe)
        scores = await check.score(samples)
        probed = Agreement.of_samples(samples, scores)
        allowed = allowed.for_probe(_ROUNDING[spec.precision] * effect)
        if session.servers:
            require_probe(session.servers.origin, check.by_server(samples, scores), allowed)
        if allowed.exceeded(probed):
            where = await _families(session, check, probe, allowed)
            raise PolicyDriftError(_probe_differs(base, probed, effect, where))
    finally:
        await session.workers.hold_probe(None)
    if session.servers:
        session.servers.hold_to(check.proof(allowed.after_probe(probed)))
    session.progress.emit(
        Noted(
            f"vLLM agrees with the trainer: log-probabilities differ by {base.mean:.1e} nats without an adapter, "
            f"and by {probed.mean:.1e} with a probe that changes them by {effect:.1g}"
        )
    )
    return limits.after_probe(probed, scale)


async def _families(session: Session, check: _Check, probe: Probe, limits: AgreementLimits) -> list[str]:
    """Return the names of the modules in which engine and trainer differ, each tried by itself."""
    probes = [Probe(2 * probe.gain, family) for family in session.families]
    return [str(probe.family) for probe in probes if limits.exceeded(await check.agreement(probe))]


def _base_differs(base: Agreement) -> str:
    return (
        f"vLLM and the trainer do not compute the same base model: without an adapter, their log-probabilities of the "
        f"same tokens differ by {base.mean:.2e} nats on average, which is more than rounding. No step was made. "
        "Please report this with the model's config.json. If you know the cause, set spec.rollout.logprobTolerance."
    )


def _no_effect(effect: float) -> str:
    return (
        f"the trainer's adapter is bound to no module: a probe adapter changes its log-probabilities by {effect:.1e} "
        "nats, expected about 1. No step was made. Please report this with the model's config.json."
    )


def _probe_differs(base: Agreement, probed: Agreement, effect: float, families: Sequence[str]) -> str:
    where = f"in {', '.join(families)}" if families else "in no module alone"
    return (
        f"vLLM and the trainer do not apply the same adapter: a probe changes the trainer's log-probabilities by "
        f"{effect:.2g} nats, but vLLM's differ from them by {probed.mean:.2e} nats on average ({base.mean:.2e} without "
        f"an adapter). They differ {where}. No step was made. "
        "Compare spec.rollout.adapterSync tensor with disk, and please report this."
    )
