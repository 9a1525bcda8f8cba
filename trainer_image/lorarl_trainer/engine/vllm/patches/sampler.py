"""The sampler that vLLM generates with on a GPU: a temperature and a seed a request, nothing else.

vLLM's own passes over the logits up to seven times (penalties, a random number for each of them, their log-softmax, the token's rank),
and divides by the temperature in the logits' own type: here they are float32, read once, and rounded nowhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from lorarl_trainer.engine.vllm.patches.start import replaced


@contextlib.contextmanager
def rollout_sampler() -> Iterator[None]:
    """Let vLLM take this sampler until the block ends, where it would take its own."""
    from vllm.platforms import current_platform

    if not current_platform.is_cuda():
        yield
        return
    from vllm.v1.worker.gpu import model_runner

    with replaced(model_runner, "Sampler", _sampler_class()):
        yield


@cache
def _sampler_class() -> type:
    """Return the class. vLLM is imported here, when it has been set up."""
    from vllm.v1.outputs import LogprobsTensors
    from vllm.v1.worker.gpu.input_batch import get_num_sampled_and_rejected
    from vllm.v1.worker.gpu.sample.output import SamplerOutput
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    from lorarl_trainer.engine.vllm.patches.sample_kernel import draw

    class RolloutSampler(Sampler):
        """Draws a token for each request of a step."""

        def __call__(self, logits: Any, input_batch: Any) -> Any:
            states, batch = self.sampling_states, input_batch
            # A rollout samples all its prompts at one temperature, an evaluation takes the best token everywhere.
            temperature = float(states.temperature.np[batch.idx_mapping_np[0]])
            positions = batch.positions[batch.logits_indices]
            tokens, logprobs = draw(logits, batch.expanded_idx_mapping, positions, states.seeds.gpu, temperature)
            told = None
            if self.returns_logprobs(batch.idx_mapping_np):
                # In the place of the token's rank among the logits, for which nobody asks, stands the token.
                told = LogprobsTensors(tokens[:, None], logprobs[:, None], selected_token_ranks=tokens)
            counts = get_num_sampled_and_rejected(
                batch.seq_lens.new_ones(batch.num_reqs),
                batch.seq_lens,
                batch.cu_num_logits,
                batch.idx_mapping,
                self.req_states.prefill_len.gpu,
            )
            return SamplerOutput(tokens[:, None], told, None, *counts)

    return RolloutSampler
