"""A job's servers: each request is answered once, by a server that has proven the version, whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lorarl_api.v1alpha1 import RolloutSpec
from lorarl_trainer.errors import EnginesLostError, NodeLostError, RolloutServerError, StaleAdapterError
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.samples.sample import Completion, Sample
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.servers.origin import of_manifest
from lorarl_trainer.servers.pool import Servers
from lorarl_trainer.servers.proof import Proof
from lorarl_trainer.servers.reach import OverHttp
from unit.trainer.servers.http_vllm import LOGPROB, Vllm, serving_vllm

PROOF = Proof([[1, 2]], [0], 2, Sampling(), AgreementLimits(tolerance=1e-3))
PROMPTS = [[10 + number] for number in range(40)]


@dataclass
class Run:
    """A run's servers, and what came of its requests, by their places."""

    servers: Servers
    made: dict[int, Completion] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def take(self, places: Sequence[int], completions: Sequence[Completion]) -> None:
        for place, completion in zip(places, completions, strict=True):
            assert place not in self.made, f"request {place} is answered twice"
            self.made[place] = completion

    async def version(self, number: int) -> None:
        await self.servers.take(self.servers.version_of(number))

    async def generate(self, version: int) -> None:
        """Ask for all prompts and wait, as `WorkerGroup` does."""
        self.made.clear()
        lane = self.servers.lane(watched)
        await lane.submit([GenerationRequest(prompt, seed=0, adapter=version) for prompt in PROMPTS], self.take)
        await lane.results()
        assert sorted(self.made) == list(range(len(PROMPTS)))
        assert {completion.adapter_version for completion in self.made.values()} == {version}


async def watched(make: Callable[[], Sequence[Any]]) -> None:
    """Wait for calls where no worker can be lost."""
    await asyncio.gather(*make())


async def score(samples: Sequence[Sample], temperature: float) -> list[Floats]:
    """The trainer's log-probabilities."""
    return [np.full(sample.response_length, LOGPROB, np.float32) for sample in samples]


@contextlib.contextmanager
def servers_of(count: int) -> Iterator[list[Vllm]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving_vllm(Vllm())) for _ in range(count)]


def run(
    of: Sequence[Vllm],
    make: Callable[[Run], Coroutine[Any, Any, None]],
    *,
    seconds: float = 5.0,
    staleness: int = 0,
    secret: str | None = None,
    proof: Proof | None = PROOF,
    **origin: Any,
) -> Run:
    """Let a run use servers that prove each version.

    `proof`: None is the start of a run. `secret`: with their key. `origin`: what differs in who started them.
    """
    urls = [one.url for one in of]
    rollout = RolloutSpec(
        servers=urls,
        max_prompt_tokens=16,
        max_response_tokens=8,
        server_timeout_seconds=seconds,
        max_staleness=staleness,
        credentials_secret=secret,
    )
    spec: Any = SimpleNamespace(rollout=rollout, servers=urls)

    async def whole() -> Run:
        found = Run(
            Servers(
                spec,
                replace(of_manifest(spec), **origin),
                Path("/adapters"),
                lambda text: found.warnings.append(text),
                pause_seconds=0.02,
            )
        )
        found.servers.begin((3,), score)
        if proof:
            found.servers.hold_to(proof)
        try:
            await make(found)
        finally:
            await found.servers.close()
        return found

    return asyncio.run(whole())


async def two_versions(of: Run) -> None:
    for version in (1, 2):
        await of.version(version)
        await of.generate(version)


def test_each_version_answers_its_own_requests_and_is_then_forgotten() -> None:
    with servers_of(2) as both:
        found = run(both, two_versions)
        for server in both:
            names = [name.rpartition("-")[2] for name, prompt in server.generated if prompt != [1, 2]]
            assert names == ["1"] * 20 + ["2"] * 20
            assert not server.adapters
    assert not found.warnings


def test_a_server_that_dies_within_a_step_is_named_and_others_take_over() -> None:
    with servers_of(2) as (dying, other):

        def die(number: int) -> None:
            dying.down = dying.down or number == 5

        dying.before = die
        found = run([dying, other], two_versions)
        assert sum(prompt != [1, 2] for _, prompt in other.generated) >= 2 * len(PROMPTS) - 5
    assert any(dying.url in text and "cannot be reached" in text for text in found.warnings)


def test_a_server_that_started_again_proves_the_version_first() -> None:
    with servers_of(1) as [server]:

        def restart(number: int) -> None:
            if number == 5:
                server.before = lambda number: None
                server.restart()

        server.before = restart
        found = run([server], two_versions)
        proofs = [place for place, (_, prompt) in enumerate(server.generated) if prompt == [1, 2]]
        assert len(proofs) == 3
    assert [text for text in found.warnings if "serves again, with adapter version 1" in text]


@pytest.mark.parametrize("lie", [{"off_by": 0.1}, {"says": "base"}], ids=["other values", "another model"])
def test_a_server_that_lies_trains_nothing(lie: dict[str, Any]) -> None:
    with servers_of(2) as (liar, honest):

        async def lies(of: Run) -> None:
            await of.version(1)
            for name, value in lie.items():
                setattr(liar, name, value)
            await of.version(2)
            await of.generate(2)

        found = run([liar, honest], lies)
        assert all(prompt == [1, 2] for _, prompt in liar.generated)
        [warning] = found.warnings
        assert liar.url in warning
        honest.off_by = 0.1
        with pytest.raises(RolloutServerError, match="expected at least one") as stopped:
            run([liar, honest], lambda of: of.version(1))
        assert liar.url in str(stopped.value) and honest.url in str(stopped.value)


def test_a_lie_within_a_step_gives_the_request_to_another_server() -> None:
    with servers_of(2) as (liar, honest):

        def lie(number: int) -> None:
            liar.says = "base" if number == 5 else liar.says

        liar.before = lie
        found = run([liar, honest], two_versions)
    assert any(liar.url in text and "answers by the model base" in text for text in found.warnings)


def test_a_slow_server_is_named_and_its_requests_go_to_others() -> None:
    with servers_of(2) as (slow, other):

        def stall(number: int) -> None:
            slow.hangs = slow.hangs or number == 3

        slow.before = stall
        found = run([slow, other], two_versions, seconds=3.0)
    assert any(slow.url in text and "took more than 3 s" in text for text in found.warnings)


def test_a_run_without_any_server_stops_and_says_why() -> None:
    with servers_of(2) as (down, refusing):
        down.down, refusing.refuses = True, True
        with pytest.raises(RolloutServerError, match="--max-lora-rank") as stopped:
            run([down, refusing], lambda of: of.version(1), seconds=2.0)
        assert f"{down.url} cannot be reached" in str(stopped.value)
        assert "the next start resumes" in str(stopped.value)


def test_a_server_for_shorter_samples_is_refused_before_it_generates() -> None:
    with servers_of(1) as [short]:
        short.longest = 23
        with pytest.raises(RolloutServerError, match="--max-model-len 24"):
            run([short], lambda of: of.version(1))
        assert not short.generated


def test_requests_for_another_version_are_refused() -> None:
    async def stale(of: Run) -> None:
        await of.version(2)
        await of.generate(1)

    with servers_of(1) as one, pytest.raises(StaleAdapterError, match="adapter version 2 would generate, expected 1"):
        run(one, stale)


def test_no_request_is_lost_or_answered_twice_however_servers_fail() -> None:
    """One of three never fails; the others hang up, lose their adapters and tell lies by chance."""
    for seed in range(6):
        stream = random.Random(seed)
        with servers_of(3) as three:
            for server in three[1:]:
                server.fail_by_chance(stream, 0.1)
            run(three, two_versions)


def test_a_server_that_ends_idle_connections_is_not_left_out() -> None:
    """vLLM does after 5 s, which a step of training takes."""

    async def make(run: Run) -> None:
        for version in (1, 2):
            await run.version(version)
            await run.generate(version)

    with serving_vllm(Vllm(ends_idle=True)) as server:
        assert run([server], make).warnings == []


class OfAnotherMachine(OverHttp):
    """A server that sees no folder of the workers: the files are brought to its own disk."""

    async def deliver(self, folder: Path, files: Any, kept: Collection[str]) -> PurePath:
        assert files == f"the files of {folder.name}"
        return PurePath("/there", folder.name)


def test_a_server_on_another_machine_loads_what_was_sent_to_it() -> None:
    async def steps(run: Run) -> None:
        for number in (1, 2):
            version = run.servers.version_of(number)
            await run.servers.take(replace(version, files=f"the files of {version.name}"))
            await run.generate(number)
            assert {PurePath(root) for root in server.adapters.values()} == {PurePath("/there", version.name)}

    with servers_of(1) as [server]:
        run([server], steps, reach=OfAnotherMachine, takes_files=True)
        assert server.adapters == {}, "all are forgotten at the end"


def test_if_all_have_lost_their_machines_the_job_is_not_at_fault() -> None:
    for lost, kind in ((True, EnginesLostError), (False, RolloutServerError)):
        with servers_of(1) as [server]:

            async def steps(run: Run, server: Vllm = server) -> None:
                await run.version(1)
                server.down = True
                await run.generate(1)

            with pytest.raises(kind, match="got no server that generates with the newest adapter"):
                run([server], steps, seconds=2.0, are_lost=lambda lost=lost: lost)
    assert EnginesLostError.reason == NodeLostError.reason
