"""vLLM in this process: generation with the adapter version that is asked for, a seed per sample, log-probabilities."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
from lorarl_trainer.samples.requests import GenerationRequest
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
        slots: for the adapters that it generates with at a time; one, unless several are planned.
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
        from vllm import LLMEngine, SamplingParams

        from lorarl_trainer.engine.vllm.patches import applied, skip_adapter_lookup
        from lorarl_trainer.engine.vllm.routing import recorded_routing
        from lorarl_trainer.engine.vllm.worker import timed_start

        self._config, self._clock = config, clock or StartClock("engine", "process")
        if base:
            base.register()
        recorded = recorded_routing(config.records_routing)
        with applied(config, hf_config), timed_start(self._clock), recorded, refusals(hf_config, config):
            # `vllm.LLM` is this with the imports of a server: pooling, tools, OpenAI's types.
            load_format = LOAD_FORMAT if base else "auto"
            arguments = engine_arguments(device, config, hf_config, seed, load_format)
            self.llm_engine: Any = LLMEngine.from_engine_args(arguments)
        self.vllm_worker = parts.worker(self.llm_engine)
        skip_adapter_lookup(self.vllm_worker, config)
        first = AdapterSlot(self.vllm_worker, self.llm_engine)
        others = range(1, config.plan.adapters)
        self.slots = [first, *(AdapterSlot(self.vllm_worker, self.llm_engine, place, first) for place in others)]
        self._core = parts.engine_core(self.llm_engine)
        self._stops = config.stop  # the texts of the requests that vLLM has
        self._stop_strings = StopStrings.of_model(config.model_path, config.stop)
        self._recorder = cast("RolloutWorker", self.vllm_worker).routing
        self._parameters: Any = SamplingParams  # an import of vLLM's takes time each time
        self._queue: deque[tuple[int, GenerationRequest]] = deque()  # those that vLLM has not got
        self._asked: dict[int, GenerationRequest] = {}  # those that it has, with their adapters
        self._hurried = False  # a chunk is to come after the next step
        self._sampling: Sampling | None = None  # of these; None for the best token
        adapter = first.addresses
        self._memory = EngineMemory(self.vllm_worker, config.plan.offload, adapter) if config.plan.offload else None

    @property
    def slot(self) -> AdapterSlot:
        """The first slot, the only one of a run."""
        return self.slots[0]

    @property
    def generating(self) -> set[int]:
        """The adapter versions that requests wait for or have."""
        queued = [request for _, request in list(self._queue)]
        return {one.adapter for one in (*self._asked.values(), *queued) if one.adapter}

    def sleep(self) -> bool:
        """Give up the memory that the trainer needs meanwhile; return whether there is any."""
        return self._memory.sleep() if self._memory else False

    def wake(self, *tags: Offloaded) -> bool:
        """Take memory back: `weights` before a sync, the KV cache too before generating. Return whether any slept."""
        woke = self._memory.wake(*tags) if self._memory else False
        if woke and "kv_cache" in tags:
            self.llm_engine.reset_prefix_cache()  # its blocks are empty
        return woke

    def submit(self, requests: Mapping[int, GenerationRequest]) -> None:
        """Queue requests by numbers that no others have meanwhile. Any thread may, also while others generate.

        Raises:
            ValueError: a prompt is longer than the engine was started for. None of the requests is queued then.
        """
        for request in requests.values():
            if request.prompt_length > self._config.max_prompt_tokens:
                raise ValueError(
                    f"{request.asked_by}: a prompt has {request.prompt_length} tokens, "
                    f"expected {self._config.max_prompt_tokens} at most (rollout.maxPromptTokens)"
                )
        self._queue.extend(requests.items())

    def hurry(self) -> None:
        """Let `results` yield after the next step, whatever has ended. Any thread may."""
        self._hurried = True

    def results(self, until: int | None = None) -> Iterator[tuple[list[int], Completions]]:
        """Generate what is queued, and what is queued meanwhile; yield the completions that have ended, by number.

        All sequences of a step have one sampling, and end at the same texts. A request with others waits until those
        before it have ended.

        vLLM's core is asked directly: its front end would process every token of every request.

        Args:
            until: take requests below this number only. An engine of several ranks needs it: they take the same ones.

        Yields:
            Numbers of requests and their completions. The last chunk may be empty, and one after `hurry`.

        Raises:
            StaleAdapterError: requests would not get the adapter that vLLM holds, or that they ask for.
        """
        for slot in self.slots:
            _require_there(slot)
        steps = self._steps(until)
        for chunk in in_chunks(steps, lambda: bool(self._asked or self._queue), asked=self._is_hurried):
            yield [one.number for one in chunk], Completions(one.completion() for one in chunk)

    def _is_hurried(self) -> bool:
        hurried, self._hurried = self._hurried, False
        return hurried

    @property
    def occupancy(self) -> Occupancy:
        """How full the engine has been since the newest generation began."""
        return cast("RolloutScheduler", self._core.scheduler).occupancy

    def _steps(self, until: int | None) -> Iterator[Sequence[_Ended]]:
        """Yield what ends in each of vLLM's steps."""
        core, began = self._core, time.time()
        scheduler = cast("RolloutScheduler", core.scheduler)  # the class that vLLM was given
        scheduler.begin(lambda: [slot.version for slot in self.slots], self._stop_strings)
        while True:
            if self._queue:
                self._take(until)
            # Run to the end, also of a step that began before the last request was known to have ended.
            if not (core.scheduler.has_requests() or core.batch_queue):
                break
            outputs, _ = core.step_fn()
            yield [self._ended(output) for output in outputs[0].outputs] if outputs else ()
        if scheduler.first_tokens is not None:
            self._clock.add_first("first generation/first token", began, scheduler.first_tokens)

    def _take(self, until: int | None) -> None:
        """Give vLLM the queued requests, in their order, as far as they are drawn like those that it has."""
        while self._queue:
            number, request = self._queue[0]
            sampling = None if request.seed is None else request.sampling or self._config.sampling
            stops = self._config.stop if request.stop is None else request.stop
            differs = (sampling, stops) != (self._sampling, self._stops)
            if (until is not None and number >= until) or (self._asked and differs):
                return
            self._queue.popleft()
            if stops != self._stops:
                self._stop_at(stops)
            self._sampling = sampling
            self._add(number, request, sampling)

    def _stop_at(self, stops: tuple[str, ...]) -> None:
        """Let the requests that come next end at these texts. None is running."""
        self._stops, self._stop_strings = stops, StopStrings.of_model(self._config.model_path, stops)
        cast("RolloutScheduler", self._core.scheduler).stop_at(self._stop_strings)

    def _add(self, number: int, request: GenerationRequest, sampling: Sampling | None) -> None:
        slot, begun = self._slot_of(request), request.begun or 0
        most = self._config.max_response_tokens - begun
        stops = self._config.stop_token_ids if request.stop_token_ids is None else request.stop_token_ids
        drawn = {"temperature": 0.0} if sampling is None else {"seed": request.seed, "logprobs": 0, **asdict(sampling)}
        wanted = self._parameters(
            max_tokens=min(request.max_tokens or most, most),
            stop_token_ids=list(stops),
            extra_args=None if request.begun is None else {BEGUN: begun},
            **drawn,
        )
        self._core.add_request(
            names.Requests.Request(
                str(number),
                list(request.tokens),
                wanted,
                None,
                lora_request=slot.request,
                block_hasher=self._core.request_block_hasher,
            )
        )
        self._asked[number] = replace(request, adapter=slot.version)

    def _slot_of(self, request: GenerationRequest) -> AdapterSlot:
        """Return the slot with the adapter that a request names, or the only one there is."""
        versions = [slot.version for slot in self.slots]
        wanted = versions[0] if request.adapter is None and len(versions) == 1 else request.adapter
        if wanted not in versions or versions.count(wanted) > 1:
            there = " or ".join(str(version) for version in versions)
            raise StaleAdapterError(f"{request.asked_by}: adapter version {there} would generate, expected {wanted}")
        slot = self.slots[versions.index(wanted)]
        _require_there(slot)
        return slot

    def _ended(self, output: slices.EngineCoreOutput) -> _Ended:
        request = self._asked.pop(int(output.request_id))
        self._slot_of(request)  # which no other adapter has taken meanwhile
        routing = None
        if self._recorder is not None and request.seed is not None:  # greedy ones are not trained
            known = len(request.tokens) + len(output.new_token_ids) - 1
            # It has none if it lost them while its last token was made: then its routing is unknown.
            if blocks := cast("RolloutScheduler", self._core.scheduler).ended_blocks[output.request_id]:
                routing = self._recorder.read(blocks, known)
        truncated = self._sampling is not None and self._sampling.truncates
        return _Ended(output, request.adapter or 0, routing, truncated)


@dataclass(frozen=True)
class _Ended:
    """A request that has ended.

    Attributes:
        version: the adapter's that made it.
        routing: of its tokens, still on the device.
        truncated: not every token was possible.
    """

    output: slices.EngineCoreOutput
    version: int
    routing: torch.Tensor | None
    truncated: bool

    @property
    def number(self) -> int:
        """The request's."""
        return int(self.output.request_id)

    def completion(self) -> Completion:
        """Return it as the loop has it."""
        output, drawn = self.output, self.output.new_logprobs
        return Completion(
            tokens=np.asarray(output.new_token_ids, dtype=np.int64),
            logprobs=drawn.logprobs[:, 0] if drawn else np.empty(0, np.float32),
            finished=str(output.finish_reason) == "stop",
            adapter_version=self.version,
            kept=drawn.sampled_token_ranks if drawn and self.truncated else None,
            routing=None if self.routing is None else self.routing.cpu().numpy(),
        )


def _require_there(slot: AdapterSlot) -> None:
    """Require that vLLM has in a slot what requests would name."""
    if slot.version != slot.version_in_vllm:
        raise StaleAdapterError(
            f"completions would be generated by adapter version {slot.version}, expected {slot.version_in_vllm}"
        )
