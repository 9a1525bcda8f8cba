"""vLLM in this process: generation with exactly one adapter version, a seed per sample, and log-probabilities."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lorarl_trainer.devices.base import Device
from lorarl_trainer.engine.vllm import names, parts, slices
from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot
from lorarl_trainer.engine.vllm.arguments import engine_arguments
from lorarl_trainer.engine.vllm.batching import in_chunks
from lorarl_trainer.engine.vllm.config import BEGUN, EngineConfig
from lorarl_trainer.engine.vllm.imports import bind_names, import_vllm
from lorarl_trainer.engine.vllm.memory import EngineMemory, Offloaded
from lorarl_trainer.engine.vllm.refusals import refusals
from lorarl_trainer.engine.vllm.shared_base import LOAD_FORMAT, SharedBase
from lorarl_trainer.engine.vllm.stop_strings import StopStrings
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.samples.occupancy import Occupancy
from lorarl_trainer.samples.sample import Completion
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.samples.wire import Completions
from lorarl_trainer.timing import StartClock

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.engine.vllm.scheduler import RolloutScheduler
    from lorarl_trainer.engine.vllm.worker import RolloutWorker


class RolloutEngine:
    """One vLLM engine core inside the worker's process.

    Attributes:
        warnings: what is slower than it could be with this vLLM.
    """

    def __init__(
        self,
        device: Device,
        config: EngineConfig,
        seed: int,
        base: SharedBase | None,
        clock: StartClock | None = None,
    ) -> None:
        """Start vLLM (collective over its tensor-parallel ranks). torch.distributed must have been initialised.

        Args:
            device: this process's.
            config: what the engine has to know about the job.
            seed: vLLM's own.
            base: the trainer's weights, used in place of the model's files.
            clock: takes the spans of the start, up to the first token.

        Raises:
            InputError: vLLM is not the one that lorarl was written for, or the model does not take such long samples.
        """
        from transformers import AutoConfig

        import_vllm()
        hf_config = AutoConfig.from_pretrained(config.model_path)
        self.warnings = bind_names(config, hf_config)
        from vllm import LLMEngine

        from lorarl_trainer.engine.vllm.patches import applied, skip_adapter_lookup
        from lorarl_trainer.engine.vllm.routing import recorded_routing
        from lorarl_trainer.engine.vllm.worker import timed_start

        self._config, self._clock = config, clock or StartClock("engine", "process")
        if base:
            base.register()
        recorded = recorded_routing(config.plan.router_replay is not None)
        with applied(config, hf_config), timed_start(self._clock), recorded, refusals(hf_config, config):
            # `vllm.LLM` is this with the imports of a server: pooling, tools, OpenAI's types.
            load_format = LOAD_FORMAT if base else "auto"
            arguments = engine_arguments(device, config, hf_config, seed, load_format)
            self.llm_engine: Any = LLMEngine.from_engine_args(arguments)
        self.vllm_worker = parts.worker(self.llm_engine)
        skip_adapter_lookup(self.vllm_worker, config)
        self.slot = AdapterSlot(self.vllm_worker, self.llm_engine)
        self._core = parts.engine_core(self.llm_engine)
        self._stop_strings = StopStrings.of_model(config.model_path, config.stop)
        self._recorder = cast("RolloutWorker", self.vllm_worker).routing
        self._routing: dict[str, torch.Tensor] = {}  # of requests that have ended, until their completions are made
        adapter = self.slot.addresses
        self._memory = EngineMemory(self.vllm_worker, config.plan.offload, adapter) if config.plan.offload else None

    def sleep(self) -> bool:
        """Give up the memory that the trainer needs meanwhile; return whether there is any."""
        return self._memory.sleep() if self._memory else False

    def wake(self, *tags: Offloaded) -> bool:
        """Take memory back: `weights` before a sync, the KV cache too before generating. Return whether any slept."""
        woke = self._memory.wake(*tags) if self._memory else False
        if woke and "kv_cache" in tags:
            self.llm_engine.reset_prefix_cache()  # its blocks are empty
        return woke

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int] | None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        begun: Sequence[Sequence[int]] | None = None,
    ) -> Iterator[tuple[list[int], Completions]]:
        """Generate one completion per prompt: sampled with a seed each, or greedily without seeds.

        It has at most `max_tokens` tokens, by default the job's. `sampling` is the job's too by default. What `begun`
        has of each completion is continued, and not returned. The random numbers are those that would have followed.

        vLLM's core is asked directly: its front end would process every token of every request.

        Yields:
            Completions that have ended, with the indices of their prompts. The last chunk may be empty.

        Raises:
            StaleAdapterError: requests would not get the adapter that vLLM holds.
            ValueError: a prompt is longer than the engine was started for.
        """
        from vllm import SamplingParams

        if (longest := max(map(len, prompts), default=0)) > self._config.max_prompt_tokens:
            raise ValueError(
                f"a prompt has {longest} tokens, expected {self._config.max_prompt_tokens} at most "
                "(rollout.maxPromptTokens)"
            )
        version = self.slot.version
        if version != self.slot.version_in_vllm:
            raise StaleAdapterError(
                f"completions would be generated by adapter version {version}, expected {self.slot.version_in_vllm}"
            )
        limits = {
            "max_tokens": max_tokens or self._config.max_response_tokens,
            "stop_token_ids": list(self._config.stop_token_ids),
        }
        sampling = sampling or self._config.sampling
        truncated = seeds is not None and sampling.truncates
        if seeds is None:
            parameters = [SamplingParams(temperature=0.0, **limits)] * len(prompts)
        else:
            parameters = [SamplingParams(seed=seed, logprobs=0, **asdict(sampling), **limits) for seed in seeds]
        if begun is not None:
            prompts = [[*prompt, *made] for prompt, made in zip(prompts, begun, strict=True)]
            for one, made in zip(parameters, begun, strict=True):
                one.max_tokens = min(one.max_tokens, self._config.max_response_tokens - len(made))
                one.extra_args = {BEGUN: len(made)}
        self._routing = {}
        running = self._run(prompts, parameters, in_rounds=begun is not None)
        for chunk in in_chunks(running, len(prompts)):
            indices = [int(output.request_id) for output in chunk]
            routing = [self._routing.pop(output.request_id, None) for output in chunk]
            yield (
                indices,
                Completions(
                    _completion(output, version, truncated, sent) for output, sent in zip(chunk, routing, strict=True)
                ),
            )

    @property
    def occupancy(self) -> Occupancy:
        """How full the engine has been since the newest generation began."""
        return cast("RolloutScheduler", self._core.scheduler).occupancy

    def _run(
        self, prompts: Sequence[Sequence[int]], parameters: Sequence[Any], *, in_rounds: bool
    ) -> Iterator[Sequence[slices.EngineCoreOutput]]:
        """Yield the outputs of the requests that end in each of vLLM's steps, named by the indices of their prompts."""
        core, began = self._core, time.time()
        scheduler = cast("RolloutScheduler", core.scheduler)  # the class that vLLM was given
        scheduler.begin(self.slot.version, self._stop_strings, in_rounds=in_rounds)
        for index, (prompt, wanted) in enumerate(zip(prompts, parameters, strict=True)):
            request = names.Requests.Request(
                str(index),
                list(prompt),
                wanted,
                None,
                lora_request=self.slot.request,
                block_hasher=core.request_block_hasher,
            )
            core.add_request(request)
        # Run to the end, also of a step that began before the last request was known to have ended.
        while core.scheduler.has_requests() or core.batch_queue:
            outputs, _ = core.step_fn()
            ended = outputs[0].outputs if outputs else ()
            if self._recorder is not None and parameters[0].seed is not None:  # greedy ones are not trained
                for output in ended:
                    known = len(prompts[int(output.request_id)]) + len(output.new_token_ids) - 1
                    # It has none if it lost them while its last token was made: then its routing is unknown.
                    if blocks := scheduler.ended_blocks[output.request_id]:
                        self._routing[output.request_id] = self._recorder.read(blocks, known)
            yield ended
        if scheduler.first_tokens is not None:
            self._clock.add_first("first generation/first token", began, scheduler.first_tokens)


def _completion(
    output: slices.EngineCoreOutput, version: int, truncated: bool, routing: torch.Tensor | None
) -> Completion:
    tokens = np.asarray(output.new_token_ids, dtype=np.int64)
    logprobs = output.new_logprobs.logprobs[:, 0] if output.new_logprobs else np.empty(0, np.float32)
    kept = output.new_logprobs.sampled_token_ranks if output.new_logprobs and truncated else None
    sent = None if routing is None else routing.cpu().numpy()
    return Completion(tokens, logprobs, str(output.finish_reason) == "stop", version, kept, sent)
