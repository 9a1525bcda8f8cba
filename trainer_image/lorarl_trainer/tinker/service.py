"""What clients have here: sessions, models and what is sampled from; and what becomes of each request.

All of it is in memory, and ends with the service. What lasts is saved weights.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lorarl_trainer.samples.requests import GenerationRequest
from lorarl_trainer.schedule import seed_of
from lorarl_trainer.tinker import requests
from lorarl_trainer.tinker.bank import BASE, Bank
from lorarl_trainer.tinker.compute import Compute, Sampling, Training
from lorarl_trainer.tinker.datums import update_request
from lorarl_trainer.tinker.promises import Promise, Promises, Reply, failed
from lorarl_trainer.tinker.refusals import GONE, RefusedError
from lorarl_trainer.tinker.saved import SavedWeights
from lorarl_trainer.tinker.wire import Passes, passes_made, read_passes

ALPHA = 32
"""Of all adapters, as in Tinker's service; the API has no field for it."""
SESSION_SECONDS = 900.0
"""How long a session lives without a heartbeat. Clients send one every 10 s."""
KEPT_SNAPSHOTS = 16
"""Of each model, how many unnamed snapshots can be sampled from: the newest."""


@dataclass(frozen=True)
class Served:
    """What is served.

    Attributes:
        names: what clients may call the base model; the first one is its own.
        rank: of all adapters.
        vocabulary_size: tokens that the model has an embedding for.
        longest_prompt, longest_completion: tokens.
    """

    names: tuple[str, ...]
    rank: int
    seed: int
    vocabulary_size: int
    longest_prompt: int
    longest_completion: int

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return self.longest_prompt + self.longest_completion


@dataclass
class _Model:
    """A model. `failed` says why its next step is refused; None if nothing failed since the last one."""

    failed: str | None = None
    snapshots: list[str] = field(default_factory=list)


@dataclass
class _Session:
    seen: float
    models: dict[str, _Model] = field(default_factory=dict)
    samplers: dict[str, str] = field(default_factory=dict)  # the snapshot of each


class Service:
    """Answers the requests of clients, in the server's thread."""

    def __init__(self, bank: Bank, saved: SavedWeights, served: Served) -> None:
        self._bank, self._saved, self.served = bank, saved, served
        self.promises = Promises()
        self.compute = Compute(bank, saved.adapter)
        self._sessions: dict[str, _Session] = {}

    def create_session(self, asked: requests.CreateSession) -> Mapping[str, Any]:
        """Begin a session; the client shows what it is given."""
        del asked
        session_id = secrets.token_hex(8)
        self._sessions[session_id] = _Session(time.monotonic())
        info = f"lorarl serves {self.served.names[0]}, rank {self.served.rank}, alpha {ALPHA}, no adapter on the output"
        return {"type": "create_session", "session_id": session_id, "info_message": info}

    def heartbeat(self, asked: requests.OfSession) -> Mapping[str, Any]:
        """Keep a session alive, and end those that no one has."""
        self._session(asked.session_id)
        for session_id, session in list(self._sessions.items()):
            if time.monotonic() - session.seen > SESSION_SECONDS:
                self.finish(session_id)
        return {"type": "session_heartbeat"}

    def finish(self, session_id: str) -> None:
        """End a session, and free its memory."""
        gone = failed(f"session {session_id} has ended", "user")
        for model_id, model in self._session(session_id).models.items():
            self.compute.end(model_id, model.snapshots, gone)
        self.promises.forget(session_id)
        del self._sessions[session_id]

    def capabilities(self) -> Mapping[str, Any]:
        """Return what can be trained and sampled from."""
        about = {"max_context_length": self.served.longest, "trainable": True, "sampleable": True}
        return {"supported_models": [{"model_name": self.served.names[0], **about}]}

    def create_model(self, asked: requests.CreateModel) -> Mapping[str, Any]:
        """Make a model: a new adapter."""
        self._require_base(asked.base_model)
        lora = asked.lora_config or requests.Lora(rank=self.served.rank)
        _require_adamw(asked.optimizer_config)
        if lora.rank != self.served.rank:
            raise RefusedError(f"rank is {lora.rank}; this service was started with --rank {self.served.rank}")
        if not (lora.train_attn and lora.train_mlp):
            raise RefusedError("train_attn and train_mlp must be true: all adapters are on the same layers here")
        seed = seed_of(self.served.seed, "model", asked.model_seq_id) if lora.seed is None else lora.seed

        def make(model_id: str) -> Mapping[str, Any]:
            self._bank.create(model_id, seed)
            return {"type": "create_model", "model_id": model_id}

        return self._new_model(asked.session_id, asked.model_seq_id, make)

    def load(self, asked: requests.Load) -> Mapping[str, Any]:
        """Make a model of saved weights, or let one continue from them."""
        if asked.base_model is not None:
            self._require_base(asked.base_model)
        if asked.optimizer_config is not None:
            _require_adamw(asked.optimizer_config)
        self._saved.require(asked.path)

        def make(model_id: str) -> Mapping[str, Any]:
            state = self._saved.state(asked.path)
            self._bank.restore(model_id, state.tensors, state.updates if asked.optimizer else 0)
            self._model(model_id).failed = None
            return {"type": "load_weights", "path": asked.path, "model_id": model_id}

        if asked.model_id is not None:
            return self._train(asked.model_id, asked.seq_id, partial(_as_json, make, asked.model_id))
        if asked.session_id is None or asked.model_seq_id is None:
            raise RefusedError("load_weights needs model_id, or session_id and model_seq_id")
        return self._new_model(asked.session_id, asked.model_seq_id, make)

    def info(self, asked: requests.OfModel) -> Mapping[str, Any]:
        """Return what a model is."""
        self._model(asked.model_id)
        name = self.served.names[0]
        return {
            "type": "get_info",
            "model_data": {"arch": "", "model_name": name, "tokenizer_id": name},
            "model_id": asked.model_id,
            "model_name": name,
            "is_lora": True,
            "lora_rank": self.served.rank,
        }

    def weights_info(self, asked: requests.WeightsInfo) -> Mapping[str, Any]:
        """Return what saved weights are of."""
        self._saved.require(asked.tinker_path)
        return {"base_model": self.served.names[0], "is_lora": True, "lora_rank": self.served.rank}

    def forward_backward(self, body: bytes) -> Mapping[str, Any]:
        """Compute a loss, and unless it is forward only, add its gradient to the model's."""
        passes = read_passes(body)
        model = self._model(passes.model_id)
        return self._train(passes.model_id, passes.seq_id, partial(self._passes, passes, model))

    def _passes(self, passes: Passes, model: _Model) -> Reply:
        try:
            request = update_request(passes, self.served.vocabulary_size, self.served.longest)
            found = self._bank.accumulate(passes.model_id, request, with_gradient=not passes.forward_only)
            if not math.isfinite(found.sums["loss"]):
                raise RefusedError(f"the loss is {found.sums['loss']}, no finite number")
        except Exception as error:
            if not passes.forward_only:
                model.failed = f"forward_backward {passes.seq_id} failed ({error})"
            raise
        return Reply.message(passes_made(found.logprobs, {f"{name}:sum": value for name, value in found.sums.items()}))

    def optim_step(self, asked: requests.OptimStep) -> Mapping[str, Any]:
        """Update a model by its gradients."""
        model = self._model(asked.model_id)

        def make() -> Reply:
            if asked.adam_params is None:
                raise RefusedError("adam_params is missing; this service has AdamW only")
            if (failure := model.failed) is not None:
                model.failed = None
                self._bank.forget_gradient(asked.model_id)
                raise RefusedError(f"{failure}, so no update was made; the gradients before it are forgotten")
            norm = self._bank.step(asked.model_id, asked.adam_params.numbers)
            if not math.isfinite(norm):
                raise RefusedError(f"the gradient's norm is {norm}, no finite number, so no update was made")
            return Reply.of({"type": "optim_step", "metrics": {"grad_norm": norm}})

        return self._train(asked.model_id, asked.seq_id, make)

    def save(self, asked: requests.Save) -> Mapping[str, Any]:
        """Save a model with its optimizer."""
        if (name := asked.path) is None:
            raise RefusedError("path is missing: the name to save the weights under")

        def make() -> Reply:
            taken = self._bank.snapshot(asked.model_id)
            path = self._saved.save(asked.model_id, "weights", name, taken, overwrite=asked.overwrite)
            return Reply.of({"type": "save_weights", "path": path})

        return self._train(asked.model_id, asked.seq_id, make)

    def save_for_sampler(self, asked: requests.Save) -> Mapping[str, Any]:
        """Save weights under a name, or keep them in memory for a sampling session."""
        kind = "save_weights_for_sampler"
        session_id = asked.model_id.partition(":")[0]
        model = self._model(asked.model_id)

        def save(name: str) -> Reply:
            taken = self._bank.snapshot(asked.model_id)
            return Reply.of({"type": kind, "path": self._saved.save(asked.model_id, "sampler_weights", name, taken)})

        def keep(sampler: str) -> Reply:
            self._bank.keep(sampler, asked.model_id)
            return Reply.of({"type": kind, "path": None, "sampling_session_id": sampler})

        if asked.path is not None:
            return self._train(asked.model_id, asked.seq_id, partial(save, asked.path))
        if asked.sampling_session_seq_id is None:
            raise RefusedError("path is missing: the name to save the weights under")
        sampler = f"{session_id}:sample:{asked.sampling_session_seq_id}"
        answer = self._train(asked.model_id, asked.seq_id, partial(keep, sampler))
        session = self._session(session_id)
        if sampler not in session.samplers:
            session.samplers[sampler] = sampler
            model.snapshots.append(sampler)
            for old in model.snapshots[:-KEPT_SNAPSHOTS]:
                self.compute.drop(old)
                del session.samplers[old]
            del model.snapshots[:-KEPT_SNAPSHOTS]
        return answer

    def create_sampler(self, asked: requests.SamplingSession) -> Mapping[str, Any]:
        """Name what is sampled from."""
        session = self._session(asked.session_id)
        sampler = f"{asked.session_id}:sample:{asked.sampling_session_seq_id}"
        session.samplers[sampler] = self._snapshot(asked.model_path, asked.base_model)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    def sampler(self, sampler: str) -> Mapping[str, Any]:
        """Return what a sampling session samples from."""
        snapshot = self._sampled(sampler)
        path = snapshot if snapshot.startswith("tinker://") else None
        return {"sampler_id": sampler, "base_model": self.served.names[0], "model_path": path}

    def sample(self, asked: requests.Sample, key: str) -> Mapping[str, Any]:
        """Ask for completions. `key` names a request without numbers."""
        asked.require_supported()
        tokens, given = asked.tokens, asked.sampling_params
        if asked.sampling_session_id is not None:
            snapshot = self._sampled(asked.sampling_session_id)
        else:
            snapshot = self._snapshot(asked.model_path, asked.base_model)
        if not 1 <= len(tokens) <= self.served.longest_prompt:
            raise RefusedError(f"the prompt has {len(tokens):,} tokens; expected 1 to {self.served.longest_prompt:,}")
        if not all(0 <= token < self.served.vocabulary_size for token in (*tokens, *(given.tokens or ()))):
            raise RefusedError(f"tokens of prompt and stop must be from 0 to {self.served.vocabulary_size - 1}")
        if (given.max_tokens or 1) > (most := self.served.longest_completion):
            raise RefusedError(f"max_tokens is {given.max_tokens:,}; expected {most:,} at most")
        request_id = f"{asked.sampling_session_id}:{asked.seq_id}" if asked.sampling_session_id else f"sample:{key}"
        # Without a seed, it follows from the request, whose session has a random id.
        seed = seed_of(self.served.seed, request_id) if given.seed is None else given.seed
        one = GenerationRequest(
            tokens,
            asked_by=request_id,
            max_tokens=given.max_tokens,
            sampling=given.sampling,
            stop_token_ids=given.tokens,
            stop=given.texts,
        )
        seeds = [seed_of(seed, "sample", n) if given.sampling else None for n in range(asked.num_samples)]
        completions = [replace(one, seed=each) for each in seeds]

        def take(promise: Promise) -> None:
            self.compute.sample(Sampling(promise, snapshot, completions, bool(asked.prompt_logprobs)))

        ids = [f"{request_id}:{number}" for number in range(asked.num_samples)]
        return self.promises.once(request_id, take, sample_sequence_ids=ids)

    def _new_model(self, session_id: str, number: int, make: Callable[[str], Mapping[str, Any]]) -> Mapping[str, Any]:
        session, model_id = self._session(session_id), f"{session_id}:train:{number}"
        if model_id not in session.models:
            session.models[model_id] = _Model()
            self.compute.begin(model_id)
        return self._train(model_id, 0, partial(_as_json, make, model_id))

    def _train(self, model_id: str, number: int | None, make: Callable[[], Reply]) -> Mapping[str, Any]:
        self._model(model_id)

        def take(promise: Promise) -> None:
            self.compute.train(model_id, number, Training(promise, make))

        request_id = f"{model_id}:{secrets.token_hex(8) if number is None else number}"
        return self.promises.once(request_id, take, model_id=model_id)

    def _session(self, session_id: str) -> _Session:
        if (found := self._sessions.get(session_id)) is None:
            raise RefusedError(
                f"session {session_id} is not known: it has ended, or the service was started again", GONE
            )
        found.seen = time.monotonic()
        return found

    def _model(self, model_id: str) -> _Model:
        found = self._session(model_id.partition(":")[0]).models.get(model_id)
        if found is None:
            raise RefusedError(f"model {model_id} is not known; create it first", status=404)
        return found

    def _sampled(self, sampler: str) -> str:
        """Return the snapshot of a sampling session."""
        found = self._session(sampler.partition(":")[0]).samplers.get(sampler)
        if found is None:
            raise RefusedError(
                f"{sampler} is not kept: of each model, the newest {KEPT_SNAPSHOTS} are. "
                "Use save_weights_for_sampler with a name for weights that stay",
                GONE,
            )
        return found

    def _snapshot(self, path: str | None, base_model: str | None) -> str:
        """Return the snapshot of saved weights, or that of the base model."""
        if path is not None:
            self._saved.require(path)
            return path
        self._require_base(base_model or self.served.names[0])
        return BASE

    def _require_base(self, name: str) -> None:
        if name not in self.served.names:
            raise RefusedError(f"base_model is {name!r}; this service has {self.served.names[0]!r}", status=404)


def _require_adamw(optimizer: requests.Optimizer) -> None:
    if optimizer.type != "adamw":
        raise RefusedError(f"the optimizer is {optimizer.type!r}; this service has adamw only")


def _as_json(make: Callable[[str], Mapping[str, Any]], model_id: str) -> Reply:
    return Reply.of(make(model_id))
