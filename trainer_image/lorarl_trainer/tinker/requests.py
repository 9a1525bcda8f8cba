"""The requests of Tinker's API that are JSON, as client 0.38.0 sends them, and what of them this service takes.

A field that is not listed is refused; one of no effect here is listed as such.
"""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lorarl_trainer.samples.requests import AdamW
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.tinker.refusals import RefusedError

_MOST_SAMPLES = 1024


class Request(BaseModel):
    """A request, or a part of one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())

    type: str | None = None
    user_metadata: dict[str, Any] | None = None  # of no effect


class Optimizer(Request):
    """The family of a model's optimizer."""

    type: str | None = "adamw"


class CreateSession(Request):
    """Begins what a client does."""

    tags: list[str] = []  # of no effect, like the next three
    sdk_version: str | None = None
    project_id: str | None = None
    display_name: str | None = None


class OfSession(Request):
    """Keeps a session alive, or ends it."""

    session_id: str


class Lora(Request):
    """The adapter of a new model. The output layer has none here, whatever `train_unembed` says."""

    rank: int
    seed: int | None = Field(None, ge=0)
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class CreateModel(OfSession):
    """Makes a model: an adapter with its optimizer."""

    model_seq_id: int
    base_model: str
    lora_config: Lora | None = None
    optimizer_config: Optimizer = Optimizer()


class OfModel(Request):
    """Asks about a model."""

    model_id: str


class Adam(Request):
    """The numbers of a step, by PyTorch's names; a norm of 0 clips nothing."""

    learning_rate: float = Field(1e-4, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    eps: float = Field(1e-12, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    grad_clip_norm: float = 0.0

    @property
    def numbers(self) -> AdamW:
        """As the trainer takes them."""
        norm = self.grad_clip_norm if self.grad_clip_norm > 0 else math.inf
        return AdamW(self.learning_rate, self.beta1, self.beta2, self.eps, self.weight_decay, norm)


class OptimStep(OfModel):
    """Updates a model."""

    seq_id: int | None = None
    adam_params: Adam | None = None
    optimizer_params: dict[str, Any] | None = None


class Save(OfModel):
    """Saves a model's weights under a name, or keeps them to sample from."""

    path: str | None = None
    seq_id: int | None = None
    overwrite: bool = False
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"  # "inflight" gets a snapshot, too: weights that are as new as it asks for
    ttl_seconds: int | None = None  # of no effect: weights stay


class Load(Request):
    """Makes a model of saved weights (by session), or lets one continue from them (by model)."""

    path: str
    optimizer: bool
    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    optimizer_config: Optimizer | None = None
    weights_access_token: str | None = None  # of no effect


class SamplingSession(OfSession):
    """Names what is sampled from: saved weights, or the base model."""

    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Request):
    """A part of a prompt."""

    tokens: list[int] = []


class Prompt(Request):
    """A prompt."""

    chunks: list[Chunk]


class SamplingParameters(Request):
    """How completions are drawn. `stop` takes the place of the tokens that end a completion by themselves."""

    max_tokens: int | None = Field(None, ge=1)
    seed: int | None = Field(None, ge=0)
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(1.0, ge=0)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)

    @property
    def sampling(self) -> Sampling | None:
        """Where tokens are drawn from; None for the best token."""
        return Sampling(self.temperature, self.top_p, max(self.top_k, 0)) if self.temperature > 0 else None

    @property
    def texts(self) -> tuple[str, ...]:
        """Texts that end a completion."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(one for one in given if isinstance(one, str))

    @property
    def tokens(self) -> tuple[int, ...] | None:
        """Tokens that end a completion; None for the model's."""
        if self.stop is None:
            return None
        return tuple(one for one in self.stop if isinstance(one, int))


class Sample(Request):
    """Asks for completions."""

    prompt: Prompt
    sampling_params: SamplingParameters
    num_samples: int = Field(1, ge=1, le=_MOST_SAMPLES)
    sampling_session_id: str | None = None
    seq_id: int | None = None
    base_model: str | None = None
    model_path: str | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: dict[str, Any] | None = None
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None

    @property
    def tokens(self) -> list[int]:
        """The prompt's."""
        return [token for chunk in self.prompt.chunks for token in chunk.tokens]

    def require_supported(self) -> None:
        """Raise RefusedError if it asks for what the engine has not."""
        for chunk in self.prompt.chunks:
            if chunk.type != "encoded_text":
                raise RefusedError(f"prompt has a chunk of type {chunk.type}; only encoded_text can be sampled from")
        asked = (
            *("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs"),
            *("prompt_alt_tokens_k", "prompt_logprobs_last_n"),
        )
        for name in asked:
            if getattr(self, name):
                raise RefusedError(f"{name} is not available here; prompt_logprobs is")
        if self.record_stability_info:
            raise RefusedError("record_stability_info is for stable_reinforce; use loss_fn=importance_sampling")


class Retrieve(Request):
    """Asks for what was promised."""

    request_id: str
    allow_metadata_only: bool = False  # of no effect: results are sent whole


class WeightsInfo(Request):
    """Asks about saved weights."""

    tinker_path: str


def read[Asked: Request](kind: type[Asked], body: bytes) -> Asked:
    """Read a body. Raises RefusedError, naming the first field that is wrong."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "the body"
        raise RefusedError(f"{field}: {first['msg']}") from error
