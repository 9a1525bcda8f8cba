"""vLLM's schedulers without a model: they are asked for steps, and a stand-in for the model runner answers them.

The runner is strict. It keeps a KV cache in which each slot holds a sum over all tokens up to its own, so it notices
when a request attends to anything but its own tokens. It refuses steps that no real runner could make.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from lorarl_trainer.engine.vllm import names

BLOCK = 16
STOP = 1
"""The stop token. Other tokens are larger."""
VOCABULARY = 50

_WEIGHTS = np.cumprod(np.full(1 << 15, 0x9E3779B97F4A7C15, np.uint64))
"""By position. A sum of tokens times these, modulo 2^64, stands for all of them."""


@dataclass(frozen=True)
class Asked:
    """A request.

    Attributes:
        limit: tokens of its longest completion.
        length: it stops with this token of its completion.
    """

    name: str
    prompt: tuple[int, ...]
    seed: int
    limit: int
    length: int


@dataclass
class Answer:
    """What a request came to: its tokens, their log-probabilities, and how many tokens were possible."""

    tokens: list[int]
    logprobs: list[float]
    kept: list[int]


def expected(asked: Asked) -> Answer:
    """What a request comes to, however it is scheduled: a draw depends on its seed and its place alone."""
    drawn = [_draw(asked, place) for place in range(min(asked.limit, asked.length))]
    return Answer(*(list(column) for column in zip(*drawn, strict=True)))


def _draw(asked: Asked, place: int) -> tuple[int, float, int]:
    """The token at a place of the completion, its log-probability, and how many tokens were possible."""
    mixed = (asked.seed * 1_000_003 + place * 7_919 + 12_345) * 2_654_435_761 % 2**32
    token = STOP if place == asked.length - 1 else 2 + mixed % VOCABULARY
    return token, -(mixed % 1000) / 128, 1 + mixed % 17


@dataclass
class _Known:
    """A request as the runner knows it. `sums` are those of its tokens' prefixes, [tokens]."""

    asked: Asked
    blocks: list[int]
    computed: int
    tokens: list[int]
    sums: npt.NDArray[np.uint64]

    def append(self, token: int) -> None:
        place = len(self.tokens)
        self.tokens.append(token)
        if place < len(self.sums):  # the last token is never computed
            self.sums[place] = (int(self.sums[place - 1]) + token * int(_WEIGHTS[place])) % 2**64


class FakeRunner:
    """Answers steps. `forgets`: preempted requests are new to it when they continue, as to vLLM's V2 runner."""

    def __init__(self, requests: Sequence[Asked], blocks: int, *, forgets: bool) -> None:
        self._asked = {one.name: one for one in requests}
        self._cache = np.zeros((blocks, BLOCK), np.uint64)
        self._known: dict[str, _Known] = {}
        self._forgets = forgets

    def __call__(self, step: Any) -> Any:
        """Answer a step."""
        gone = step.finished_req_ids | ((step.preempted_req_ids or set()) if self._forgets else set())
        for name in gone:
            self._known.pop(name, None)
        for new in step.scheduled_new_reqs:
            assert new.req_id not in self._known
            self._known[new.req_id] = self._new(new)
        self._update(step.scheduled_cached_reqs)
        sizes: Mapping[str, int] = step.num_scheduled_tokens
        assert step.total_num_scheduled_tokens == sum(sizes.values()) and all(sizes.values())
        for name, size in sizes.items():
            self._compute(self._known[name], size)
        return _output([(name, self._sample(self._known[name])) for name in sizes])

    def _new(self, new: Any) -> _Known:
        asked = self._asked[new.req_id]
        assert new.prompt_token_ids == list(asked.prompt)
        tokens = new.prefill_token_ids if self._forgets else new.prompt_token_ids
        sums = np.zeros(len(asked.prompt) + asked.limit - 1, np.uint64)
        sums[: len(tokens)] = np.cumsum(np.array(tokens, np.uint64) * _WEIGHTS[: len(tokens)])
        return _Known(asked, list(new.block_ids[0]), new.num_computed_tokens, list(tokens), sums)

    def _update(self, cached: Any) -> None:
        listed = (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens, cached.new_block_ids)
        for name, computed, made, blocks in zip(*listed, strict=True):
            known = self._known[name]
            assert made == len(known.tokens) - len(known.asked.prompt)
            if name in cached.resumed_req_ids:
                assert not self._forgets
                known.blocks, known.computed = list(blocks[0]), computed
            elif blocks is not None:
                known.blocks += blocks[0]
            assert computed == known.computed

    def _compute(self, known: _Known, size: int) -> None:
        positions = np.arange(known.computed, known.computed + size)
        known.computed += size
        assert known.computed <= len(known.tokens), "a token that is not known yet"
        self._cache[np.array(known.blocks)[positions // BLOCK], positions % BLOCK] = known.sums[positions]

    def _sample(self, known: _Known) -> tuple[int, float, int] | None:
        seen = self._cache[np.array(known.blocks)].reshape(-1)[: known.computed]
        assert np.array_equal(seen, known.sums[: known.computed]), "it attends to what is not its own"
        if known.computed < len(known.tokens):
            return None
        drawn = _draw(known.asked, known.computed - len(known.asked.prompt))
        known.append(drawn[0])
        return drawn


def _output(drawn: Sequence[tuple[str, tuple[int, float, int] | None]]) -> Any:
    from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput

    order = [name for name, _ in drawn]
    columns = np.array([one or (0, 0.0, 0) for _, one in drawn]).reshape(-1, 3)
    return ModelRunnerOutput(
        req_ids=order,
        req_id_to_index={name: index for index, name in enumerate(order)},
        sampled_token_ids=[[one[0]] if one else [] for _, one in drawn],
        logprobs=LogprobsLists(columns[:, :1].astype(int), columns[:, 1:2], columns[:, 2].astype(int)),
        prompt_logprobs_dict={},
    )


def scheduler(
    kind: type, *, blocks: int, rows: int, step_tokens: int, longest: int, overlap: bool = False, watermark: float = 0.0
) -> Any:
    """A scheduler for `rows` requests at a time of `longest` tokens each, and steps of `step_tokens`."""
    import torch
    from vllm.config import CacheConfig, SchedulerConfig, VllmConfig
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    scheduling = SchedulerConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=step_tokens,
        max_model_len=longest,
        is_encoder_decoder=False,
        async_scheduling=overlap,
        watermark=watermark,
    )
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True)
    cache.num_gpu_blocks = blocks
    config = VllmConfig(scheduler_config=scheduling, cache_config=cache)
    # What the scheduler asks of a model's configuration.
    config.model_config = SimpleNamespace(
        is_encoder_decoder=False,
        max_model_len=longest,
        is_diffusion=False,
        enable_return_routed_experts=False,
        runner_type="none",
    )
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    kv_cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups)
    registry = SimpleNamespace(supports_multimodal_inputs=lambda _: False)
    grammars = SimpleNamespace(should_advance=lambda _: False)
    return kind(config, kv_cache, grammars, BLOCK, mm_registry=registry)


def add(scheduler: Any, requests: Sequence[Asked]) -> None:
    """Queue requests."""
    from vllm import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK, sha256)
    for one in requests:
        sampling = SamplingParams(seed=one.seed, logprobs=0, max_tokens=one.limit, stop_token_ids=[STOP])
        scheduler.add_request(names.Requests.Request(one.name, list(one.prompt), sampling, None, block_hasher=hasher))


def run(
    scheduler: Any, runner: Callable[[Any], Any], in_flight: int = 1, see: Callable[[Any], None] = lambda _: None
) -> tuple[dict[str, Answer], int]:
    """Run all requests to their end, with so many steps in flight; return their answers and the number of steps."""
    answers: dict[str, Answer] = {}
    queue: deque[tuple[Any, Any]] = deque()
    steps = 0
    while scheduler.has_requests() or queue:
        if scheduler.has_requests():
            step = scheduler.schedule()
            see(step)
            steps += step.total_num_scheduled_tokens > 0
            queue.append((step, runner(step)))
            if len(queue) < in_flight:
                continue
        for outputs in scheduler.update_from_output(*queue.popleft()).values():
            for one in outputs.outputs:
                found = answers.setdefault(one.request_id, Answer([], [], []))
                found.tokens += one.new_token_ids
                found.logprobs += one.new_logprobs.logprobs[:, 0].tolist()
                found.kept += one.new_logprobs.sampled_token_ranks.tolist()
    return answers, steps
