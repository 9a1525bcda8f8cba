"""Clients of Tinker's API on a real trainer and engine: the same bytes as our own updates, alone or interleaved."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.peft_format import read_adapter
from lorarl_trainer.samples.requests import AdamW, LossChoice
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.storage import open_store
from lorarl_trainer.tinker import wire
from lorarl_trainer.tinker.bank import BASE, Bank, Wanted
from lorarl_trainer.tinker.saved import SavedWeights
from lorarl_trainer.tinker.server import Address, Server
from lorarl_trainer.tinker.service import Served, Service
from support.in_process import Colocated, prompts, tiny_job, update_request, wanted

ADAM = {"learning_rate": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}
NUMBERS = AdamW(1e-2, 0.9, 0.95, 1e-12, 0.0, float("inf"))
SERVED = Served(("tiny",), rank=8, seed=0, vocabulary_size=64, longest_prompt=16, longest_completion=8)
type Body = dict[str, Any]


@pytest.fixture(scope="module")
def worker(model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Colocated]:
    started = Colocated(model_folder("qwen3-tied"), tmp_path_factory.mktemp("job"), adapters=2)
    yield started
    started.close()


class Client:
    """What the client of the API sends, and what it makes of the answers."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http, self.url, self.session = http, f"{url}/api/v1/", ""
        self.number: dict[str, int] = {}

    async def post(self, path: str, body: Body | bytes, **headers: str) -> Any:
        data = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.http.post(self.url + path, headers=headers, **data) as answer:  # type: ignore[arg-type]
            if answer.content_type == wire.CONTENT_TYPE:
                return await answer.read()
            return await answer.json() | {"status": answer.status}

    async def promised(self, path: str, body: Body | bytes, **headers: str) -> Any:
        promise = await self.post(path, body, **headers)
        assert promise["status"] == 200, promise
        return await self.post("retrieve_future", {"request_id": promise["request_id"], "allow_metadata_only": True})

    async def model(self, number: int, seed: int) -> str:
        if not self.session:
            self.session = (await self.post("create_session", {"tags": [], "type": "create_session"}))["session_id"]
        lora = {"rank": 8, "seed": seed, "train_unembed": True, "train_mlp": True, "train_attn": True}
        body = {"session_id": self.session, "model_seq_id": number, "base_model": "tiny", "lora_config": lora}
        made = await self.promised("create_model", body)
        self.number[made["model_id"]] = 0
        return str(made["model_id"])

    def asked(self, model: str, **fields: Any) -> Body:
        self.number[model] += 1
        return {"model_id": model, "seq_id": self.number[model], **fields}

    async def train(self, model: str, samples: list[Sample], loss: str) -> bytes:
        self.number[model] += 1
        body = passes(model, self.number[model], samples, loss)
        made = await self.promised("forward_backward", body)
        await self.promised("optim_step", self.asked(model, adam_params=ADAM, type="optim_step"))
        return bytes(made)

    async def sample(self, sampler: str, number: int, tokens: list[int], **more: Any) -> Any:
        chunks = [{"tokens": tokens, "type": "encoded_text"}]
        body = {"prompt": {"chunks": chunks}, "sampling_session_id": sampler, "seq_id": number, "num_samples": 2}
        made = await self.promised("asample", body | {"sampling_params": {"max_tokens": 6, "seed": 1}} | more)
        return message("SampleResponse", made) if isinstance(made, bytes) else made


def message(kind: str, content: bytes) -> Any:
    read = wire._message(kind)
    read.ParseFromString(content)
    return read


def passes(model: str, number: int, samples: list[Sample], loss: str) -> bytes:
    """A ForwardBackwardRequest as the client writes it."""
    raw = wire._message("ForwardBackwardRequest")
    raw.model_id, raw.seq_id, raw.loss_fn = model, number, loss
    for sample in samples:
        datum = raw.data.add()
        datum.model_input.add().encoded_text.tokens = sample.tokens[:-1].astype("<i4").tobytes()
        arrays: dict[str, tuple[Any, str, int]] = {"target_tokens": (sample.trained_targets, "<i8", 2)}
        weights = "weights" if loss == "cross_entropy" else "advantages"
        arrays[weights] = (np.broadcast_to(sample.advantage, sample.trained_length), "<f4", 1)
        if loss != "cross_entropy":
            arrays["logprobs"] = (sample.rollout_logprobs, "<f4", 1)
        for name, (values, dtype, code) in arrays.items():
            one = datum.loss_fn_inputs.add(key=name)
            one.value.dense, one.value.dtype = np.asarray(values).astype(dtype).tobytes(), code
            one.value.shape.append(len(values))
    content: bytes = raw.SerializeToString()
    return content


def serve(
    worker: Colocated,
    out: Path,
    scenario: Callable[[Client], Awaitable[None]],
    key: str | None = None,
    **changes: object,
) -> None:
    """Run a scenario against a service on this worker; `changes` are of the job that the service takes it for."""

    async def run() -> None:
        spec = tiny_job(worker.model, worker.out, **changes).spec
        saved = SavedWeights(open_store(f"file://{out}"), worker.worker, spec, "f1")
        service = Service(Bank(worker.worker), saved, SERVED)
        server = Server(service, Address("127.0.0.1", 0, key))
        service.compute.start()
        async with server.serving(), aiohttp.ClientSession() as http:
            try:
                await scenario(Client(http, server.url))
            finally:
                await asyncio.to_thread(service.compute.stop)

    asyncio.run(run())


def data(seed: int, count: int = 5) -> list[Sample]:
    stream = np.random.default_rng(seed)
    lengths = stream.integers(4, 14, count)
    return [
        Sample(
            stream.integers(4, 60, length + 1),
            prompt_length=1,
            advantage=stream.normal(size=length).astype(np.float32),
            rollout_logprobs=-stream.random(length).astype(np.float32) - 3,
        )
        for length in lengths
    ]


def own(worker: Colocated, seed: int, batches: list[list[Sample]], loss: LossChoice) -> dict[str, np.ndarray]:
    """The adapter that our own updates make."""
    backend = worker.worker.backend
    backend.create_adapter(seed)
    for samples in batches:
        request = update_request(samples, loss=loss, on_policy=False, limits=None, total_tokens=1)
        backend.optimizer._numbers = NUMBERS
        worker.worker.update(replace(request, samples=Samples(samples)))
    return {name: tensor.numpy().copy() for name, tensor in worker.export().items()}


@pytest.mark.parametrize(
    ("loss", "choice"),
    [
        ("cross_entropy", LossChoice("cross_entropy", weighs_tokens=True)),
        ("importance_sampling", LossChoice("policy_gradient", clip_range=float("inf"))),
    ],
)
def test_two_clients_interleaved_get_the_bytes_of_our_own_updates(
    worker: Colocated, tmp_path: Path, loss: str, choice: LossChoice
) -> None:
    batches = {seed: [data(seed), data(seed + 10), data(seed + 20)] for seed in (1, 2)}
    expected = {seed: own(worker, seed, batches[seed], choice) for seed in batches}
    paths: dict[int, str] = {}

    async def scenario(client: Client) -> None:
        models = {seed: await client.model(seed, seed) for seed in batches}
        for number in range(3):
            # Both send before either steps: gradients change places with their adapters.
            sent = [client.train(models[seed], batches[seed][number], loss) for seed in batches]
            outputs = await asyncio.gather(*sent)
            assert all(message("ForwardBackwardOutput", one).loss_fn_outputs[0].num_datums == 5 for one in outputs)
        for seed, model in models.items():
            asked = client.asked(model, path=f"final-{seed}", type="save_weights")
            paths[seed] = (await client.promised("save_weights", asked))["path"]

    serve(worker, tmp_path, scenario)
    for seed, path in paths.items():
        folder = tmp_path / path.removeprefix("tinker://").replace(":", "-") / "lora_adapter"
        found = read_adapter((folder / "adapter_model.safetensors").read_bytes(), "test")
        assert {name: found[name].numpy().tobytes() for name in found} == {
            name: value.tobytes() for name, value in expected[seed].items()
        }


def test_plain_sft_with_a_prompt_is_cross_entropy_with_weights_of_zero(worker: Colocated, tmp_path: Path) -> None:
    plain = [Sample(sample.tokens, prompt_length=3) for sample in data(3)]
    expected = own(worker, 5, [plain], LossChoice("cross_entropy"))
    weighed = [replace(one, prompt_length=1, advantage=_weights(one)) for one in plain]
    found = own(worker, 5, [weighed], LossChoice("cross_entropy", weighs_tokens=True))
    worst = max(np.abs(found[name] - expected[name]).max() for name in found)
    assert worst < 1e-5, "the first update of AdamW moves each element by the rate, 1e-2"


def _weights(sample: Sample) -> np.ndarray:
    weights = np.ones(len(sample.tokens) - 1, np.float32)
    weights[: sample.prompt_length - 1] = 0
    return weights


def test_a_run_is_saved_sampled_from_and_continued(worker: Colocated, tmp_path: Path) -> None:
    path, rest = [""], data(8)

    async def first(client: Client) -> None:
        model = await client.model(0, 3)
        await client.train(model, data(7), "importance_sampling")
        kept = await client.promised("save_weights_for_sampler", client.asked(model, sampling_session_seq_id=0))
        sampler = kept["sampling_session_id"]
        one = await client.sample(sampler, 0, [5, 6, 7], prompt_logprobs=True)
        assert len(one.sequences) == 2 and len(np.frombuffer(one.prompt_logprobs, "<f4")) == 3
        saved = await client.promised("save_weights", client.asked(model, path="state"))
        path[0] = saved["path"]
        named = await client.promised("save_weights_for_sampler", client.asked(model, path="named"))
        session = {"session_id": client.session, "sampling_session_seq_id": 9, "model_path": named["path"]}
        other = (await client.post("create_sampling_session", session))["sampling_session_id"]
        again = await client.sample(other, 0, [5, 6, 7], prompt_logprobs=True)
        assert again.SerializeToString() == one.SerializeToString(), "the same weights, the same samples"
        await client.train(model, rest, "importance_sampling")
        await client.promised("save_weights", client.asked(model, path="end"))

    async def second(client: Client) -> None:
        gone = await client.post("optim_step", {"model_id": path[0].split("/")[2], "adam_params": ADAM})
        assert gone["status"] == 410 and "started again" in gone["detail"]
        client.session = (await client.post("create_session", {}))["session_id"]
        load = {"session_id": client.session, "model_seq_id": 0, "path": path[0], "optimizer": True}
        model = (await client.promised("load_weights", load))["model_id"]
        client.number[model] = 0
        await client.train(model, rest, "importance_sampling")
        await client.promised("save_weights", client.asked(model, path="end"))

    serve(worker, tmp_path, first)
    serve(worker, tmp_path, second)
    ends = [file.read_bytes() for file in sorted(tmp_path.glob("*/weights/end/lora_adapter/adapter_model.safetensors"))]
    assert len(ends) == 2 and ends[0] == ends[1], "a new start continues as if there had been none"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__quantization": "nf4", "trainer__backend": "fsdp"}, 'spec.model.quantization null.*has "nf4"'),
        ({"adapter__rank": 16}, "spec.adapter.rank 8; this service has 16"),
        ({"adapter__rslora": True}, "spec.adapter.rslora false.*has true"),
        ({"adapter__targetModules": ["linear_proj"]}, r'targetModules \["all-linear"\]; this.*\["linear_proj"\]'),
    ],
)
def test_a_start_with_other_numbers_refuses_the_weights_of_an_earlier_one(
    worker: Colocated, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    """They fit in shape, some of them, and would be other adapters."""
    path = [""]

    async def first(client: Client) -> None:
        model = await client.model(0, 3)
        path[0] = (await client.promised("save_weights", client.asked(model, path="state")))["path"]

    async def second(client: Client) -> None:
        client.session = (await client.post("create_session", {}))["session_id"]
        load = {"session_id": client.session, "model_seq_id": 0, "path": path[0], "optimizer": True}
        refused = await client.post("load_weights", load)
        assert refused["status"] != 200 and re.search(said, refused["detail"]), refused

    serve(worker, tmp_path, first)
    serve(worker, tmp_path, second, **changes)


def same(one: Any, other: Any) -> bool:
    """The same tokens, with log-probabilities as near as they are where a batch has other requests too."""
    return len(one.sequences) == len(other.sequences) and all(
        a.tokens == b.tokens
        and np.allclose(np.frombuffer(a.logprobs, "<f4"), np.frombuffer(b.logprobs, "<f4"), rtol=0.0, atol=1e-5)
        for a, b in zip(one.sequences, other.sequences, strict=True)
    )


def test_snapshots_of_several_clients_are_sampled_from_together(worker: Colocated, tmp_path: Path) -> None:
    """Three, of which the engine holds two at a time; each gets what it gets alone."""

    async def scenario(client: Client) -> None:
        samplers = []
        for number in range(3):
            model = await client.model(number, number)
            for _ in range(3):
                await client.train(model, data(number), "importance_sampling")
            asked = client.asked(model, sampling_session_seq_id=number)
            samplers.append((await client.promised("save_weights_for_sampler", asked))["sampling_session_id"])
        alone = [await client.sample(sampler, 0, [5, 6, 7]) for sampler in samplers]
        assert not any(same(one, other) for one, other in combinations(alone, 2))
        again = await asyncio.gather(*(client.sample(samplers[n % 3], 1 + n, [5, 6, 7]) for n in range(9)))
        assert all(same(one, other) for one, other in zip(again, alone * 3, strict=True))

    serve(worker, tmp_path, scenario)


def test_requests_that_come_twice_or_out_of_order_change_nothing(worker: Colocated, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        model = await client.model(0, 1)
        step = await client.post("optim_step", {"model_id": model, "seq_id": 2, "adam_params": ADAM})
        refused = passes(model, 1, data(1), "stable_reinforce")
        first = await client.post("forward_backward", refused)
        assert await client.post("forward_backward", refused) == first, "the same promise"
        failed = await client.post("retrieve_future", {"request_id": first["request_id"]})
        assert failed["category"] == "user" and "stable_reinforce" in failed["error"]
        after = await client.post("retrieve_future", {"request_id": step["request_id"]})
        assert "no update was made" in after["error"]
        key = {"X-Idempotency-Key": "k1"}
        once = [await client.post("optim_step", {"model_id": model, "adam_params": ADAM}, **key) for _ in range(2)]
        assert once[0] == once[1]
        lost = await client.post("retrieve_future", {"request_id": "never"})
        assert lost["status"] == 410
        lora = {"rank": 4}
        rank = {"session_id": client.session, "model_seq_id": 3, "base_model": "tiny", "lora_config": lora}
        assert "--rank 8" in (await client.post("create_model", rank))["detail"]

    serve(worker, tmp_path, scenario)


def test_a_key_is_needed_where_there_is_one(worker: Colocated, tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.post("create_session", {}))["status"] == 401
        assert (await client.post("create_session", {}, **{"X-API-Key": "tml-1"}))["status"] == 200

    serve(worker, tmp_path, scenario, key="tml-1")
    Address("127.0.0.1", 0, None).require_key()
    for none in (None, ""):
        with pytest.raises(InputError, match="LORARL_TINKER_API_KEY"):
            Address("0.0.0.0", 0, none).require_key()


def test_200_random_histories_never_serve_another_adapters_weights(worker: Colocated) -> None:
    bank, [prompt] = Bank(worker.worker), prompts(1, seed=4)
    backend = worker.worker.backend

    def greedy(snapshot: str) -> list[int]:
        made: list[list[int]] = []
        [request] = wanted([prompt])
        bank.ask(snapshot, [Wanted(request, lambda one: made.append(one.tokens.tolist()))])
        bank.generate(lambda: None)
        return made[0]

    def trained(model: str) -> None:
        bank.accumulate(model, update_request(data(hash(model) % 7), on_policy=False), with_gradient=True)
        bank.step(model, replace(NUMBERS, learning_rate=0.1))

    names = ["m0", "m1", "m2", "m3"]
    for seed, name in enumerate(names):
        bank.create(name, seed)
        worker.randomise(seed)  # B matters
        bank.keep(name, name)
    expected = {name: greedy(name) for name in (*names, BASE)}
    assert len({tuple(one) for one in expected.values()}) == 5
    draw = random.Random(0)
    for _ in range(200):
        name = draw.choice(names)
        act = draw.randrange(4)
        if act == 0:
            trained(name)
        elif act == 1:
            bank.keep(name, name)
            bank.drop("other")
            expected[name] = greedy(name)
            with_own = backend.model.export()
            assert all(bool((bank._snapshots[name][key] == with_own[key]).all()) for key in with_own)
        else:
            chosen = draw.choice([*names, BASE])
            assert greedy(chosen) == expected[chosen]
