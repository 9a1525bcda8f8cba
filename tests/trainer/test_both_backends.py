"""The two trainer backends are one trainer: the same losses and gradients, and checkpoints that cross over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from lorarl_trainer.checkpoint.contents import ADAPTER
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.files import WEIGHTS_FILE
from lorarl_trainer.lora.peft_format import read_adapter
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from support.in_process import Colocated, prompts, samples_of, update_request
from support.loop_runs import run_in_process

STEPS = 4


def start(colocated, out: Path, **changes: object) -> Colocated:
    out.mkdir(exist_ok=True)
    worker: Colocated = colocated("qwen2", trainer__steps=STEPS, trainer__epsilon=1e-4, **changes)
    worker.out = out
    worker.job.spec.checkpoint.__dict__["uri"] = f"file://{out}/checkpoints"  # frozen: only tests change it
    return worker


def last_adapter(out: Path) -> dict[str, torch.Tensor]:
    (file,) = out.glob(f"checkpoints/*/iter_{STEPS:07}/{ADAPTER}/{WEIGHTS_FILE}")
    return read_adapter(file.read_bytes(), "test")


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def test_the_same_seed_gives_the_same_losses(colocated, tmp_path: Path) -> None:
    runs = {
        backend: asyncio.run(run_in_process(start(colocated, tmp_path / backend, trainer__backend=backend)))
        for backend in ("megatron", "fsdp")
    }
    losses = [[row.metrics["loss"] for row in rows] for rows in runs.values()]
    norms = [[row.metrics["grad_norm"] for row in rows] for rows in runs.values()]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and norms[0] == pytest.approx(norms[1], rel=1e-4)
    assert largest_difference(last_adapter(tmp_path / "megatron"), last_adapter(tmp_path / "fsdp")) < 1e-5


@pytest.mark.parametrize(("first", "second"), [("megatron", "fsdp"), ("fsdp", "megatron")])
def test_a_checkpoint_of_one_backend_resumes_in_the_other(colocated, tmp_path: Path, first: str, second: str) -> None:
    asyncio.run(run_in_process(start(colocated, tmp_path / "whole", trainer__backend=first)))
    asyncio.run(run_in_process(start(colocated, tmp_path / "parts", trainer__backend=first), stop_after=2))
    rest = asyncio.run(run_in_process(start(colocated, tmp_path / "parts", trainer__backend=second)))
    assert [row.step for row in rest] == [3, 4]
    assert largest_difference(last_adapter(tmp_path / "whole"), last_adapter(tmp_path / "parts")) < 1e-5


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_gradients_are_the_same_with_a_reference(colocated, recompute: str) -> None:
    gradients, metrics = [], []
    for backend in ("megatron", "fsdp"):
        chosen = recompute if backend == "fsdp" else "none"
        worker: Colocated = colocated("qwen2", trainer__backend=backend, trainer__recompute=chosen)
        worker.randomise()
        worker.sync()
        drawn = samples_of(prompts(), worker.generate(prompts()))
        samples = [Sample(s.tokens, s.prompt_length, (-1.0) ** i, s.rollout_logprobs) for i, s in enumerate(drawn)]
        loss = LossChoice("policy_gradient", clip_range=0.2, kl_coefficient=0.1)
        trained = worker.worker.backend
        found, agreement = trained._trainer.forward_backward(update_request(samples, loss=loss))
        assert agreement is not None and agreement.largest < 1e-5
        metrics.append(np.array([found[name] for name in sorted(found)]))
        copies = [gradient.clone() for gradient in trained.optimizer.gradients]
        gradients.append({name: t.clone() for name, t in trained.layout.gather(copies).items()})
    assert np.abs(metrics[0] - metrics[1]).max() < 1e-5
    assert largest_difference(*gradients) < 1e-5
    assert max(float(tensor.abs().max()) for tensor in gradients[0].values()) > 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"adapter__type": "lora"},
            r"spec\.adapter\.type: got lora with trainer\.backend fsdp.*Set spec\.adapter\.type: canonical_lora",
        ),
        ({"trainer__tensorParallelSize": 2}, r"spec\.trainer\.tensorParallelSize: got 2 with trainer\.backend fsdp"),
    ],
)
def test_what_fsdp_does_not_do_is_refused(colocated, changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        colocated(trainer__backend="fsdp", **changes)
