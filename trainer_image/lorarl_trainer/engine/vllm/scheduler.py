"""vLLM's scheduler for a rollout: all requests are there from the start, run to their end, and are put out whole.

vLLM's own scheduler goes through each request's blocks, tokens and outputs in Python at every step. At 512 requests
that takes longer than the GPU's work, so the GPU waits. Here a request gets the KV cache blocks of its longest length
when it is admitted, and waits until enough of them are free. So a decode step allocates nothing, tokens are kept in
arrays, and only whole completions are put out.

Unchanged parts of vLLM: the block pool with its prefix cache, by which a group computes its prompt once, and how a step
runs.

Import this module only after vLLM has been set up.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from lorarl_trainer.engine.vllm import names, slices
from lorarl_trainer.engine.vllm.names import Scheduling
from lorarl_trainer.engine.vllm.running import Ended, RunningRequests
from lorarl_trainer.engine.vllm.stop_strings import StopStrings
from lorarl_trainer.errors import StaleAdapterError

_AsyncScheduler: Any = Scheduling.AsyncScheduler


_NULL_BLOCK = 0
"""The block that vLLM puts where a request needs none. All versions share it."""


class RolloutScheduler(_AsyncScheduler):
    """vLLM's `scheduler_cls`. Without n > 1, structured output, speculative decoding and aborts."""

    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    block_size: int
    kv_cache_config: slices.KVCacheConfig
    kv_cache_manager: slices.KVCacheManager
    requests: dict[str, slices.Request]
    waiting: slices.RequestQueue
    running: list[slices.Request]
    finished_req_ids: set[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        names.checked(self, slices.Scheduler, Scheduling)
        names.checked(self.waiting, slices.RequestQueue, Scheduling)
        names.checked(self.kv_cache_manager, slices.KVCacheManager, Scheduling)
        self._table = RunningRequests(self.max_num_running_reqs, self.max_model_len)
        self.first_tokens: float | None = None  # when the first tokens arrived, Unix time
        self.adapter_version = 0  # of the requests that are added next
        self._made_by = np.zeros(self.kv_cache_config.num_blocks, np.int64)  # the adapter version, by block
        self._no_common_prefix = [0] * len(self.kv_cache_config.kv_cache_groups)

    def stop_at(self, strings: StopStrings | None) -> None:
        """End completions at these texts too."""
        self._table.stop_strings = strings

    def add_request(self, request: slices.Request) -> None:
        """Queue a request. Its prompt is shorter than the longest sequence.

        Raises:
            StaleAdapterError: it asks for another adapter than the engine's, or for none.
        """
        version = request.lora_request.lora_int_id if request.lora_request else 0
        if version != self.adapter_version:
            raise StaleAdapterError(f"a request asks for adapter version {version}, expected {self.adapter_version}")
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Return the next step: a token for each request that decodes, and prompts as far as the step's size allows."""
        table = self._table
        decoding = table.decoding()
        step_names = [table.names[row] for row in decoding.tolist()]
        computed = table.requested[decoding].tolist()
        made = (table.requested[decoding] - table.prompt[decoding] + 1).tolist()
        sizes = dict.fromkeys(step_names, 1)
        table.requested[decoding] += 1
        budget = self.max_num_scheduled_tokens - len(step_names)

        for row in table.prefilling().tolist():  # at most one: the last step had no more tokens for it
            step_names.append(table.names[row])
            computed.append(int(table.requested[row]))
            made.append(0)
            budget -= self._prefill(row, budget, sizes)
        self.kv_cache_manager.new_step_starts()
        new: list[Any] = []
        while (
            self.waiting
            and table.free_rows
            and self._fits(budget)
            and (admitted := self._admit(self.waiting.peek_request()))
        ):
            row, request_data = admitted
            self.running.append(self.waiting.pop_request())
            new.append(request_data)
            budget -= self._prefill(row, budget, sizes)

        step = Scheduling.SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=Scheduling.CachedRequestData(
                req_ids=step_names,
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[None] * len(step_names),
                num_computed_tokens=computed,
                num_output_tokens=made,
            ),
            num_scheduled_tokens=sizes,
            total_num_scheduled_tokens=self.max_num_scheduled_tokens - budget,
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=self._no_common_prefix,
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=[],
        )
        self.finished_req_ids = set()
        return step

    def _fits(self, budget: int) -> bool:
        """Return whether the next request's prompt may begin: only a prompt longer than a whole step is cut.

        vLLM's runner for CPUs discards the sample of a cut prompt, and cannot rewind a seeded generator.
        """
        return 0 < min(self.waiting.peek_request().num_prompt_tokens, self.max_num_scheduled_tokens) <= budget

    def _admit(self, request: slices.Request) -> tuple[int, Any] | None:
        """Give a request blocks and a row, if there are enough blocks for its longest length."""
        parameters, prompt = request.sampling_params, request.num_prompt_tokens
        assert parameters is not None
        limit = min(request.max_tokens, self.max_model_len - prompt)
        cached, known, _ = self.kv_cache_manager.get_computed_blocks(request)
        # The step that computes the prompt's blocks makes them known to others. The last token is never computed.
        blocks = self.kv_cache_manager.allocate_slots(
            request, prompt + limit - 1 - known, known, cached, delay_cache_blocks=True
        )
        if blocks is None:
            return None
        request.num_computed_tokens = known
        self._stamp(request, known)
        row = self._table.admit(request.request_id, prompt, known, limit, parameters.all_stop_token_ids)
        return row, Scheduling.NewRequestData.from_request(
            request, self.kv_cache_manager.get_block_ids(request.request_id), prefill_token_ids=request.prompt_token_ids
        )

    def _stamp(self, request: slices.Request, known: int) -> None:
        """Note which version computes a request's blocks, and require that it computed those that it found cached.

        Raises:
            StaleAdapterError: another adapter version computed a cached block.
        """
        cached = known // self.block_size
        for blocks in self.kv_cache_manager.get_block_ids(request.request_id):
            found = np.asarray(blocks[:cached], np.int64)
            others = self._made_by[found[found != _NULL_BLOCK]]
            if (others != self.adapter_version).any():
                raise StaleAdapterError(
                    f"vLLM's prefix cache gave adapter version {self.adapter_version} keys and values that version "
                    f"{int(others.max())} computed. No update was made with them, and the last checkpoint is good. "
                    "Please report this."
                )
            self._made_by[blocks[cached:]] = self.adapter_version

    def _prefill(self, row: int, budget: int, sizes: dict[str, int]) -> int:
        """Request as much of a prompt as the budget allows, and return how much that is."""
        table = self._table
        size = min(budget, int(table.prompt[row] - table.requested[row]))
        if size:
            table.requested[row] += size
            sizes[table.names[row]] = size
            self.kv_cache_manager.cache_blocks(self.requests[table.names[row]], int(table.requested[row]))
        return size

    def update_from_output(
        self, scheduler_output: Any, model_runner_output: slices.ModelRunnerOutput
    ) -> dict[int, Any]:
        """Keep a step's tokens, and put out the requests that end with it."""
        answer = model_runner_output
        self.first_tokens = self.first_tokens or time.time()
        tokens = np.fromiter(
            (made[0] if made else -1 for made in answer.sampled_token_ids), np.int64, len(answer.req_ids)
        )
        logprobs = answer.logprobs.logprobs[:, 0] if answer.logprobs else None
        kept = answer.logprobs.sampled_token_ranks if answer.logprobs else None
        ended = self._table.receive(answer.req_ids, tokens, logprobs, kept)
        if not ended:
            return {}
        for one in ended:
            self.kv_cache_manager.free(self.requests.pop(one.name))
            self.finished_req_ids.add(one.name)
        self.running = [request for request in self.running if request.request_id in self.requests]
        outputs = [_output(one, with_logprobs=answer.logprobs is not None) for one in ended]
        return {0: Scheduling.EngineCoreOutputs(outputs=outputs)}

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> list[slices.Request]:
        """Refuse, unless there is nothing to abort."""
        if self.requests and request_ids != []:
            raise NotImplementedError("a rollout's requests run to their end")
        return []


def _output(ended: Ended, with_logprobs: bool) -> slices.EngineCoreOutput:
    """Return it in vLLM's form, with the numbers of possible tokens in the place of the tokens' ranks."""
    lists = None
    if with_logprobs:
        lists = Scheduling.LogprobsLists(ended.tokens[:, None], ended.logprobs[:, None], ended.kept)
    reason = Scheduling.FinishReason.STOP if ended.stopped else Scheduling.FinishReason.LENGTH
    output: slices.EngineCoreOutput = Scheduling.EngineCoreOutput(
        ended.name, ended.tokens.tolist(), new_logprobs=lists, finish_reason=reason
    )
    return output
