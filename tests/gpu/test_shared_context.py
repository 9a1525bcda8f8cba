"""Two GPUs that share the tokens of samples: the gradients of one GPU, and a prompt of 127,000 tokens."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from gpu.rank_of_context import BUDGET, PROMPT_TOKENS, RESPONSE_TOKENS, TARGETS, samples_to_compare
from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.models.model_sizes import ModelSizes, sizes_of
from lorarl_trainer.planning.gpu_speeds import speed_of
from support.ranks import RANKS, run_two_ranks
from support.shaped_models import save_shape
from support.training import BareTrainer, relative_difference
from unit.trainer.planning.shapes import SHAPES

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="this machine has fewer than two GPUs")
LAYERS = 6
"""Of the 28 of Qwen2.5-7B. Nothing is recomputed, and the long prompt fits GPUs of 80 GB."""
NOISE = 2e-2
"""Relative difference of gradients in bf16. Attention's backward pass adds up in no fixed order, and in other parts."""
LEAST_MFU = 0.3
"""Of the peak of a large product. Attention takes most of the step, and reaches 0.4."""


def useful_operations(sizes: ModelSizes) -> float:
    """Those of both passes: 4 per parameter and token, and causal attention's, which are 3.5 times its forward's."""
    tokens = PROMPT_TOKENS + RESPONSE_TOKENS
    products = 4 * (sizes.multiplied * tokens + sizes.vocabulary * sizes.hidden * RESPONSE_TOKENS)
    return products + 3.5 * 4 * sizes.width("q_proj") * tokens**2 / 2 * sizes.layers


def test_two_gpus_share_the_tokens_of_long_prompts(tmp_path: Path) -> None:
    config = SHAPES["7B"] | {"num_hidden_layers": LAYERS}
    folder = save_shape(config, tmp_path / "model")
    alone = BareTrainer(CudaDevice(), folder, "bf16", budget=BUDGET, targets=TARGETS, packed=True)
    loss, gradients = alone.loss_and_gradients(samples_to_compare())
    del alone
    gc.collect()
    torch.cuda.empty_cache()

    run_two_ranks(Path(__file__).with_name("rank_of_context.py"), tmp_path, tmp_path, seconds=200)
    reports = [torch.load(tmp_path / f"context-{rank}.pt") for rank in range(RANKS)]
    speed = speed_of(torch.cuda.get_device_name())
    for rank, report in enumerate(reports):
        found = relative_difference(report["gradients"], gradients)
        mfu = useful_operations(sizes_of(config)) / (report["seconds"] * RANKS * speed.operations)
        print(f"\nrank {rank}: loss {report['loss']:.6f}, of one GPU {loss:.6f}; gradients {found:.1e} apart")
        print(f"{report['seconds']:.2f} s with {LAYERS} layers, MFU {mfu:.2f}, at most {report['gigabytes']:.1f} GB")
        assert report["loss"] == pytest.approx(loss, abs=2e-3)
        assert found < NOISE
        assert mfu > LEAST_MFU
