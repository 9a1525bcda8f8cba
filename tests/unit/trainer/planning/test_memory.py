"""The memory plan: sizes from a model's own files, and parts that add up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.model_sizes import ModelSizes, read_model_sizes, sizes_of
from lorarl_trainer.planning.activations import activation_bytes, key_bytes, token_bytes
from lorarl_trainer.planning.adapter_size import AdapterSize
from lorarl_trainer.planning.memory import MemoryPlan, make_plan
from lorarl_trainer.planning.usual import decide
from support.headers_only import write_headers
from support.plans import changed
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import config

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
    sizes: ModelSizes, *changes: str, gpu: Gpu = H200, offload: str = "[kv_cache]", **decisions: object
) -> MemoryPlan:
    """The plan of what is usual, but for some fields of the manifest and some decisions."""
    spec = gpu_job(f"rollout.offload={offload}", *changes)
    execution = changed(decide(spec, sizes, gpu), **decisions)
    return make_plan(sizes, AdapterSize.of(spec.adapter, sizes), execution, gpu)


def part(of: MemoryPlan, what: str) -> int:
    (found,) = [part.bytes for part in of.lines if part.what == what]
    return found


def test_a_critic_is_a_second_adapter_and_no_second_base(sizes: ModelSizes) -> None:
    plain, with_critic = planned(sizes), planned(sizes, "algorithm.type=ppo", "algorithm.groupSize=8")
    more = part(with_critic, "critic and its optimizer")
    assert more == part(plain, "adapter and optimizer") + 16 * HIDDEN  # the head: itself, gradient and two moments
    assert with_critic.peak("training") == plain.peak("training") + more
    assert "critic and its optimizer" in with_critic.table() and "critic" not in plain.table()


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
        assert planned(read_model_sizes(folder)).execution.layout.shared_base is shared


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


@pytest.mark.parametrize(
    ("targets", "qkv", "o", "gate_up", "down"),
    [
        (["all-linear"], 1, 1, 1, 1),
        (["q_proj", "v_proj"], 1, 0, 0, 0),
        (["*.layers.0.mlp.up_proj"], 0, 0, 1, 0),  # in all layers
    ],
)
def test_an_engine_has_whole_layers_for_adapters(
    sizes: ModelSizes, targets: list[str], qkv: int, o: int, gate_up: int, down: int
) -> None:
    """B's of q, k and v stand along a diagonal, and so do those of gate and up, also of parts without an adapter."""
    adapter = AdapterSpec(rank=32, target_modules=targets)
    queries_keys_values = 3 * (HIDDEN + HIDDEN + 2 * 512)
    layer = qkv * queries_keys_values + o * 2 * HIDDEN + gate_up * 2 * (HIDDEN + 2 * FFN) + down * (FFN + HIDDEN)
    assert AdapterSize.of(adapter, sizes).served(1) == 32 * LAYERS * layer
    if targets == ["all-linear"]:
        split = 3 * (HIDDEN + (HIDDEN + 2 * 512) // 2) + HIDDEN // 2 + HIDDEN + 2 * (HIDDEN + FFN) + FFN // 2 + HIDDEN
        assert AdapterSize.of(adapter, sizes).served(2) == 32 * LAYERS * split


def test_a_token_keeps_what_adapters_make_of_it(sizes: ModelSizes) -> None:
    small, large = (planned(sizes, f"adapter.rank={rank}", "trainer.recompute=none") for rank in (8, 264))
    at_work = 3 * (2 * HIDDEN + 2 * 512) + 2 * (HIDDEN + 2 * FFN)  # A and B of q, k and v; of gate and up
    more = 1.05 * 2 * 256 * (16_384 * 7 * (LAYERS + 1) + 2 * at_work)
    assert part(large, "activations") - part(small, "activations") == pytest.approx(more, rel=1e-3)
    again = [planned(sizes, f"adapter.rank={rank}", "trainer.recompute=full") for rank in (8, 264)]
    assert part(again[1], "activations") - part(again[0], "activations") < more / 5


def test_ranks_that_split_a_layer_gather_its_adapters(sizes: ModelSizes) -> None:
    gpus = ("adapter.rank=256", "cluster.gpusPerNode=2", "trainer.tensorParallelSize=2")
    found = planned(sizes, *gpus)
    assert part(found, "adapters, gathered") == 2 * 256 * LAYERS * 7 * HIDDEN  # five A's, and B of o and down
    for other in (planned(sizes), planned(sizes, *gpus, "trainer.recompute=full"), planned(sizes, *gpus, *MEGATRON)):
        assert all(line.what != "adapters, gathered" for line in other.lines)
    # A x is of all tokens on each rank.
    small, large = (planned(sizes, *gpus, f"adapter.rank={rank}") for rank in (8, 264))
    more = part(large, "activations") - part(small, "activations")
    assert more > 1.05 * 2 * 256 * 16_384 * 7 * (LAYERS + 1)


def test_a_7b_job_of_the_benchmark_fits_an_h200(sizes: ModelSizes) -> None:
    found = planned(sizes)
    assert found.fits
    assert part(found, "base model") == 2 * PARAMETERS
    assert part(found, "adapter and optimizer") == 80_740_352 * (2 + 4 + 4 + 8)
    assert part(found, "vLLM's QKV layers") == 2 * sizes.qkv_parameters(1)
    # 512 sequences of 320 tokens and vLLM's own block of 16; keys and values of 28 layers, 4 heads of 128, in bf16.
    assert (
        found.execution.engine.kv_cache_bytes == part(found, "KV cache") == (512 * 320 + 16) * 2 * LAYERS * 4 * 128 * 2
    )
    assert found.kv_cache_least == (320 + 16) * 2 * LAYERS * 4 * 128 * 2
    assert not replace(found, kv_cache_least=found.execution.engine.kv_cache_bytes + 1).fits, "no sequence has room"


def test_a_reference_and_a_teacher_take_an_adapter_each(sizes: ModelSizes) -> None:
    teacher = "algorithm={type: distillation, distillation: {adapter: 's3://team/teacher'}}"
    found = planned(sizes, "reward=null", teacher)
    assert part(found, "adapters that are held") == 80_740_352 * 2
    start = "algorithm={klCoefficient: 0.1, kl: {reference: start}}"
    assert part(planned(sizes, "adapter.initFrom=s3://team/a", start), "adapters that are held") == 80_740_352 * 2


def test_parts_add_up_to_each_phase(sizes: ModelSizes) -> None:
    asleep, awake = planned(sizes), planned(sizes, offload="[]")
    assert awake.peak("training") == asleep.peak("training") + asleep.execution.engine.kv_cache_bytes
    assert awake.peak("generation") == asleep.peak("generation")
    two = planned(sizes, shared_base=False)
    assert two.peak("generation") - asleep.peak("generation") == 2 * (PARAMETERS - sizes.qkv_parameters(1))


LONG = ("rollout.maxResponseTokens=16320",)


def test_the_cache_takes_what_is_free_in_its_phase(sizes: ModelSizes) -> None:
    """M1: half of the GPU stayed empty while generating, with a cache for 69 of 512 sequences."""
    given_up = planned(sizes, *LONG)
    assert given_up.peaks[0] == H200.free and given_up.execution.engine.kv_cache_bytes > 125 * GB
    stays = planned(sizes, *LONG, offload="[]")
    assert stays.peaks[1] == H200.free
    assert re.search(r"holds 133 at their longest, 267 at half of it; all at their longest: 481", given_up.table())


@pytest.mark.parametrize("offload", ["[]", "[kv_cache]"])
def test_a_fraction_of_the_gpu_is_the_most_that_the_engine_takes(sizes: ModelSizes, offload: str) -> None:
    found = planned(sizes, *LONG, "rollout.gpuMemoryFraction=0.3", offload=offload)
    engine = sum(line.bytes for line in found.lines if line.what.startswith(("vLLM", "KV cache")))
    assert engine == pytest.approx(0.3 * H200.total, abs=1) and found.fits


def test_unequal_tensor_parallelism_shares_no_base(sizes: ModelSizes) -> None:
    gpus = ("cluster.gpusPerNode=2", "rollout.tensorParallelSize=2")
    assert any(p.what == "vLLM's base model" for p in planned(sizes, *gpus, "trainer.tensorParallelSize=1").lines)
    assert any(p.what == "vLLM's QKV layers" for p in planned(sizes, *gpus, "trainer.tensorParallelSize=2").lines)


FUSED, MEGATRON, TRANSFORMERS = (), ("adapter.dropout=0.1",), ("trainer.backend=fsdp",)
"""What makes a job's layers so."""
WHOLE = {
    FUSED: 2 * HIDDEN + 2 * HIDDEN + 2 * 512 + 2 * FFN,
    MEGATRON: 4 * HIDDEN + 3 * HIDDEN + 3 * 512 + 5 * FFN,
    TRANSFORMERS: 6 * HIDDEN + 2 * HIDDEN + 2 * 512 + 4 * FFN,
}


@pytest.mark.parametrize(
    ("layers", "recompute", "share"),
    [
        (FUSED, "none", 1.0),
        (FUSED, "selective", 0.29),
        (FUSED, "full", 0.067),
        (MEGATRON, "selective", 0.19),
        (MEGATRON, "full", 0.03),
        (TRANSFORMERS, "selective", 0.28),
        (TRANSFORMERS, "full", 0.034),
    ],
)
def test_recomputation_keeps_less(sizes: ModelSizes, layers: tuple[str, ...], recompute: str, share: float) -> None:
    execution = planned(sizes, *layers, f"trainer.recompute={recompute}").execution
    whole, _ = activation_bytes(sizes, execution, "none")
    assert whole == 2 * LAYERS * WHOLE[layers]
    kept, _ = activation_bytes(sizes, execution)
    assert kept / whole == pytest.approx(share, abs=0.01)


def test_transformers_layers_take_what_was_measured(sizes: ModelSizes) -> None:
    """122.5 GB on an H200, in micro-batches of 16,384 tokens: benchmarks/results/gpu-2026-11-24-fsdp.json."""
    found = planned(sizes, *TRANSFORMERS, "trainer.tokensPerMicroBatch=16384")
    assert 122.5 * GB < found.peak("training") < 1.1 * 122.5 * GB


def test_training_takes_what_was_measured(sizes: ModelSizes) -> None:
    """64.6 GB on an H200: benchmarks/results/gpu-2026-11-21.txt, which has no vLLM in it."""
    found = planned(sizes, "algorithm.type=sft", "reward=null", offload="null")
    own = sum(p.bytes for p in found.lines if p.what != "CUDA, cuBLAS, NCCL")  # which PyTorch does not count
    assert 64.6 * GB < own < 1.15 * 64.6 * GB


def test_layers_that_drop_out_keep_more(sizes: ModelSizes) -> None:
    tokens = "trainer.tokensPerMicroBatch=8192"
    plain, dropout = planned(sizes, tokens), planned(sizes, tokens, "adapter.dropout=0.1")
    assert part(dropout, "activations") > 2 * part(plain, "activations")


def test_a_small_step_is_one_micro_batch(sizes: ModelSizes) -> None:
    small = planned(sizes, "rollout.promptsPerStep=1", "algorithm.groupSize=2", micro_batch_keys=0)
    usual = planned(sizes, micro_batch_keys=0)
    assert part(small, "activations") == pytest.approx(part(usual, "activations") * 640 / 16_384, rel=1e-2)


@pytest.mark.parametrize(
    ("dropout", "recompute", "kept", "at_work"),
    [
        (0, "none", 0, 4 * 512 + 2 * HIDDEN),
        (0, "full", 0, 4 * 512 + 2 * HIDDEN),
        (0.1, "none", 2 * 512 * LAYERS, 4 * 512 + 2 * HIDDEN),
        (0.1, "selective", 2 * 512 * LAYERS, 4 * 512 + 2 * HIDDEN),
        (0.1, "full", 0, 4 * 512 + 2 * HIDDEN),
    ],
)
def test_keys_of_shared_prompts_are_counted(
    sizes: ModelSizes, dropout: float, recompute: str, kept: int, at_work: int
) -> None:
    """H3: fused layers gather them again in the backward pass, one layer at a time; Megatron's own keep them."""
    changes = (f"adapter.dropout={dropout}", f"trainer.recompute={recompute}")
    few, many = (planned(sizes, *changes, micro_batch_keys=keys) for keys in (100_000, 300_000))
    assert key_bytes(sizes, few.execution) == (2 * kept, 2 * at_work)
    more = part(many, "activations") - part(few, "activations")
    assert more == pytest.approx(1.05 * 200_000 * 2 * (kept + at_work), rel=1e-6)


def test_without_flash_attention_its_copies_are_counted(sizes: ModelSizes) -> None:
    """It takes no fp32."""
    whole = planned(sizes, "trainer.precision=fp32")
    assert whole.execution.trainer.micro_batch_keys is None and whole.execution.trainer.attention_copies == 9
    copies = 4 * HIDDEN + 4 * 512 * 9
    assert part(whole, "activations") > 1.05 * 16_384 * 4 * LAYERS * (WHOLE[FUSED] + copies)


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({"sliding_window": 4096}, None),
        ({"sliding_window": 256}, 7 * 320),
        ({"sliding_window": 4096, "attn_logit_softcapping": 50.0}, 5 * HEADS * 320),
    ],
)
def test_windows_and_capped_scores_take_no_flash_attention(fields: dict[str, float], more: int | None) -> None:
    """A window that is at least as long as the longest sequence cuts nothing off."""
    model = sizes_of(config("qwen2") | {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], **fields})
    execution = planned(model, *TRANSFORMERS).execution
    kept, _ = token_bytes(model, execution)
    plain, _ = activation_bytes(model, execution)
    if more is None:
        assert execution.trainer.attention_copies == 0 and execution.trainer.micro_batch_keys and kept == plain
    else:
        assert execution.trainer.attention_copies == 9 and execution.trainer.micro_batch_keys is None
        assert kept - plain == 2 * LAYERS * (4 * HIDDEN + 4 * 512 * 9 + more)


def test_sft_has_no_engine(sizes: ModelSizes) -> None:
    found = planned(sizes, "algorithm.type=sft", "reward=null", offload="null")
    assert found.fits and found.execution.engine.kv_cache_bytes == 0
    assert found.peak("generation") < found.peak("training")
    assert "generating" not in found.table() and "generating, in all" in planned(sizes).table()
