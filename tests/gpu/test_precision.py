"""fp32 on a GPU: engine and trainer agree about as closely as on a CPU, since no product is rounded to TF32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.in_process import Colocated, prompts, samples_of
from support.shaped_models import save_shape
from support.tiny_models import save
from unit.trainer.planning.shapes import SMOLLM2

SURE = SMOLLM2 | {"num_hidden_layers": 8, "initializer_range": 0.06}
"""Sure of where it looks and of what it says, as a trained model is. TF32 does not show in a model that is not."""


@pytest.mark.parametrize(
    ("backend", "architecture"),
    [("megatron", None), ("fsdp", None), ("fsdp", "gemma4_text-gpu-heads"), ("fsdp", "gemma4_text-gpu-heads-alike")],
)
def test_trainer_and_engine_agree_in_fp32(tmp_path: Path, backend: str, architecture: str | None) -> None:
    own = {"cluster__gpusPerNode": 1, "trainer__precision": "fp32", "trainer__backend": backend}
    folder = tmp_path / "model"
    model = save(architecture, folder) if architecture else save_shape(SURE, folder)
    worker = Colocated(model, tmp_path, **own)
    try:
        worker.randomise(scale=0.02)
        worker.sync()
        samples = samples_of(prompts(64), rollouts := worker.generate(prompts(64)))
        trainer = worker.trainer_logprobs(samples)
    finally:
        worker.close()
    apart = np.concatenate([np.abs(t - c.logprobs) for t, c in zip(trainer, rollouts, strict=True)])
    print(f"{backend}: {apart.mean():.1e} nats apart on average, {apart.max():.1e} at most")
    assert apart.mean() < 2e-5
