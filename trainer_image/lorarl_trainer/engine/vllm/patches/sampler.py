"""The sampler that vLLM generates with on a GPU: one temperature, a seed per request, nothing else.

vLLM's own sampler passes over the logits up to seven times: penalties, a random number per logit, their log-softmax,
the token's rank. It also divides by the temperature in the logits' own type. Here they are float32, read once, and
rounded nowhere. On a CPU, `cpu_sampler.py` takes its place.

vLLM's door for samplers, `ModelState.custom_sampler`, belongs to the model's class. So the class that the model runner
instantiates is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from lorarl_trainer.engine.vllm import gpu_slices, names
from lorarl_trainer.engine.vllm.names import Sampling
from lorarl_trainer.engine.vllm.patches.replaced import replaced


@contextmanager
def rollout_sampler() -> Iterator[None]:
    """Let an engine that starts within the block on a GPU use this sampler."""
    if not names.on_gpu():
        yield
        return
    with replaced(Sampling.sampler_of_runner, _sampler_class()):
        yield


@cache
def _sampler_class() -> type:
    """Return the class. It is made here because its base class is vLLM's, which must have been set up."""
    from lorarl_trainer.engine.vllm.patches.sample_kernel import draw

    base: Any = Sampling.Sampler

    class RolloutSampler(base):
        """Draws a token for each request of a step."""

        sampling_states: gpu_slices.SamplingStates
        req_states: gpu_slices.RequestState

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            names.checked(self, gpu_slices.Sampler, Sampling)
            states = names.checked(self.sampling_states, gpu_slices.SamplingStates, Sampling)
            lengths = names.checked(self.req_states, gpu_slices.RequestState, Sampling).prefill_len
            for buffer in (states.temperature, states.seeds, lengths):
                names.checked(buffer, gpu_slices.UvaBackedTensor, Sampling)

        def _truncates(self, row: int, vocabulary: int) -> bool:
            states = self.sampling_states
            return bool(states.top_p.np[row] < 1 or states.top_k.np[row] < vocabulary or states.min_p.np[row] > 0)

        def __call__(self, logits: torch.Tensor, input_batch: gpu_slices.InputBatch) -> Any:
            states, batch = self.sampling_states, input_batch
            # All requests of a call have one temperature and one truncation, or all take the best token.
            temperature = float(states.temperature.np[batch.idx_mapping_np[0]])
            positions = batch.positions[batch.logits_indices]
            kept = None
            if temperature and self._truncates(int(batch.idx_mapping_np[0]), logits.shape[1]):
                logits = logits.float() / temperature
                states.apply_min_p(logits, batch.expanded_idx_mapping, batch.idx_mapping_np)
                logits = states.apply_top_k_top_p(logits, batch.expanded_idx_mapping, batch.idx_mapping_np)
                kept, temperature = (logits > float("-inf")).sum(1), 1.0
            tokens, logprobs = draw(logits, batch.expanded_idx_mapping, positions, states.seeds.gpu, temperature)
            returned = None
            if self.returns_logprobs(batch.idx_mapping_np):
                # No one asks for the token's rank among the logits. In its place is the number of possible tokens, or,
                # if all are possible, the token.
                ranks = tokens if kept is None else kept
                returned = Sampling.LogprobsTensors(tokens[:, None], logprobs[:, None], selected_token_ranks=ranks)
            counts = Sampling.get_num_sampled_and_rejected(
                batch.seq_lens.new_ones(batch.num_reqs),
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.req_states.prefill_len.gpu,
            )
            return Sampling.SamplerOutput(tokens[:, None], returned, None, *counts)

    return RolloutSampler
