"""vLLM in this process: generation with exactly one adapter version, seeded a sample, with log-probabilities."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lorarl_api.v1alpha1 import served_rank
from lorarl_trainer.batch import Completion, Completions
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.platforms import Platform
from lorarl_trainer.rollout.engine_memory import EngineMemory, Offloaded
from lorarl_trainer.rollout.shared_base import LOAD_FORMAT, SharedBase

_CPU_BLOCK_TOKENS = 128


@dataclass(frozen=True)
class EngineConfig:
    """What the engine needs to know of the job.

    Attributes:
        rank: of the adapter.
        target_modules: the linear layers that it changes, as Hugging Face names their last part (q_proj).
        max_prompt_tokens, max_response_tokens: together the longest sequence.
        sequences: how many one replica generates at most at a time.
        temperature: of sampling; evaluation is greedy.
        stop_token_ids: a completion ends with any of them.
        kv_cache_bytes: size of the KV cache; None for what all sequences need at their longest.
        offload: what of its memory it gives up while the trainer works.
    """

    model_path: Path
    precision: str
    rank: int
    target_modules: tuple[str, ...]
    max_prompt_tokens: int
    max_response_tokens: int
    sequences: int
    temperature: float
    stop_token_ids: tuple[int, ...]
    tensor_parallel_size: int
    kv_cache_bytes: int | None
    offload: frozenset[str]


def import_vllm() -> None:
    """Import vLLM, set up to run within this process."""
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_NO_USAGE_STATS="1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM  # noqa: F401  # imported for the time that it takes: later imports find it


class RolloutEngine:
    """One vLLM engine core inside the worker's process."""

    def __init__(self, platform: Platform, config: EngineConfig, seed: int, base: SharedBase | None) -> None:
        """Start vLLM (collective over its tensor-parallel ranks; torch.distributed is initialised before).

        `base` are the trainer's weights, used in place of the model's files.
        """
        from transformers import AutoConfig

        import_vllm()
        from vllm import LLM

        from lorarl_trainer.rollout.one_adapter import one_adapter_layers, skip_adapter_lookup

        self._config = config
        hf_config = AutoConfig.from_pretrained(config.model_path)
        if base:
            base.register()
        with one_adapter_layers():
            self.llm = LLM(
                model=str(config.model_path),
                load_format=LOAD_FORMAT if base else "auto",
                skip_tokenizer_init=True,
                dtype={"fp32": "float32", "bf16": "bfloat16"}[config.precision],
                max_model_len=config.max_prompt_tokens + config.max_response_tokens,
                max_num_seqs=config.sequences,
                enable_lora=True,
                max_lora_rank=served_rank(config.rank),
                lora_target_modules=list(config.target_modules),  # by default the embedding and the output layer get one too
                max_loras=1,
                max_cpu_loras=1,
                logprobs_mode="processed_logprobs",
                enable_prefix_caching=True,
                disable_log_stats=True,
                tensor_parallel_size=config.tensor_parallel_size,
                distributed_executor_backend="external_launcher",
                seed=seed,
                enable_sleep_mode=bool(config.offload),
                kv_cache_memory_bytes=config.kv_cache_bytes or kv_cache_bytes(hf_config, config),
                **platform.engine_arguments(config.sequences),
            )
        self.llm.collective_rpc(skip_adapter_lookup)
        workers: list[Any] = []
        self.llm.collective_rpc(workers.append)
        self.vllm_worker = workers[0]
        self._memory = EngineMemory(self.vllm_worker, config.offload) if config.offload else None
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

    def generate(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None) -> Completions:
        """Generate one completion a prompt: sampled with a seed each, or greedily without seeds.

        Raises:
            StaleAdapterError: an answer was not made by the newest version.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        common = {
            "max_tokens": self._config.max_response_tokens,
            "stop_token_ids": list(self._config.stop_token_ids),
            "detokenize": False,
            "output_kind": RequestOutputKind.FINAL_ONLY,
        }
        if seeds is None:
            parameters = [SamplingParams(temperature=0.0, **common)] * len(prompts)
        else:
            sampled = {"temperature": self._config.temperature, "logprobs": 0, "flat_logprobs": True}
            parameters = [SamplingParams(seed=seed, **sampled, **common) for seed in seeds]
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts], parameters, lora_request=self.request, use_tqdm=False
        )
        return Completions(self._completion(output) for output in outputs)

    def _completion(self, output: Any) -> Completion:
        used = output.lora_request.lora_int_id if output.lora_request else 0
        if used != self.version:
            raise StaleAdapterError(f"a completion was generated by adapter version {used}, expected {self.version}")
        answer = output.outputs[0]
        tokens = np.asarray(answer.token_ids, dtype=np.int64)
        logprobs = answer.logprobs.logprobs if answer.logprobs is not None else []
        return Completion(tokens, np.asarray(logprobs, dtype=np.float32), answer.finish_reason == "stop", used)


def kv_cache_bytes(hf_config: Any, config: EngineConfig) -> int:
    """Return the KV cache that holds every sequence at its longest, each rounded up to whole blocks, plus one spare block a sequence."""
    heads = getattr(hf_config, "num_key_value_heads", None) or hf_config.num_attention_heads
    head_size = getattr(hf_config, "head_dim", None) or hf_config.hidden_size // hf_config.num_attention_heads
    a_token = 2 * hf_config.num_hidden_layers * heads * head_size * {"fp32": 4, "bf16": 2}[config.precision]
    blocks = -(-(config.max_prompt_tokens + config.max_response_tokens) // _CPU_BLOCK_TOKENS) + 1
    return int(a_token * _CPU_BLOCK_TOKENS * blocks * config.sequences)
