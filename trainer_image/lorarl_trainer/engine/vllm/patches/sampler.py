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

from lorarl_trainer.engine.vllm import names, slices
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

        sampling_states: slices.SamplingStates
        req_states: slices.RequestState

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            names.checked(self, slices.Sampler, Sampling)
            states = names.checked(self.sampling_states, slices.SamplingStates, Sampling)
            lengths = names.checked(self.req_states, slices.RequestState, Sampling).prefill_len
            for buffer in (states.temperature, states.seeds, lengths):
                names.checked(buffer, slices.UvaBackedTensor, Sampling)

        def __call__(self, logits: torch.Tensor, input_batch: slices.InputBatch) -> Any:
            states, batch = self.sampling_states, input_batch
            # A rollout samples all prompts at one temperature. An evaluation takes the best token everywhere.
            temperature = float(states.temperature.np[batch.idx_mapping_np[0]])
            positions = batch.positions[batch.logits_indices]
            tokens, logprobs = draw(logits, batch.expanded_idx_mapping, positions, states.seeds.gpu, temperature)
            returned = None
            if self.returns_logprobs(batch.idx_mapping_np):
                # No one asks for the token's rank among the logits. The token stands in its place.
                returned = Sampling.LogprobsTensors(tokens[:, None], logprobs[:, None], selected_token_ranks=tokens)
            counts = Sampling.get_num_sampled_and_rejected(
                batch.seq_lens.new_ones(batch.num_reqs),
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.req_states.prefill_len.gpu,
            )
            return Sampling.SamplerOutput(tokens[:, None], returned, None, *counts)

    return RolloutSampler
