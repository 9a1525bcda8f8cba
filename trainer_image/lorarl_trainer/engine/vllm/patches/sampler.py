"""The sampler that vLLM generates with on a GPU: one temperature, a seed per request, nothing else.

vLLM's own sampler passes over the logits up to seven times: penalties, a random number per logit, their log-softmax,
the token's rank. It also divides by the temperature in the logits' own type. Here they are float32, read once, and
rounded nowhere. Tensor-parallel ranks keep their parts of them. On a CPU, `cpu_sampler.py` takes its place.

vLLM's door for samplers, `ModelState.custom_sampler`, belongs to the model's class. So the class that the model runner
instantiates is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm import binding, gpu_slices, slices
from lorarl_trainer.engine.vllm.names import Sampling
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def rollout_sampler() -> Iterator[None]:
    """Let an engine that starts within the block on a GPU use this sampler."""
    with replaced(Sampling.sampler_of_runner, _sampler_class()):
        yield


def keep_parts_of_logits(runner: slices.ModelRunner) -> None:
    """Let each tensor-parallel rank have the logits of its own part of the vocabulary, where all had those of all."""
    if not Sampling.is_on or Sampling.get_tp_group().world_size == 1:
        return
    assert isinstance(runner.sampler, _sampler_class()), "vLLM's own sampler would take a part for the whole"
    for module in runner.model.modules():
        if isinstance(module, Sampling.LogitsProcessor):
            binding.checked(module, gpu_slices.LogitsProcessor, Sampling)._gather_logits = lambda logits: logits


@cache
def _sampler_class() -> type:
    """Return the class. It is made here because its base class is vLLM's, which must have been set up."""
    from lorarl_trainer.engine.vllm.patches.sample_kernel import Ranks, draw

    base: Any = Sampling.Sampler

    class RolloutSampler(base):
        """Draws a token for each request of a step."""

        sampling_states: gpu_slices.SamplingStates
        req_states: gpu_slices.RequestState

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            binding.checked(self, gpu_slices.Sampler, Sampling)
            states = binding.checked(self.sampling_states, gpu_slices.SamplingStates, Sampling)
            lengths = binding.checked(self.req_states, gpu_slices.RequestState, Sampling).prefill_len
            for buffer in (states.temperature, states.seeds, lengths):
                binding.checked(buffer, gpu_slices.UvaBackedTensor, Sampling)
            self._group = binding.checked(Sampling.get_tp_group(), gpu_slices.GroupCoordinator, Sampling)

        def _truncates(self, row: int) -> bool:
            states = self.sampling_states
            kept = states.top_k.np[row]
            return bool(states.top_p.np[row] < 1 or kept < states.vocab_size or states.min_p.np[row] > 0)

        def _stack(self, tensor: torch.Tensor) -> torch.Tensor:
            return self._group.all_gather(tensor[None], 0)

        def __call__(self, logits: torch.Tensor, input_batch: gpu_slices.InputBatch) -> Any:
            states, batch = self.sampling_states, input_batch
            # All requests of a call have one temperature and one truncation, or all take the best token.
            temperature = float(states.temperature.np[batch.idx_mapping_np[0]])
            positions = batch.positions[batch.logits_indices]
            ranks = kept = None
            if temperature and self._truncates(int(batch.idx_mapping_np[0])):
                logits = self._group.all_gather(logits, 1)[:, : states.vocab_size].float() / temperature
                states.apply_min_p(logits, batch.expanded_idx_mapping, batch.idx_mapping_np)
                logits = states.apply_top_k_top_p(logits, batch.expanded_idx_mapping, batch.idx_mapping_np)
                kept, temperature = (logits > float("-inf")).sum(1), 1.0
            elif self._group.world_size > 1:
                ranks = Ranks(self._group.rank_in_group, logits.shape[1], self._stack)
                logits = logits[:, : max(states.vocab_size - ranks.rank * ranks.width, 0)]
            requests = batch.expanded_idx_mapping
            tokens, logprobs = draw(logits, requests, positions, states.seeds.gpu, temperature, ranks)
            returned = None
            if self.returns_logprobs(batch.idx_mapping_np):
                # No one asks for the token's rank among the logits. In its place is the number of possible tokens, or,
                # if all are possible, the token.
                counted = tokens if kept is None else kept
                returned = Sampling.LogprobsTensors(tokens[:, None], logprobs[:, None], selected_token_ranks=counted)
            counts = Sampling.get_num_sampled_and_rejected(
                batch.seq_lens.new_ones(batch.num_reqs),
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.req_states.prefill_len.gpu,
            )
            return Sampling.SamplerOutput(tokens[:, None], returned, None, *counts)

    return RolloutSampler
