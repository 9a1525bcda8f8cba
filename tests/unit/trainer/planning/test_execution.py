"""What planning decides before anything loads, on a GPU and on CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import shape_of
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.models.supported_models import has_plain_layers
from lorarl_trainer.planning.execution import ExecutionPlan, PlanError
from lorarl_trainer.planning.usual import decide
from lorarl_trainer.storage.downloads import read_model_config
from unit.trainer.planning.jobs import gpu_job

GIB = 1 << 30
H200 = Gpu(140 * GIB, 139 * GIB, "NVIDIA H200")
SHAPE = ModelShape(
    layers=28, hidden=3584, heads=28, key_heads=4, head=128, vocabulary=152_064, tied=False, plain_layers=True
)


def decided(*changes: str, gpu: Gpu | None = H200, model: ModelShape = SHAPE, gpus: int = 1) -> ExecutionPlan:
    return decide(gpu_job(*changes, gpus=gpus if gpu else 0), model, gpu)


def test_layers_are_fused_whole_on_one_gpu() -> None:
    assert decided().trainer.fused_layers and decided().trainer.packed
    assert not decided("adapter.dropout=0.1").trainer.fused_layers
    assert decided("trainer.tensorParallelSize=2", gpus=2).trainer.fused_layers
    assert not decided(model=replace(SHAPE, plain_layers=False)).trainer.fused_layers
    assert decided(gpu=None).trainer.fused_layers and decided(gpu=None).trainer.packed


@pytest.mark.parametrize(
    ("config", "plain"),
    [
        ({"model_type": "qwen2"}, True),
        ({"model_type": "mistral", "sliding_window": 4096}, True),
        ({"model_type": "llama", "hidden_act": "gelu"}, False),
        ({"model_type": "gemma2"}, False),
        ({}, False),
    ],
)
def test_layers_of_llamas_kind_are_known_by_the_configuration(config: dict[str, object], plain: bool) -> None:
    assert has_plain_layers(config) is plain


def test_an_engine_generates_so_many_sequences_at_a_time() -> None:
    assert decided().engine.sequences == 512
    assert decided("rollout.promptsPerStep=1000").engine.sequences == 1024
    assert decided("rollout.promptsPerStep=3", gpus=2).engine.sequences == 12


@pytest.mark.parametrize(
    ("gpu", "tokens"),
    [
        (H200, 16_384),
        (Gpu(80 * GIB, 79 * GIB, "NVIDIA A100-SXM4-80GB"), 8192),
        (Gpu(48 * GIB, 47 * GIB, "NVIDIA L40S"), 8192),
        (None, 4096),
    ],
)
def test_an_engine_step_takes_as_many_tokens_as_vllm_would_choose(gpu: Gpu | None, tokens: int) -> None:
    assert decided(gpu=gpu).engine.step_tokens == tokens
    assert decided("rollout.promptsPerStep=1", gpu=gpu).engine.step_tokens == 8 * 320


def test_the_base_is_shared_where_trainer_and_engine_are_split_alike() -> None:
    assert decided().layout.shared_base and decided().layout.unshared is None
    assert decided("rollout.tensorParallelSize=2", gpus=2).layout.shared_base  # the trainer's follows
    apart = decided("rollout.tensorParallelSize=2", "trainer.tensorParallelSize=1", gpus=2)
    assert not apart.layout.shared_base and apart.layout.unshared is None
    assert decided(
        "trainer.tensorParallelSize=8", gpus=8
    ).layout.shared_base  # two ranks have the same of 4 key-value heads
    padded = decided(model=replace(SHAPE, vocabulary=152_063))
    assert not padded.layout.shared_base
    assert padded.layout.unshared == "vLLM pads the vocabulary of 152,063 to a multiple of 64"


@pytest.mark.parametrize(
    ("trainer", "engine", "ranks"),
    [(None, None, (1, 1)), (2, None, (2, 2)), (None, 2, (2, 2)), (1, 2, (1, 2)), (2, 1, (2, 1))],
)
def test_an_open_layout_is_the_other_sides(trainer: int | None, engine: int | None, ranks: tuple[int, int]) -> None:
    sizes = {"trainer": trainer, "rollout": engine}
    changes = [f"{side}.tensorParallelSize={size}" for side, size in sizes.items() if size]
    found = decided(*changes, gpus=2)
    assert (found.layout.trainer_ranks, found.layout.engine_ranks) == ranks


def test_workers_that_share_a_context_train_together_and_generate_apart() -> None:
    alone, shared = decided(gpus=4), decided("trainer.contextParallelSize=2", "trainer.tensorParallelSize=2", gpus=4)
    assert (alone.layout.trainer_workers, shared.layout.trainer_workers) == (1, 4)
    assert shared.trainer.trained == 4 * alone.trainer.trained
    assert decided("trainer.contextParallelSize=2", gpus=2).engine.sequences == 256


def test_on_a_cpu_an_engine_is_whole() -> None:
    found = decided("trainer.tensorParallelSize=2", gpu=None)
    assert (found.layout.trainer_ranks, found.layout.engine_ranks) == (2, 1)


def test_a_micro_batch_has_keys_for_responses_that_are_not_very_short() -> None:
    """With 8 completions of an eighth of 256 tokens for each prompt of 64; a completion alone has only its own."""
    keys = decided().trainer.micro_batch_keys
    assert keys == 16_384 + 16_384 * 8 * 64 // (64 + 8 * 32)
    assert decided("algorithm.type=sft", "reward=null").trainer.micro_batch_keys == 16_384
    assert decided(gpu=None).trainer.micro_batch_keys is None  # packings on a CPU stay what they were


def test_a_micro_batch_holds_the_longest_sequence() -> None:
    assert decided().trainer.micro_batch_tokens == 16_384
    assert decided("rollout.maxResponseTokens=20000").trainer.micro_batch_tokens == 20_064
    assert decided("trainer.tokensPerMicroBatch=1024").trainer.micro_batch_tokens == 1024


def test_a_configuration_without_a_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"a config\.json without num_attention_heads"):
        shape_of(read_model_config(tmp_path))


def test_what_differs_from_the_plan_is_an_error_that_names_both() -> None:
    plan = decided()
    plan.trainer.require("fused_layers", True)
    with pytest.raises(PlanError, match="fused_layers is planned as True, but was found to be False"):
        plan.trainer.require("fused_layers", False)
