"""A base that trainers of fsdp share, layer by layer, gives the results of one worker that has all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorarl_api.v1alpha1 import LoRARLJobSpec
from support.in_process import Colocated, prompts, random_adapter, samples_of, tiny_job
from support.ranks import record, recorded_request, run_two_ranks
from trainer.test_parallel import close

BASE = "base"
FIELDS = {"trainer__backend": "fsdp", "trainer__tokensPerMicroBatch": 40, "trainer__epsilon": 1e-4}


def sft_job(folder: Path, nodes: int, recompute: str = "none") -> LoRARLJobSpec:
    """A job without an engine, which would have the whole base on each worker."""
    fields = FIELDS | {
        "algorithm": "{type: sft}",
        "reward": "null",
        "cluster__nodes": nodes,
        "trainer__recompute": recompute,
    }
    return tiny_job(folder / BASE, folder, **fields).spec


@pytest.mark.parametrize(
    ("architecture", "recompute"),
    [
        ("gemma2", "none"),
        pytest.param("gemma2", "full", marks=pytest.mark.long),
        pytest.param("qwen3_5", "none", marks=pytest.mark.long),  # what it computes again needs a layer's weights
    ],
)
def test_two_shards_give_the_results_of_one_worker(
    model_folder, tmp_path: Path, architecture: str, recompute: str
) -> None:
    (tmp_path / BASE).symlink_to(model_folder(architecture))
    one = Colocated(tmp_path / BASE, tmp_path, **FIELDS)
    adapter = random_adapter(one)
    save_file(adapter, tmp_path / "adapter.safetensors")
    one.load(adapter)
    one.sync()
    record(tmp_path, samples_of(prompts(), one.generate(prompts())))
    request = recorded_request(tmp_path, 1e-2)
    expected = [one.worker.update(request).metrics for _ in range(2)]
    updated, whole = one.export(), one.worker.backend.counts().total
    one.close()

    run_two_ranks(Path(__file__).with_name("sharded_ranks.py"), tmp_path, tmp_path, recompute, seconds=120)
    reports = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for report in reports:
        assert report["losses"] == pytest.approx([metrics["loss"] for metrics in expected], abs=1e-5)
        assert report["norms"] == pytest.approx([metrics["grad_norm"] for metrics in expected], rel=1e-4)
        assert report["base_stays"] and report["total"] == whole
        assert report["held"] < 0.6 * whole, "layers are shared; the embedding is on both"
    assert reports[1]["logprobs"][1:] == [], "a rank may have fewer samples than the other"
    assert close(load_file(tmp_path / "updated.st"), updated, tolerance=1e-5)
