"""The memory plan: sizes from a model's own files, parts that add up, and what is said of a job that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.planning.memory import MemoryPlan, activation_bytes, plan_memory
from lorarl_trainer.planning.model_sizes import ModelSizes, read_model_sizes
from lorarl_trainer.planning.plan import plan_job
from lorarl_trainer.planning.precision import PRECISIONS
from lorarl_trainer.planning.remedies import remedies, require_fit
from support.headers_only import write_headers
from unit.trainer.planning.jobs import gpu_job

GB = 1_000_000_000
H200 = Gpu(150 * GB, 149 * GB)
HIDDEN, FFN, LAYERS, HEADS, KEY_HEADS, VOCABULARY = 3584, 18_944, 28, 28, 4, 152_064
PARAMETERS = 7_615_616_512
"""Of Qwen2.5-7B, as its model card's total has it."""


@pytest.fixture(scope="module")
def model_7b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-7B's files without its weights: configuration and headers, in two shards."""
    folder = tmp_path_factory.mktemp("7b")
    write_headers(
        folder, hidden=HIDDEN, ffn=FFN, layers=LAYERS, heads=HEADS, key_heads=KEY_HEADS, vocabulary=VOCABULARY
    )
    return folder


@pytest.fixture(scope="module")
def sizes(model_7b: Path) -> ModelSizes:
    return read_model_sizes(model_7b)


def planned(
    sizes: ModelSizes, *changes: str, gpu: Gpu = H200, offload: str = "[kv_cache]", shared: bool = True
) -> MemoryPlan:
    return plan_memory(gpu_job(f"rollout.offload={offload}", *changes), sizes, gpu, shared_base=shared)


def part(of: MemoryPlan, what: str) -> int:
    (found,) = [part.bytes for part in of.lines if part.what == what]
    return found


def test_sizes_are_those_of_the_files(sizes: ModelSizes) -> None:
    assert (
        sum(high * (shape[1] if len(shape) > 1 else 1) for shape in sizes.shapes.values() for high in shape[:1])
        == PARAMETERS
    )
    assert sizes.parameters(1) == PARAMETERS  # the vocabulary is a multiple of 64 already
    norms = (2 * LAYERS + 1) * HIDDEN
    assert sizes.parameters(2) == (PARAMETERS - norms) // 2 + norms
    assert sizes.qkv_parameters(1) == LAYERS * (HIDDEN + 1) * (HIDDEN + 2 * 512)


def test_a_vocabulary_that_vllm_pads_is_not_shared(tmp_path: Path) -> None:
    for vocabulary, shared in ((VOCABULARY, True), (VOCABULARY + 1, False)):
        folder = tmp_path / str(vocabulary)
        folder.mkdir()
        write_headers(
            folder, hidden=HIDDEN, ffn=FFN, layers=LAYERS, heads=HEADS, key_heads=KEY_HEADS, vocabulary=vocabulary
        )
        (folder / "consolidated.safetensors").write_bytes(b"the weights again, in another format")
        assert planned(read_model_sizes(folder)).execution.shared_base is shared


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="safetensors"):
        read_model_sizes(tmp_path)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"hidden_size": 4096}, r"(lm_head|embed_tokens).weight has the shape \[152064, 3584\], where .* 4096\]"),
        ({"intermediate_size": 9}, r"mlp\.\w+\.weight has the shape .* where config.json means \[9, 3584\]"),
        ({"num_hidden_layers": 27}, r"have model\.layers\.27\.\S+, which the model of config.json does not have"),
        ({"model_type": "llama"}, r"have model\.layers\.0\.self_attn\.\w_proj\.bias, which"),
    ],
)
def test_weights_of_another_model_are_refused(
    tmp_path: Path, model_7b: Path, change: dict[str, object], fault: str
) -> None:
    for file in model_7b.iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((model_7b / "config.json").read_text()) | change
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=rf"{fault}.*expected weights of the model that config.json describes"):
        read_model_sizes(tmp_path)


@pytest.mark.parametrize(
    ("targets", "layers"),
    [
        (["all-linear"], 7),
        (["q_proj", "v_proj"], 2),
        (["linear_qkv"], 3),
        (["*.layers.0.*"], 7 / LAYERS),
        (["linear_fc1_gate"], 1),
    ],
)
def test_only_the_targets_have_an_adapter(sizes: ModelSizes, targets: list[str], layers: float) -> None:
    adapter = AdapterSpec(target_modules=targets)
    assert len(sizes.adapted(adapter)) == layers * LAYERS


def test_a_7b_job_of_the_benchmark_fits_an_h200(sizes: ModelSizes) -> None:
    found = planned(sizes)
    assert found.fits and remedies(found) == ""
    require_fit(found)
    assert part(found, "base model") == 2 * PARAMETERS
    assert part(found, "adapter and optimizer") == 80_740_352 * (2 + 4 + 4 + 8)
    assert part(found, "vLLM's QKV layers") == 2 * sizes.qkv_parameters(1)
    # 512 sequences of 320 tokens and vLLM's own block of 16; keys and values of 28 layers, 4 heads of 128, in bf16.
    assert found.execution.kv_cache_bytes == part(found, "KV cache") == (512 * 320 + 16) * 2 * LAYERS * 4 * 128 * 2
    assert found.kv_cache_least == (320 + 16) * 2 * LAYERS * 4 * 128 * 2


def test_parts_add_up_to_each_phase(sizes: ModelSizes) -> None:
    asleep, awake = planned(sizes), planned(sizes, offload="[]")
    assert awake.peak("training") == asleep.peak("training") + asleep.execution.kv_cache_bytes
    assert awake.peak("generation") == asleep.peak("generation")
    two = planned(sizes, shared=False)
    assert two.peak("generation") - asleep.peak("generation") == 2 * (PARAMETERS - sizes.qkv_parameters(1))


def test_both_phases_overlap_where_they_fit_at_once(model_7b: Path) -> None:
    together = plan_memory(gpu_job(), read_model_sizes(model_7b), H200)
    need = sum(line.bytes for line in together.lines)
    enough, short = Gpu(150 * GB, need), Gpu(150 * GB, need - GB)
    assert plan_job(gpu_job(), model_7b, enough).overlapped
    assert not plan_job(gpu_job("rollout.offload=[]"), model_7b, short).overlapped
    assert plan_memory(gpu_job("rollout.offload=[]"), read_model_sizes(model_7b), short).fits, "one after the other"


def test_an_absent_offload_gives_the_cache_up_only_where_memory_is_short(sizes: ModelSizes) -> None:
    enough = planned(sizes, offload="null")
    assert enough.fits and enough.execution.offload == frozenset()
    assert part(enough, "KV cache") + part(planned(sizes), "activations") < enough.peak("training")
    short = Gpu(enough.peak("training"), enough.peak("training") - GB)
    assert planned(sizes, offload="null", gpu=short).fits
    assert planned(sizes, offload="null", gpu=short).execution.offload == {"kv_cache"}


def test_unequal_tensor_parallelism_shares_no_base(sizes: ModelSizes) -> None:
    gpus = ("cluster.gpusPerNode=2", "rollout.tensorParallelSize=2")
    assert any(p.what == "vLLM's base model" for p in planned(sizes, *gpus).lines)
    assert any(p.what == "vLLM's QKV layers" for p in planned(sizes, *gpus, "trainer.tensorParallelSize=2").lines)


WHOLE = {True: 2 * HIDDEN + 2 * HIDDEN + 2 * 512 + 2 * FFN, False: 4 * HIDDEN + 3 * HIDDEN + 3 * 512 + 5 * FFN}


@pytest.mark.parametrize(
    ("fused", "recompute", "share"),
    [
        (True, "none", 1.0),
        (True, "selective", 0.29),
        (True, "full", 0.067),
        (False, "selective", 0.19),
        (False, "full", 0.03),
    ],
)
def test_recomputation_keeps_less(sizes: ModelSizes, fused: bool, recompute: str, share: float) -> None:
    whole, _ = activation_bytes(sizes, PRECISIONS["bf16"], "none", fused)
    assert whole == 2 * LAYERS * WHOLE[fused]
    kept, _ = activation_bytes(sizes, PRECISIONS["bf16"], recompute, fused)  # type: ignore[arg-type]
    assert kept / whole == pytest.approx(share, abs=0.01)


def test_training_takes_what_was_measured(sizes: ModelSizes) -> None:
    """64.6 GB on an H200: benchmarks/results/gpu-2026-11-21.txt, which has no vLLM in it."""
    found = planned(sizes, "algorithm.type=sft", "reward=null", offload="null")
    own = sum(p.bytes for p in found.lines if p.what != "CUDA, cuBLAS, NCCL")  # which PyTorch does not count
    assert 64.6 * GB < own < 1.15 * 64.6 * GB


def test_layers_that_are_split_or_drop_out_keep_more(sizes: ModelSizes) -> None:
    plain, dropout = planned(sizes), planned(sizes, "adapter.dropout=0.1")
    assert part(dropout, "activations") > 2 * part(plain, "activations")


def test_a_small_step_is_one_micro_batch(sizes: ModelSizes) -> None:
    small = planned(sizes, "rollout.promptsPerStep=1", "algorithm.groupSize=2")
    assert part(small, "activations") == pytest.approx(part(planned(sizes), "activations") * 640 / 16_384, rel=1e-3)


def test_what_does_not_fit_is_refused_with_table_and_mend(sizes: ModelSizes) -> None:
    gpu = Gpu(64 * GB, 63 * GB)
    found = planned(sizes, gpu=gpu)
    assert not found.fits
    with pytest.raises(InputError) as refused:
        require_fit(found)
    message = str(refused.value)
    assert (
        f"{found.peak('training') / GB:.1f} GB on each GPU" in message
        and "63.0 GB that are free" in message
        and "activations" in message
    )
    assert "spec.trainer.tokensPerMicroBatch to 8192" in message
    assert planned(sizes, "trainer.tokensPerMicroBatch=8192", gpu=gpu).fits


def test_a_base_that_is_too_large_is_told_by_what_it_needs(sizes: ModelSizes) -> None:
    """And not by the KV cache, for which nothing is left."""
    with pytest.raises(InputError, match=r"got a job that needs [\d.]+ GB on each GPU, expected at most the 7\.0 GB"):
        require_fit(planned(sizes, gpu=Gpu(8 * GB, 7 * GB)))


def test_where_no_change_alone_is_enough_all_that_it_takes_are_named(sizes: ModelSizes) -> None:
    gpu = Gpu(16 * GB, 15 * GB)
    found = planned(sizes, "rollout.maxResponseTokens=4096", gpu=gpu, offload="[]")
    told = remedies(found)
    assert told.startswith("Set ") and ", and " in told and "tensorParallelSize" in told


def test_a_cache_that_holds_no_sequence_is_refused(sizes: ModelSizes) -> None:
    found = planned(sizes, "rollout.gpuMemoryFraction=0.034")
    assert found.peak("training") < H200.free and found.execution.kv_cache_bytes < found.kv_cache_least
    assert "gpuMemoryFraction to 0.5" in remedies(found)
    with pytest.raises(InputError, match="KV cache"):
        require_fit(found)


def test_sft_has_no_engine(sizes: ModelSizes) -> None:
    found = planned(sizes, "algorithm.type=sft", "reward=null", offload="null")
    assert found.fits and found.execution.kv_cache_bytes == 0
    assert found.peak("generation") < found.peak("training")
