"""A GPU without memory is reported as such, with the plan of its memory, wherever the worker is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorarl_trainer.errors import InputError, OutOfMemoryError
from lorarl_trainer.planning import plan
from lorarl_trainer.protocols.workers import DriverState
from lorarl_trainer.workers.gpu_memory import gpu_memory_explained
from lorarl_trainer.workers.state import State
from lorarl_trainer.workers.worker import Worker
from support.in_process import ALONE, STOP, Colocated, prompts, samples_of, tiny_job, update_request
from support.plans import changed

TABLE = "base model  16.4  always  its files"
TORCH = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 139.81 GiB of which 1 GiB is free."
)
VLLM = RuntimeError("CUDA Error: out of memory at csrc/cumem_allocator.cpp:139")


def fail(error: Exception) -> Callable[..., Any]:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


def phases(worker: Colocated) -> dict[str, tuple[object, str, Callable[[], object]]]:
    """What fails in each phase, and how the worker comes to it."""
    one, backend = worker.worker, worker.worker.backend
    samples = samples_of(prompts(), worker.generate(prompts()))
    return {
        "vLLM generated": (worker.engine, "results", lambda: worker.generate(prompts())),
        "vLLM generated, waking": (worker.engine, "wake", lambda: worker.generate(prompts())),
        "the adapter was brought to vLLM": (worker.rollouts.deliveries[0].sync, "push", lambda: one.sync(9)),
        "the adapter was updated": (backend.model, "log_probabilities", lambda: one.update(update_request(samples))),
        "log-probabilities were computed": (backend, "log_probabilities", lambda: worker.trainer_logprobs(samples)),
        "a checkpoint was taken": (backend.model, "export", lambda: one.publish(1, 1, DriverState(), {})),
        "a checkpoint was taken, helping": (
            backend.model,
            "help_export",
            lambda: Worker.publish(one, 1, 1, DriverState(), {}),
        ),
        "the training state was restored": (backend, "restore", lambda: Worker.restore(one, State([], 0))),
    }


@pytest.mark.parametrize("error", [TORCH, VLLM], ids=["torch", "vLLM's allocator"])
def test_memory_that_runs_out_is_told_in_every_phase(
    colocated, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    worker: Colocated = colocated()
    worker.sync()
    assert worker.worker._plan is not None
    worker.worker._plan = replace(worker.worker._plan, table=TABLE)
    for name, (owner, method, do) in phases(worker).items():
        with monkeypatch.context() as broken, pytest.raises(OutOfMemoryError) as told:
            broken.setattr(owner, method, fail(error))
            do()
        assert f"used up while {name.partition(',')[0]} (CUDA" in str(told.value), name
        assert "Lower spec.trainer.tokensPerMicroBatch" in str(told.value)
        assert str(told.value).endswith(f"planned as follows.\n{TABLE}")


@pytest.mark.parametrize(
    ("part", "doing"),
    [
        ("lorarl_trainer.backends.megatron.backend.LoraModel", "the base model was loaded"),
        ("lorarl_trainer.engine.colocated.RolloutEngine", "vLLM was started"),
        ("lorarl_trainer.backends.state.new_adapter", "the adapter was made"),
    ],
)
def test_memory_that_runs_out_at_the_start_is_told(
    model_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, doing: str
) -> None:
    worker = Worker(tiny_job(model_folder("qwen3-tied"), tmp_path).spec, ALONE)
    worker.preload()
    monkeypatch.setattr(part, fail(TORCH))
    with pytest.raises(OutOfMemoryError, match=rf"used up while {doing} \(CUDA out of memory\. Tried"):
        worker.start(model_folder("qwen3-tied"), STOP, None)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="an illegal memory access"), gpu_memory_explained("it worked", TABLE):
        raise RuntimeError("an illegal memory access")


def test_a_kv_cache_too_small_for_one_sample_is_no_model_of_few_positions(
    model_folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's message names max_model_len in both cases."""
    whole = plan.plan_job
    monkeypatch.setattr(plan, "plan_job", lambda *job: changed(whole(*job), kv_cache_bytes=1 << 16))
    model = model_folder("qwen3-tied")
    worker = Worker(tiny_job(model, tmp_path, rollout__maxResponseTokens=100).spec, ALONE)
    told = (
        r"spec\.rollout\.maxResponseTokens: got 100, .*16: one such sample needs [\d.]+ GiB of KV cache, and vLLM has "
    )
    with pytest.raises(InputError, match=told + r"[\d.]+ GiB, expected a KV cache that holds at least one sample"):
        worker.start(model, STOP, None)
