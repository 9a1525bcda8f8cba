"""The plan of a CPU's memory: documented defaults run, a small machine gets less, and what cannot fit is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lorarl_trainer.devices.base import Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import ModelSizes, read_model_sizes
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.plan import plan_job
from lorarl_trainer.planning.remedies import require_fit
from support.headers_only import write_headers
from unit.trainer.planning.jobs import cpu_job

GB = 1_000_000_000
LAPTOP = Host(25 * GB, 20 * GB)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a model of SmolLM2-135M's shape, without its weights."""
    path = tmp_path_factory.mktemp("135m")
    write_headers(path, hidden=576, ffn=1536, layers=30, heads=9, key_heads=3, vocabulary=49_152)
    return path


@pytest.fixture(scope="module")
def sizes(folder: Path) -> ModelSizes:
    return read_model_sizes(folder)


def planned(sizes: ModelSizes, *changes: str, host: Host = LAPTOP) -> JobPlan:
    return choose_plan(cpu_job(*changes), sizes, host)


def test_documented_defaults_run_on_a_laptop(folder: Path) -> None:
    """Before, vLLM asked for a KV cache of 36.6 GiB, and a micro-batch could take 50 GB."""
    plan = plan_job(cpu_job(), folder, LAPTOP)
    assert plan.trainer.micro_batch_tokens == 1024
    assert plan.engine.kv_cache_bytes == 4 << 30
    assert re.search(r"^KV cache +4\.3 .*; all at their longest: 36\.2$", plan.table, re.M)


def test_a_short_job_takes_no_more_cache_than_its_sequences(sizes: ModelSizes) -> None:
    short = ("rollout.promptsPerStep=8", "rollout.maxPromptTokens=64", "rollout.maxResponseTokens=16")
    per_token = 2 * 30 * 3 * 64 * 4  # keys and values, layers, 3 heads of 64, fp32
    assert planned(sizes, *short).execution.engine.kv_cache_bytes == (64 * 80 + 16) * per_token


def test_more_memory_changes_nothing(sizes: ModelSizes) -> None:
    """Or the same job would give other bytes on a larger machine."""
    assert planned(sizes, host=Host(2000 * GB, 1900 * GB)).execution == planned(sizes).execution


def test_a_small_model_takes_micro_batches_as_on_a_gpu(tmp_path: Path) -> None:
    write_headers(tmp_path, hidden=128, ffn=384, layers=4, heads=4, key_heads=2, vocabulary=64)
    assert planned(read_model_sizes(tmp_path)).execution.trainer.micro_batch_tokens == 16_384


def test_less_memory_means_smaller_budgets_until_they_fit(sizes: ModelSizes) -> None:
    found = [planned(sizes, host=Host(free * GB, free * GB)) for free in range(12, 3, -1)]
    budgets = [
        (plan.execution.trainer.micro_batch_tokens, plan.execution.engine.kv_cache_bytes) for plan in found if plan.fits
    ]
    assert budgets == sorted(budgets, reverse=True) and len(set(budgets)) >= 3
    for plan in found:
        assert plan.memory.needed <= plan.memory.gpu.free or not plan.fits


def test_the_manifests_micro_batch_is_obeyed_if_it_fits(sizes: ModelSizes) -> None:
    assert planned(sizes, "trainer.tokensPerMicroBatch=4096").execution.trainer.micro_batch_tokens == 4096


def test_otherwise_it_is_refused_with_one_that_fits(sizes: ModelSizes) -> None:
    with pytest.raises(InputError) as refused:
        require_fit(planned(sizes, "trainer.tokensPerMicroBatch=32768"))
    message = str(refused.value)
    assert "GB for each worker, expected at most the 20.0 GB that are free there" in message
    assert "Set spec.trainer.tokensPerMicroBatch to 8192, or set spec.trainer.recompute to" in message
    assert "tensorParallelSize" not in message and "offload" not in message
    assert planned(sizes, "trainer.tokensPerMicroBatch=8192").fits


def test_a_model_that_is_too_large_is_refused(sizes: ModelSizes) -> None:
    with pytest.raises(InputError, match="Use a machine with more memory, or a smaller model"):
        require_fit(planned(sizes, host=Host(2 * GB, GB)))


def test_workers_share_the_machine(sizes: ModelSizes) -> None:
    assert planned(sizes, "trainer.tensorParallelSize=2").memory.gpu == Host(LAPTOP.total // 2, LAPTOP.free // 2)
