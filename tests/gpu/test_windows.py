"""Layers with a window beside layers without one, over sequences of many windows: each layer sees what it should."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.in_process import Colocated, mean_difference, samples_of
from support.transformers_side import hf_logprobs, peft_model

PROMPT_TOKENS = (60, 230)
SEQUENCES = 384
"""So many that our kernel decodes layers without a window, where a model caps no scores."""
NOISE = 0.1
"""Mean difference in nats. Bf16 makes up to 0.06 here, and a window in all layers from 0.4 on."""


@pytest.mark.parametrize("architecture", ["gemma2-gpu", "gemma3_text-gpu", "olmo3-gpu"])
def test_rollouts_trainer_and_transformers_agree(on_gpu, tmp_path: Path, architecture: str) -> None:
    lengths = {"rollout__maxPromptTokens": max(PROMPT_TOKENS), "rollout__maxResponseTokens": 12}
    worker: Colocated = on_gpu(architecture, trainer__backend=None, **lengths)
    worker.randomise(scale=0.02)
    worker.sync()
    stream = np.random.default_rng(0)
    sizes = np.resize(PROMPT_TOKENS, SEQUENCES)
    asked = [stream.integers(4, 60, size=size).tolist() for size in sizes]
    samples = samples_of(asked, rollouts := worker.generate(asked))
    trained = worker.trainer_logprobs(samples)
    some = slice(32)
    expected = hf_logprobs(peft_model(worker.model, worker.write_peft(tmp_path / "adapter")), samples[some])
    apart = mean_difference([c.logprobs for c in rollouts], trained), mean_difference(trained[some], expected)
    print(f"{architecture}: {apart[0]:.3f} nats from rollout to trainer, {apart[1]:.3f} from there to Transformers")
    assert max(apart) < NOISE
