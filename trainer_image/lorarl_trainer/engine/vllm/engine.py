"""vLLM in this process: generation with exactly one adapter version, seeded a sample, with log-probabilities."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import served_rank
from lorarl_trainer.devices import Platform
from lorarl_trainer.engine.vllm.batching import in_parts
from lorarl_trainer.engine.vllm.memory import EngineMemory, Offloaded
from lorarl_trainer.engine.vllm.shared_base import LOAD_FORMAT, SharedBase
from lorarl_trainer.errors import InputError, StaleAdapterError
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.samples.types import Completion, Completions
from lorarl_trainer.timing import StartClock


@dataclass(frozen=True)
class EngineConfig:
    """What the engine needs to know of the job.

    Attributes:
        plan: how it runs, on how many ranks and in how much memory.
        rank: of the adapter.
        target_modules: the linear layers that it changes, as Hugging Face names their last part (q_proj).
        max_prompt_tokens, max_response_tokens: together the longest sequence.
        temperature: of sampling; evaluation is greedy.
        stop_token_ids: a completion ends with any of them.
    """

    model_path: Path
    plan: ExecutionPlan
    rank: int
    target_modules: tuple[str, ...]
    max_prompt_tokens: int
    max_response_tokens: int
    temperature: float
    stop_token_ids: tuple[int, ...]


def import_vllm() -> None:
    """Import vLLM, set up to run within this process."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM  # noqa: F401  # imported for the time that it takes: later imports find it


@contextlib.contextmanager
def _length_refused(hf_config: Any, config: EngineConfig) -> Iterator[None]:
    """Say in a user's words that the model does not take samples of this length; vLLM knows best how far a model's RoPE is scaled."""
    try:
        yield
    except ValueError as error:
        if "max_model_len" not in str(error):
            raise
        limit = getattr(hf_config, "max_position_embeddings", "fewer")
        raise InputError(
            "spec.rollout.maxResponseTokens",
            f"{config.max_response_tokens}, with rollout.maxPromptTokens {config.max_prompt_tokens}, for a model of {limit} positions",
            "at most as many tokens in both together as the model has positions",
            "Lower one of them.",
        ) from error


class RolloutEngine:
    """One vLLM engine core inside the worker's process."""

    def __init__(
        self,
        platform: Platform,
        config: EngineConfig,
        seed: int,
        base: SharedBase | None,
        clock: StartClock | None = None,
    ) -> None:
        """Start vLLM (collective over its tensor-parallel ranks; torch.distributed is initialised before).

        `base` are the trainer's weights, used in place of the model's files. `clock` takes the parts of the start, up to the first token.
        """
        from transformers import AutoConfig

        import_vllm()
        from vllm import LLM

        from lorarl_trainer.engine.vllm.patches.linear import one_adapter_layers, skip_adapter_lookup
        from lorarl_trainer.engine.vllm.patches.sampler import rollout_sampler
        from lorarl_trainer.engine.vllm.patches.start import lean_start
        from lorarl_trainer.engine.vllm.patches.timing import timed_start
        from lorarl_trainer.engine.vllm.scheduler import RolloutScheduler

        self._config, self._clock = config, clock or StartClock("engine", "process")
        plan = config.plan
        hf_config = AutoConfig.from_pretrained(config.model_path)
        if base:
            base.register()
        with (
            lean_start(hf_config.architectures or (), config.temperature),
            one_adapter_layers(),
            rollout_sampler(),
            timed_start(self._clock),
            _length_refused(hf_config, config),
        ):
            self.llm = LLM(
                model=str(config.model_path),
                load_format=LOAD_FORMAT if base else "auto",
                skip_tokenizer_init=True,
                dtype=plan.precision.dtype,
                max_model_len=config.max_prompt_tokens + config.max_response_tokens,
                max_num_seqs=plan.sequences,
                max_num_batched_tokens=plan.engine_step_tokens,
                enable_lora=True,
                max_lora_rank=served_rank(config.rank),
                lora_target_modules=list(
                    config.target_modules
                ),  # by default the embedding and the output layer get one too
                max_loras=1,
                max_cpu_loras=1,
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                scheduler_cls=RolloutScheduler,
                disable_log_stats=True,
                tensor_parallel_size=plan.engine_ranks,
                distributed_executor_backend="external_launcher",
                seed=seed,
                enable_sleep_mode=bool(plan.offload),
                kv_cache_memory_bytes=plan.kv_cache_bytes,
                **platform.engine_arguments(plan.sequences),
            )
        self.llm.collective_rpc(skip_adapter_lookup)
        workers: list[Any] = []
        self.llm.collective_rpc(workers.append)
        self.vllm_worker = workers[0]
        self._memory = EngineMemory(self.vllm_worker, plan.offload) if plan.offload else None
        self.version = 0
        self.request: Any = None

    def use_adapter(self, version: int, path: str) -> None:
        """Generate with this version from now on. Cached prefixes are known by its name: those of other versions are not used."""
        from vllm.lora.request import LoRARequest

        self.version, self.request = version, LoRARequest(f"v{version}", version, path)

    def sleep(self) -> bool:
        """Give up the memory that the trainer needs meanwhile; return whether there is any."""
        return self._memory.sleep() if self._memory else False

    def wake(self, *tags: Offloaded) -> bool:
        """Take it back, `weights` before a sync, and the KV cache too before generating; return whether any of it slept."""
        woke = self._memory.wake(*tags) if self._memory else False
        if woke and "kv_cache" in tags:
            self.llm.reset_prefix_cache()  # its blocks are empty
        return woke

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None
    ) -> Iterator[tuple[list[int], Completions]]:
        """Generate one completion a prompt: sampled with a seed each, or greedily without seeds.

        Yield completions in parts as they end, with the places of their prompts; the last part may be empty.

        vLLM's core is asked directly: its front end would process each token of each request.

        Raises:
            StaleAdapterError: the requests would not have the newest version.
            ValueError: a prompt is longer than the engine was started for.
        """
        from vllm import SamplingParams

        if (longest := max(map(len, prompts), default=0)) > self._config.max_prompt_tokens:
            raise ValueError(
                f"a prompt has {longest} tokens, expected {self._config.max_prompt_tokens} at most (rollout.maxPromptTokens)"
            )

        used = self.request.lora_int_id if self.request else 0
        if used != self.version:
            raise StaleAdapterError(
                f"completions would be generated by adapter version {used}, expected {self.version}"
            )
        limits = {"max_tokens": self._config.max_response_tokens, "stop_token_ids": list(self._config.stop_token_ids)}
        if seeds is None:
            parameters = [SamplingParams(temperature=0.0, **limits)] * len(prompts)
        else:
            sampled = {"temperature": self._config.temperature, "logprobs": 0}
            parameters = [SamplingParams(seed=seed, **sampled, **limits) for seed in seeds]
        for part in in_parts(self._run(prompts, parameters), len(prompts)):
            yield [int(output.request_id) for output in part], Completions(_completion(output, used) for output in part)

    def _run(self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the outputs of the requests that end in each step of vLLM's, named by their places."""
        from vllm.v1.request import Request

        core, began = self.llm.llm_engine.engine_core.engine_core, time.time()
        for index, (prompt, wanted) in enumerate(zip(prompts, parameters, strict=True)):
            hasher = core.request_block_hasher
            core.add_request(
                Request(str(index), list(prompt), wanted, None, lora_request=self.request, block_hasher=hasher)
            )
        # To the end, also of a step that was started before the last request was seen to have ended.
        while core.scheduler.has_requests() or core.batch_queue:
            outputs, _ = core.step_fn()
            yield outputs[0].outputs if outputs else ()
        if prompts:
            self._clock.add_first("first generation/first token", began, core.scheduler.first_tokens)


def _completion(output: Any, version: int) -> Completion:
    tokens = np.asarray(output.new_token_ids, dtype=np.int64)
    logprobs = output.new_logprobs.logprobs[:, 0] if output.new_logprobs else np.empty(0, np.float32)
    return Completion(tokens, logprobs, str(output.finish_reason) == "stop", version)
