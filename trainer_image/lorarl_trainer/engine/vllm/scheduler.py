"""vLLM's scheduler for a rollout: all requests are there from the start, nobody waits for single tokens, and nobody aborts.

vLLM's own works through each request's blocks, tokens and outputs in Python at every step. At 512 requests that takes longer than the
GPU does, which is why the GPU waits. Here a request gets the KV cache blocks of its longest length when it is admitted (until there are
enough, it waits), so a step of decoding allocates nothing; tokens are kept in arrays; and only what has ended is put out, whole.

What stays vLLM's own: the block pool with its prefix cache, by which a group computes its prompt once, and the way a step is run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from lorarl_trainer.engine.vllm.running import Ended, RunningRequests


class RolloutScheduler(AsyncScheduler):
    """In place of vLLM's (`scheduler_cls`). Not served: stop strings, n > 1, structured output, speculative decoding, aborts."""

    running: list[Request]
    finished_req_ids: set[str]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seats = RunningRequests(self.max_num_running_reqs, self.max_model_len)
        self.first_tokens: float | None = None  # when the first tokens came, Unix time
        self._no_common_prefix = [0] * len(self.kv_cache_config.kv_cache_groups)

    def add_request(self, request: Request) -> None:
        """Let a request wait. Its prompt is shorter than the longest sequence."""
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """Return the next step: one token for each that decodes, and prompts as far as the step's number of tokens allows."""
        seats, groups = self._seats, self.kv_cache_manager
        decoding = seats.decoding()
        names = [seats.names[seat] for seat in decoding.tolist()]
        computed = seats.asked[decoding].tolist()
        made = (seats.asked[decoding] - seats.prompt[decoding] + 1).tolist()
        sizes = dict.fromkeys(names, 1)
        seats.asked[decoding] += 1
        budget = self.max_num_scheduled_tokens - len(names)

        for seat in seats.prefilling().tolist():  # at most one, cut off by the last step's number of tokens
            names.append(seats.names[seat])
            computed.append(int(seats.asked[seat]))
            made.append(0)
            budget -= self._prefill(seat, budget, sizes)
        groups.new_step_starts()
        new: list[NewRequestData] = []
        while (
            self.waiting
            and seats.free
            and self._fits(budget)
            and (admitted := self._admit(self.waiting.peek_request()))
        ):
            seat, request_data = admitted
            self.running.append(self.waiting.pop_request())
            new.append(request_data)
            budget -= self._prefill(seat, budget, sizes)

        step = SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=CachedRequestData(
                req_ids=names,
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[None] * len(names),
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
        """Whether the next request's prompt may begin: only one that is longer than a whole step is cut.

        vLLM's runner for CPUs throws the sample of a part of a prompt away, and cannot wind a seeded generator back.
        """
        return 0 < min(self.waiting.peek_request().num_prompt_tokens, self.max_num_scheduled_tokens) <= budget

    def _admit(self, request: Request) -> tuple[int, NewRequestData] | None:
        """Give a request blocks and a seat, if there are enough blocks for its longest length."""
        parameters, prompt = request.sampling_params, request.num_prompt_tokens
        assert parameters is not None
        limit = min(request.max_tokens, self.max_model_len - prompt)
        cached, known, _ = self.kv_cache_manager.get_computed_blocks(request)
        # The prompt's blocks become known to others with the step that computes them, and the last token is never computed.
        blocks = self.kv_cache_manager.allocate_slots(
            request, prompt + limit - 1 - known, known, cached, delay_cache_blocks=True
        )
        if blocks is None:
            return None
        request.num_computed_tokens = known
        seat = self._seats.take(request.request_id, prompt, known, limit, parameters.all_stop_token_ids)
        return seat, NewRequestData.from_request(
            request, self.kv_cache_manager.get_block_ids(request.request_id), prefill_token_ids=request.prompt_token_ids
        )

    def _prefill(self, seat: int, budget: int, sizes: dict[str, int]) -> int:
        """Ask for as much of a prompt as the budget allows, and return how much that is."""
        seats = self._seats
        size = min(budget, int(seats.prompt[seat] - seats.asked[seat]))
        if size:
            seats.asked[seat] += size
            sizes[seats.names[seat]] = size
            self.kv_cache_manager.cache_blocks(self.requests[seats.names[seat]], int(seats.asked[seat]))
        return size

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Keep a step's tokens, and put out the requests that end with it."""
        answer = model_runner_output
        self.first_tokens = self.first_tokens or time.time()
        tokens = np.fromiter(
            (made[0] if made else -1 for made in answer.sampled_token_ids), np.int64, len(answer.req_ids)
        )
        ended = self._seats.receive(answer.req_ids, tokens, answer.logprobs.logprobs[:, 0] if answer.logprobs else None)
        if not ended:
            return {}
        for one in ended:
            self.kv_cache_manager.free(self.requests.pop(one.name))
            self.finished_req_ids.add(one.name)
        self.running = [request for request in self.running if request.request_id in self.requests]
        return {
            0: EngineCoreOutputs(outputs=[_output(one, with_logprobs=answer.logprobs is not None) for one in ended])
        }

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """Refuse, unless there is nothing to abort."""
        if self.requests and request_ids != []:
            raise NotImplementedError("a rollout's requests run to their end")
        return []


def _output(ended: Ended, with_logprobs: bool) -> EngineCoreOutput:
    """Return it in vLLM's form. Ranks of the tokens in the vocabulary are not kept: they are 0, which is none."""
    lists = (
        LogprobsLists(ended.tokens[:, None], ended.logprobs[:, None], np.zeros_like(ended.tokens))
        if with_logprobs
        else None
    )
    reason = FinishReason.STOP if ended.stopped else FinishReason.LENGTH
    return EngineCoreOutput(ended.name, ended.tokens.tolist(), new_logprobs=lists, finish_reason=reason)
