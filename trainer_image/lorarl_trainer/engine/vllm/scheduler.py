"""vLLM's scheduler for a rollout: requests may come while others run, run to their end, and are put out whole.

vLLM's own scheduler goes through each request's blocks, tokens and outputs in Python at every step. At 512 requests
that takes longer than the GPU's work, so the GPU waits. Here only those requests cost anything that begin, end, or need
another block of the KV cache: every sixteenth of those that decode. Tokens are kept in arrays, and only whole
completions are put out.

**Room.** A request takes blocks as it grows. One is admitted if its known tokens fit and a margin stays free for those
that run. If blocks run out all the same, the youngest gives its own up and waits at the head of the queue. It continues
where it was: what it made so far is computed again with its prompt, and a token is drawn by its seed and its position.
So an old request is never stopped for a young one, and every request ends.

**Prompts** are computed as far as a step's size allows, the rest in the next steps. The blocks of a group's prompt are
computed once; its other requests find them.

Unchanged parts of vLLM: the block pool with its prefix cache, and how a step runs.

Import this module only after vLLM has been set up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lorarl_trainer.engine.vllm import binding, slices
from lorarl_trainer.engine.vllm.config import BEGUN
from lorarl_trainer.engine.vllm.kv_blocks import KVBlocks, version_of
from lorarl_trainer.engine.vllm.names import Scheduling
from lorarl_trainer.engine.vllm.running import Ended, RunningRequests
from lorarl_trainer.engine.vllm.stop_strings import StopStrings
from lorarl_trainer.errors import StaleAdapterError
from lorarl_trainer.samples.arrays import Ints
from lorarl_trainer.samples.occupancy import Occupancy

_AsyncScheduler: Any = Scheduling.AsyncScheduler


@dataclass
class _Step:
    """A step that is being put together: what vLLM's `CachedRequestData` and `SchedulerOutput` list.

    Attributes:
        budget: tokens that it can still take.
        sizes: tokens by request.
        names, computed, made, blocks: of requests that the model runner knows. A request has `computed` tokens in the
            KV cache, and `made` of its completion. `blocks` are those that are new to the runner.
        resumed: of these, the ones whose blocks are all new.
        new: requests that the model runner does not know.
    """

    budget: int
    names: list[str]
    computed: list[int]
    made: list[int]
    blocks: list[Any]
    sizes: dict[str, int]
    resumed: set[str] = field(default_factory=set)
    new: list[Any] = field(default_factory=list)


class RolloutScheduler(_AsyncScheduler):
    """vLLM's `scheduler_cls`. Without n > 1, structured output, speculative decoding and aborts.

    Attributes:
        occupancy: how full the engine has been since the newest generation began.
        ended_blocks: the blocks that the requests of the last output had, by name. The next step may give them away.
    """

    max_num_running_reqs: int
    max_num_scheduled_tokens: int
    max_model_len: int
    kv_cache_config: slices.KVCacheConfig
    kv_cache_manager: slices.KVCacheManager
    requests: dict[str, slices.Request]
    waiting: slices.RequestQueue
    running: list[slices.Request]
    finished_req_ids: set[str]
    use_v2_model_runner: bool

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        binding.checked(self, slices.Scheduler, Scheduling)
        binding.checked(self.waiting, slices.RequestQueue, Scheduling)
        self._table = RunningRequests(self.max_num_running_reqs, self.max_model_len)
        self._blocks = KVBlocks(self.kv_cache_manager, self.kv_cache_config)
        self._too_few = -1  # free blocks when the next request found too few, while its need is the same
        self._no_common_prefix = [0] * len(self.kv_cache_config.kv_cache_groups)
        self.first_tokens: float | None = None  # when the first tokens arrived, Unix time
        self.occupancy = Occupancy()
        self._versions: Callable[[], Collection[int]] = lambda: (0,)
        self.ended_blocks: dict[str, list[int]] = {}

    def begin(self, versions: Callable[[], Collection[int]], stop_strings: StopStrings | None) -> None:
        """Begin a generation. `versions`: of the adapters in the engine. Completions end at these texts, too."""
        self._versions = versions
        self.stop_at(stop_strings)
        self.occupancy = Occupancy()

    def stop_at(self, stop_strings: StopStrings | None) -> None:
        """Let completions end at these texts, too."""
        self._table.stop_strings = stop_strings

    def add_request(self, request: slices.Request) -> None:
        """Queue a request. Its prompt is shorter than the longest sequence.

        Raises:
            StaleAdapterError: it asks for another adapter than those in the engine, or for none.
        """
        version, there = version_of(request), self._versions()
        if version not in there:
            expected = " or ".join(map(str, there))
            raise StaleAdapterError(f"a request asks for adapter version {version}, expected {expected}")
        self.requests[request.request_id] = request
        self.waiting.add_request(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Return the next step: a token for each request that decodes, and prompts as far as the step's size allows."""
        decoding, full, preempted = self._make_room()
        step = self._decode(decoding, full)
        self._blocks.begin_step()
        ready = [self._continue_prompt(row, step) for row in self._table.prefilling().tolist()]
        if all(ready) and not preempted:
            self._admit_waiting(step)
        if step.sizes:
            self.occupancy.add_step(len(step.sizes), len(self.waiting), self._blocks.used_share)
        output = Scheduling.SchedulerOutput(
            scheduled_new_reqs=step.new,
            scheduled_cached_reqs=Scheduling.CachedRequestData(
                req_ids=step.names,
                resumed_req_ids=step.resumed,
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=step.blocks,
                num_computed_tokens=step.computed,
                num_output_tokens=step.made,
            ),
            num_scheduled_tokens=step.sizes,
            total_num_scheduled_tokens=self.max_num_scheduled_tokens - step.budget,
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            num_common_prefix_blocks=self._no_common_prefix,
            finished_req_ids=self.finished_req_ids,
            preempted_req_ids=preempted,
            free_encoder_mm_hashes=[],
        )
        self.finished_req_ids = set()
        return output

    def _make_room(self) -> tuple[Ints, Ints, set[str]]:
        """Stop the youngest requests until the others have room for their next token.

        Returns:
            The rows that decode, the places among them of those that need another block, and the names of the requests
            that were stopped.
        """
        table, preempted = self._table, set[str]()
        while True:
            decoding = table.decoding()
            full = table.full(decoding)
            if len(full) <= self._blocks.free:
                self.occupancy.preemptions += len(preempted)
                return decoding, full, preempted
            preempted.add(self._preempt())

    def _preempt(self) -> str:
        """Put the youngest request back to the head of the queue, and return its name."""
        table, request = self._table, self.running.pop()
        row = int(table.rows[-1])
        table.pause(row)
        _add_made(request, table.made(row))
        # It finds these blocks again if no other request needed them meanwhile.
        self._blocks.cache(request, min(int(table.requested[row]), request.num_tokens))
        self._blocks.release(request)
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)
        self._too_few = -1
        return request.request_id

    def _decode(self, decoding: Ints, full: Ints) -> _Step:
        """Begin a step: a token for each request that decodes, and a block for each that needs one."""
        table = self._table
        requests = table.names[decoding].tolist()
        blocks: list[Any] = [None] * len(requests)
        if len(full):
            places = full.tolist()
            for place, new in zip(
                places,
                self._blocks.extend([requests[place] for place in places], table.adapter[decoding[full]]),
                strict=True,
            ):
                blocks[place] = new
            table.room[decoding[full]] += self._blocks.block_size
        computed = table.requested[decoding]
        table.requested[decoding] = computed + 1
        return _Step(
            budget=self.max_num_scheduled_tokens - len(requests),
            names=requests,
            computed=computed.tolist(),
            made=(computed - table.prompt[decoding] + 1).tolist(),
            blocks=blocks,
            sizes=dict.fromkeys(requests, 1),
        )

    def _continue_prompt(self, row: int, step: _Step) -> bool:
        """Compute more of the youngest request's prompt, which an earlier step had no more tokens for.

        Returns:
            Whether there were blocks for it. Otherwise older requests have them, and it waits with what it has.
        """
        table, name = self._table, self._table.names[row]
        if not (size := self._prefill_size(row, step)):
            return True
        blocks = self._blocks.add(self.requests[name], int(table.requested[row]), size)
        if blocks is None:
            return False
        table.room[row] += self._blocks.room(blocks)
        self._list(row, step, blocks)
        self._prefill(row, step)
        return True

    def _admit_waiting(self, step: _Step) -> None:
        """Let waiting requests run, in their order, as far as the step's size and the free blocks allow."""
        while self.waiting and step.budget and self._blocks.free > self._too_few:
            request = self.waiting.peek_request()
            row = self._table.row_of(request.request_id)  # it has one if it was preempted
            if not (self._table.free_rows if row is None else self._table.answered(row)):
                return
            if row is not None:
                _add_made(request, self._table.made(row))
            known = self._blocks.admit(request, step.budget, alone=not self.running)
            if known is None:
                self._too_few = self._blocks.free
                return
            self.running.append(self.waiting.pop_request())
            self._start(request, row, known, step)

    def _start(self, request: slices.Request, row: int | None, known: int, step: _Step) -> None:
        """Let a request run that has its blocks."""
        table, blocks = self._table, self._blocks.of(request)
        resumed = row is not None
        if row is None:
            prompt = request.num_prompt_tokens
            limit = min(request.max_tokens, self.max_model_len - prompt)
            assert request.sampling_params is not None
            row = table.admit(request.request_id, prompt, limit, request.sampling_params.all_stop_token_ids)
            table.adapter[row] = version_of(request)
        table.start(row, known, self._blocks.room(blocks))
        if resumed and not self.use_v2_model_runner:  # V2 forgets what is preempted
            step.resumed.add(request.request_id)
            self._list(row, step, blocks)
        else:
            tokens = request.all_token_ids.copy()
            step.new.append(Scheduling.NewRequestData.from_request(request, blocks, prefill_token_ids=tokens))
        self._prefill(row, step)

    def _list(self, row: int, step: _Step, blocks: Any) -> None:
        """Add a request that the model runner knows to a step."""
        table = self._table
        step.names.append(table.names[row])
        step.computed.append(int(table.requested[row]))
        step.made.append(len(table.made(row)))
        step.blocks.append(blocks)

    def _prefill_size(self, row: int, step: _Step) -> int:
        """Return how many of a request's known tokens the step can compute."""
        return min(step.budget, int(self._table.prefill[row] - self._table.requested[row]))

    def _prefill(self, row: int, step: _Step) -> None:
        """Compute as many of a request's known tokens as the step can take."""
        size = self._prefill_size(row, step)
        self._table.requested[row] += size
        step.sizes[self._table.names[row]] = size
        step.budget -= size
        self._too_few = -1  # the next request may find these blocks

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
        requests = [self.requests.pop(one.name) for one in ended]
        self.ended_blocks = {request.request_id: self._blocks.of(request)[0] for request in requests}
        for one, request in zip(ended, requests, strict=True):
            # One that was stopped for want of room while its last token was made has no blocks.
            if _continues(request) and self.ended_blocks[one.name]:
                _add_made(request, one.tokens)
                self._blocks.cache(request, request.num_tokens - 1)  # the last token is never computed
            self._blocks.release(request)
            self.finished_req_ids.add(request.request_id)
        self.running = [request for request in self.running if request.request_id in self.requests]
        if any(request.num_preemptions for request in requests):  # it may have been while this step ran
            self.waiting.remove_requests(requests)
            self._too_few = -1
        outputs = [_output(one, with_logprobs=answer.logprobs is not None) for one in ended]
        return {0: Scheduling.EngineCoreOutputs(outputs=outputs)}

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: Any) -> list[slices.Request]:
        """Refuse, unless there is nothing to abort."""
        if self.requests and request_ids != []:
            raise NotImplementedError("a rollout's requests run to their end")
        return []


def _continues(request: slices.Request) -> bool:
    """Return whether a completion may be continued: in a next round, or turn. It then finds its keys and values."""
    return request.sampling_params is not None and BEGUN in (request.sampling_params.extra_args or {})


def _add_made(request: slices.Request, made: Ints) -> None:
    """Add to vLLM's request what it has made so far. Its blocks can then be found by their tokens."""
    request.append_output_token_ids(made[request.num_output_tokens :].tolist())


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
