"""How completions are generated."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.common import Model, SecretName
from lorarl_api.v1alpha1.server_rules import SERVER_RULES

ServerUrl = Annotated[str, Field(min_length=1, max_length=1024, examples=["http://127.0.0.1:8000"])]
StopText = Annotated[str, Field(min_length=1, max_length=256, examples=["</answer>"])]


class PartialSpec(Model):
    """Answers that no step waits for: the next step continues those that have not ended, with its adapter.

    So some of a step's tokens are by earlier adapters. `algorithm.correction` corrects for the difference.
    """

    extra_prompts: int = Field(
        ge=1,
        le=65_536,
        description="Prompts that are answered beside promptsPerStep. As many groups are unfinished after each step.",
        examples=[16],
    )
    tokens_per_round: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="Tokens that each answer gets before lorarl checks whether promptsPerStep groups are whole. "
        "Default: an eighth of maxResponseTokens.",
        examples=[512],
    )


class SeparateEnginesSpec(Model):
    """Engines of vLLM on GPUs that the trainer does not use: the run starts them, and ends them with itself."""

    count: int = Field(
        1,
        ge=1,
        le=64,
        description="Engines. Each has the whole base model, and tensorParallelSize GPUs beside cluster.gpusPerNode. "
        "In a cluster, each has its own pod. With `lorarl run` on a CPU, each shares the CPUs with the trainer.",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="GPUs that each engine is split over. 1 for CPU jobs."
    )
    gpu_memory_fraction: float = Field(
        0.9,
        gt=0.0,
        lt=1.0,
        description="Share of a GPU's memory that each engine takes: what its weights leave is its "
        "KV cache. On CPU, the KV cache takes what it needs, up to 4 GiB.",
    )


class RolloutSpec(Model):
    """How vLLM generates."""

    separate_engines: SeparateEnginesSpec | None = Field(
        None,
        description="Generate on GPUs that the trainer does not use, with engines that the run starts: on further "
        "GPUs of the machine, or in a cluster in further pods. Each new adapter is loaded into all of them, and must "
        "give the trainer's log-probabilities there. Default: each worker has an engine, which shares its GPU with the "
        "trainer.",
        examples=[{"count": 1}],
    )
    servers: list[ServerUrl] | None = Field(
        None,
        min_length=1,
        max_length=64,
        description="Servers of vLLM (`vllm serve`) that generate in place of engines in the workers: "
        "http(s)://HOST:PORT. Each new adapter is loaded into all of them, and must give the trainer's "
        "log-probabilities there. Default: none.",
        examples=[["http://127.0.0.1:8000"]],
    )
    server_folder: str | None = Field(
        None,
        min_length=2,
        max_length=1024,
        description="Folder for the adapters, which workers and servers see under the same path. Each version has its "
        "own folder there. Default: served in the run's folder; in a cluster it must be set.",
        examples=["/mnt/adapters"],
    )
    credentials_secret: SecretName | None = Field(
        None,
        description="Name of a Secret with the key OPENAI_API_KEY, which each request to the servers carries. "
        "Default: none is sent.",
    )
    server_timeout_seconds: float | None = Field(
        None,
        gt=0.0,
        le=86_400.0,
        description="Longest time of a request to a server or a separate engine. A run waits as long for the first one "
        "to come back if none is left. Default: 600.",
        examples=[1800.0],
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=16,
        description="Only with separateEngines or servers: how many versions older than the one that a step updates "
        "its completions may be. 0 generates and trains in turns. Above 0, as many later steps are generated while a "
        "step trains, and each server needs --max-loras of one more.",
        examples=[1],
    )

    prompts_per_step: int = Field(64, ge=1, le=65_536, description="Prompts per step. For sft and dpo, rows per step.")
    max_prompt_tokens: int = Field(
        512,
        ge=1,
        le=1_000_000,
        description="Most tokens of a prompt. Rows with a longer prompt are left out and counted.",
    )
    max_response_tokens: int = Field(
        1024,
        ge=1,
        le=1_000_000,
        description="Most tokens of a completion. For sft and dpo, rows with a longer answer are left out.",
    )
    temperature: float = Field(
        1.0,
        ge=0.01,
        le=2.0,  # vLLM's
        description="Sampling temperature. vLLM and the trainer compute log-probabilities at the same temperature.",
    )
    top_p: float = Field(
        1.0,
        gt=0.0,
        le=1.0,
        description="Sample only from the most probable tokens that together have this probability. vLLM and the "
        "trainer renormalise over the same number of tokens. topP counts in what minP and topK leave.",
    )
    top_k: int | None = Field(
        None,
        ge=2,
        le=1_000_000,
        description="Sample only from so many most probable tokens. Default: all.",
        examples=[50],
    )
    min_p: float = Field(
        0.0,
        ge=0.0,
        lt=1.0,
        description="Sample only tokens that are at least this share as probable as the most probable one.",
    )
    stop: list[StopText] = Field(
        default_factory=list,
        max_length=16,
        description="Texts that end a completion, in rollouts and evaluations. The text is the completion's end: it is "
        "trained on, and the reward sees it.",
    )
    partial: PartialSpec | None = Field(
        None,
        description="Let no step wait for its longest answers: the next step continues them. Default: each step's "
        "answers are all by its adapter.",
    )
    adapter_sync: Literal["tensor", "disk"] = Field(
        "tensor",
        description="How vLLM gets a new adapter. tensor: in memory, within the process. disk: through files in "
        "shared memory.",
    )
    verify_sync: bool = Field(
        False,
        description="After each sync, compare vLLM's whole adapter with the trainer's export, bit by bit, and stop "
        "if they differ. For debugging: every sync is compared with the trainer's own tensors in any case, and this "
        "second comparison takes longer than the sync.",
    )
    offload: list[Literal["kv_cache", "weights"]] | None = Field(
        None,
        max_length=2,
        description="GPU memory that vLLM frees while the trainer works: nothing ([]), the KV cache, or also the "
        "weights that it does not share with the trainer. Default: chosen for the fastest step that fits. Only for GPU "
        "jobs.",
        examples=[["kv_cache"]],
    )
    logprob_tolerance: float | None = Field(
        None,
        gt=0.0,
        le=10.0,
        description="grpo: largest mean absolute difference, in nats, between vLLM's and the trainer's "
        "log-probabilities of a step's tokens. Above it the run stops. By default nothing is fixed: a run measures "
        "how far apart they are for its base model, and stops if a step's difference is three times that.",
        examples=[0.05],
    )
    tensor_parallel_size: int | None = Field(
        None,
        ge=1,
        le=64,
        description="GPUs that one vLLM engine is split over. Default: as many as the trainer's model, so that both "
        "share the base model. 1 for CPU jobs.",
        examples=[1],
    )
    gpu_memory_fraction: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="Largest share of a GPU's memory that vLLM may use. Default: what its KV cache needs, up to all "
        "that is free while it generates. On CPU, vLLM's KV cache takes at most 4 GiB.",
        examples=[0.5],
    )

    @property
    def tokens_per_round(self) -> int:
        """Tokens that each answer gets in a round: all of them, unless answers are continued in the next step."""
        if self.partial is None:
            return self.max_response_tokens
        return self.partial.tokens_per_round or max(1, self.max_response_tokens // 8)

    @property
    def prompts_at_once(self) -> int:
        """Prompts that are answered at a time."""
        return self.prompts_per_step + (self.partial.extra_prompts if self.partial else 0)

    @property
    def oldest_samples(self) -> int | None:
        """How many versions older than the one that a step updates its samples may be; None for any number.

        An answer that is continued may take any number of steps.
        """
        return None if self.partial else self.max_staleness

    @property
    def effective_server_timeout(self) -> float:
        """Longest time of a request to a server, in seconds."""
        return self.server_timeout_seconds or 600.0

    rules: ClassVar[tuple[Rule, ...]] = SERVER_RULES
