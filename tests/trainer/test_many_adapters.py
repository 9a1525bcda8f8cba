"""Several adapters in one engine: a decode batch mixes them, and no request is ever served by another's weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.tinker.bank import BASE, Bank, Wanted
from support.in_process import Colocated, made, prompts, random_adapter, samples_of, wanted, worst
from support.own_layers import in_common, layer_kinds
from support.silent_faults import old_prefixes

SLOTS = 3
LONG = {"rollout__maxPromptTokens": 40}
ONE_START = [[9, 8, 7, 6] * 9] * 4
"""Prompts with two blocks of the prefix cache, which several adapters are asked for."""
ROUNDING = 1e-5
"""Of log-probabilities in fp32, in nats. Those of other adapters are thousands of times as far apart."""


@pytest.fixture(scope="module")
def worker(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    started = Colocated(model_folder("qwen3-tied"), tmp_path_factory.mktemp("job"), adapters=SLOTS, **LONG)
    yield started
    started.close()


def fill(worker: Colocated, first: int) -> list[int]:
    """Put another adapter into each slot; return their versions."""
    versions = list(range(first, first + SLOTS))
    for slot, version in enumerate(versions):
        worker.randomise(version)
        worker.worker.sync(version, slot=slot)
    return versions


def same(left: Sequence[Completion], right: Sequence[Completion]) -> bool:
    """The same tokens, with the same log-probabilities: some CPUs round products of more rows otherwise."""
    return all(
        np.array_equal(a.tokens, b.tokens) and np.allclose(a.logprobs, b.logprobs, rtol=0.0, atol=ROUNDING)
        for a, b in zip(left, right, strict=True)
    )


def test_a_mixed_batch_gives_each_request_what_its_adapter_gives_alone(worker: Colocated) -> None:
    """In fp32."""
    versions, asked = fill(worker, 1001), [*prompts(), *ONE_START]
    alone = {v: made(worker.worker, wanted(asked, range(len(asked)), adapter=v)) for v in versions}
    assert not same(alone[versions[0]], alone[versions[1]]), "adapters that generate alike would prove nothing"
    worker.engine.llm_engine.reset_prefix_cache()
    each = [
        (version, place, request)
        for place in range(len(asked))
        for version in versions
        for request in wanted([asked[place]], [place], adapter=version)
    ]
    random.Random(0).shuffle(each)
    together = made(worker.worker, [request for *_, request in each])
    assert [one.adapter_version for one in together] == [version for version, *_ in each]
    assert same(together, [alone[version][place] for version, place, _ in each])
    for version in versions:  # the trainer agrees, too
        mine = [place for place, (of, *_) in enumerate(each) if of == version]
        worker.load(random_adapter(worker, version))
        samples = samples_of([asked[each[place][1]] for place in mine], [together[place] for place in mine])
        assert worst([together[place].logprobs for place in mine], worker.trainer_logprobs(samples)) < 1e-5


@pytest.mark.parametrize("architecture", ["qwen2", pytest.param("olmo2", marks=pytest.mark.long)])
def test_layers_for_several_adapters_compute_what_the_layers_for_one_do(colocated, architecture: str) -> None:
    """olmo2 has Transformers' own modules."""
    one, several = (colocated(architecture, trainer__backend=None, adapters=count) for count in (1, SLOTS))
    assert all(kind.startswith("ManyAdapters") for kind in layer_kinds(several)) and len(layer_kinds(several)) >= 2
    for worker, slot in ((one, 0), (several, SLOTS - 1)):
        worker.randomise()
        worker.worker.sync(7, slot=slot)
    answers = [made(worker.worker, wanted(prompts(), range(12), adapter=7)) for worker in (one, several)]
    share, apart = in_common(*answers)
    assert share == 1.0 and apart.max() < 1e-5
    modules = several.engine.slot._manager.modules.values()
    found = sum(one.numel() for module in modules for one in (*module.lora_a_stacked, *module.lora_b_stacked))
    planned = AdapterSize.of(several.spec.adapter, read_model_sizes(several.model))
    assert found == planned.served_beside(SLOTS) and f"its buffers for {SLOTS} of rank 8" in several.built.memory


def test_a_version_in_no_slot_is_refused(worker: Colocated) -> None:
    versions = fill(worker, 1011)
    with pytest.raises(StaleAdapterError, match="would generate, expected 1010"):
        made(worker.worker, wanted(prompts(1), adapter=1010))
    with pytest.raises(StaleAdapterError, match="1011 or 1012 or 1013 would generate, expected None"):
        made(worker.worker, wanted(prompts(1)))
    assert {one.adapter_version for one in made(worker.worker, wanted(prompts(1), adapter=versions[1]))} == {1012}


def into_another(worker: Colocated) -> None:
    """What is brought to the last slot is written into the first one."""
    worker.rollouts.deliveries[2].sync.plan = worker.rollouts.deliveries[0].sync.plan  # type: ignore[attr-defined]


def into_another_unseen(worker: Colocated) -> None:
    """As `into_another`, and its own check looks there too."""
    into_another(worker)
    worker.rollouts.deliveries[2].arrived._plan = worker.rollouts.deliveries[0].arrived._plan


def exchanged(worker: Colocated) -> None:
    """vLLM takes the weights of one slot for those of another."""
    slots = worker.engine.slot._manager.lora_index_to_id
    slots[0], slots[1] = slots[1], slots[0]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (into_another, r"version 1999 did not reach vLLM: .*blocks differ"),
        (into_another_unseen, r"version 1021 is not in its slot of vLLM any more: another one was written there"),
        (exchanged, r"by adapter version 1021, expected 1022"),
        (old_prefixes, r"prefix cache gave adapter version 1022 keys and values that version 1021 computed"),
    ],
)
def test_a_wrong_slot_is_found(colocated, fault: Callable[[Colocated], None], message: str) -> None:
    worker: Colocated = colocated(adapters=SLOTS, **LONG)
    versions = fill(worker, 1021)
    fault(worker)
    worker.randomise(9)
    with pytest.raises(StaleAdapterError, match=message):
        if fault in (into_another, into_another_unseen):
            worker.worker.sync(1999, slot=2)
        for version in versions:
            made(worker.worker, wanted(ONE_START, adapter=version))


def test_a_slot_does_not_change_under_its_requests(worker: Colocated) -> None:
    fill(worker, 1031)
    alone = made(worker.worker, wanted(prompts(1), [0], adapter=1031))
    worker.worker.submit({10**6: wanted(prompts(1), [0], adapter=1031)[0]})
    worker.engine.hurry()
    chunks = worker.worker.results(10**6 + 1)
    assert not next(chunks).numbers, "a chunk that nothing is in comes after the step"
    worker.randomise(5)
    with pytest.raises(StaleAdapterError, match="version 1999 would take the place of 1031, which is generating"):
        worker.worker.sync(1999, slot=0)
    worker.worker.sync(1999, slot=1)
    assert same([one for chunk in chunks for one in chunk.completions], alone)


class Clients:
    """A bank whose snapshots are as many as one likes, and what each made alone."""

    def __init__(self, worker: Colocated, names: Sequence[str]) -> None:
        self.worker, self.bank = worker, Bank(worker.worker)
        self.expected: dict[str, Completion] = {}
        self.made: list[tuple[str, Completion]] = []
        for seed, name in enumerate(names):
            self.keep(name, seed)
        self.ask([BASE])
        self.bank.generate(lambda: None)
        self.expected[BASE] = self.made.pop()[1]

    def keep(self, name: str, seed: int) -> None:
        self.worker.randomise(seed)
        with torch.no_grad():
            adapter = {key: value.clone() for key, value in self.worker.worker.backend.model.export().items()}
        self.bank.add(name, adapter)
        self.ask([name])
        self.bank.generate(lambda: None)
        self.expected[name] = self.made.pop()[1]

    def ask(self, names: Sequence[str]) -> None:
        for name in names:
            [request] = wanted([prompts(1, seed=4)[0]], [0], max_tokens=3)
            self.bank.ask(name, [Wanted(request, lambda one, name=name: self.made.append((name, one)))])

    def generate(self, later: list[str]) -> int:
        """Make what was asked for, and let others in between two steps, as far as there is room; return how many."""
        joined: list[str] = []

        def between() -> None:
            if later and len(self.bank.generating | {later[-1]}) <= SLOTS:
                joined.append(later[-1])
                self.ask([later.pop()])
                self.bank.hurry()

        self.bank.hurry()
        self.bank.generate(between)
        return len(joined)

    def require(self) -> int:
        """Require that each got what its adapter makes alone; return how many there were."""
        assert same([one for _, one in self.made], [self.expected[name] for name, _ in self.made])
        count = len(self.made)
        self.made.clear()
        return count


def test_200_random_histories_serve_the_right_version_each_time(worker: Colocated) -> None:
    names = [f"s{number}" for number in range(6)]
    clients, draw = Clients(worker, names), random.Random(1)
    assert len({one.logprobs.tobytes() for one in clients.expected.values()}) == 7
    served = replaced = joined = 0
    for _ in range(200):
        act = draw.randrange(5)
        if act == 0:
            clients.keep(draw.choice(names), draw.randrange(100, 10**6))
            replaced += 1
            continue
        together = draw.sample([*names, BASE], draw.randint(1, SLOTS))
        clients.ask(draw.choices(together, k=draw.randint(1, 6)))
        joined += clients.generate([draw.choice([*names, BASE]) for _ in range(act)])
        served += clients.require()
    assert served > 500 and replaced > 20 and joined > 100


def test_all_slots_in_use_is_said_and_ends_no_request(worker: Colocated) -> None:
    clients = Clients(worker, ["a", "b", "c", "d"])
    clients.ask(["a", "b", "c"])
    with pytest.raises(StaleAdapterError, match="all 3 adapters in the engine are generating"):
        clients.ask(["d"])
    clients.bank.generate(lambda: None)
    assert clients.require() == 3
