"""A job's base model is judged by config.json: for a GPU of any size, in milliseconds, and without weights."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu
from lorarl_trainer.errors import InputError, OutOfMemoryError
from lorarl_trainer.planning.verdict import judge
from unit.trainer.planning.jobs import gpu_job
from unit.trainer.planning.shapes import LARGER, SHAPES, SMOLLM2, config

GB = 1_000_000_000
GPUS = {
    24: Gpu(24 * GB, int(23.4 * GB), "NVIDIA L4", (8, 9)),
    48: Gpu(48 * GB, int(47.2 * GB), "NVIDIA L40S", (8, 9)),
    80: Gpu(80 * GB, int(78.8 * GB), "NVIDIA A100-SXM4-80GB", (8, 0)),
}
job = partial(gpu_job, prompt_tokens=512, response_tokens=1024)


def refusal(spec: LoRARLJobSpec, model: dict[str, Any], gpu: Gpu | None = None) -> str:
    with pytest.raises(InputError) as refused:
        judge(spec, model, gpu)
    return str(refused.value)


def test_a_model_that_works_is_named_by_its_family() -> None:
    assert str(judge(job(), SHAPES["7B"])) == "the base model is of a tested family (Qwen2, Qwen2.5)"
    assert judge(job(gpus=0), SMOLLM2).slower == ()


def test_an_elastic_job_must_fit_on_its_fewest_nodes_too() -> None:
    """Trainers of fsdp share the base, so that each has more of it if there are fewer."""
    small = Gpu(14 * GB, int(13.7 * GB), "NVIDIA L4", (8, 9))

    def elastic(fewest: int) -> LoRARLJobSpec:
        fields = ("trainer.backend=fsdp", "algorithm.type=sft", "reward=null", "cluster.nodes=4")
        return gpu_job(*fields, f"cluster.minNodes={fewest}")

    assert judge(elastic(4), SHAPES["7B"], small).plan
    refused = refusal(elastic(2), SHAPES["7B"], small)
    assert refused.startswith("spec.cluster.minNodes: got 2, with a job that needs 16.0 GB on each GPU, expected as ")
    assert "expected as many nodes as the job fits on. Raise cluster.minNodes, or remove it. Or make " in refused
    assert "the job fit on 2: Set spec.cluster.gpusPerNode to 2, or set spec.model.quantization to nf4." in refused
    assert "\nfree on the GPU            13.7" in refused, "the table"


PHI_4 = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "tie_word_embeddings": False,
    "hidden_size": 5120,
    "intermediate_size": 17_920,
    "num_hidden_layers": 40,
    "vocab_size": 100_352,
    "num_attention_heads": 40,
    "num_key_value_heads": 10,
    "max_position_embeddings": 16_384,
}


def test_a_backend_that_the_model_chooses_is_said() -> None:
    verdict = judge(job(), PHI_4, GPUS[80])
    assert "trainer.backend is fsdp (Transformers and PEFT), since Megatron does not train this model" in str(verdict)
    assert verdict.plan is not None and verdict.plan.execution.backend == "fsdp"
    assert verdict.plan.model.parameters(1) == pytest.approx(14.66e9, rel=1e-2), "as its model card says"
    assert verdict.plan.model.width("up_proj") == 17_920 and verdict.plan.model.heads == 40
    assert judge(job("trainer.backend=fsdp"), PHI_4).slower == (), "it was asked for"


GPT_2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50_257,
}


def test_sizes_of_gpt_2_have_its_own_names() -> None:
    small = gpu_job(prompt_tokens=256, response_tokens=512)
    verdict = judge(small, GPT_2, GPUS[24])
    assert "so serve it merged (lorarl merge)" in str(verdict)
    assert verdict.plan is not None and verdict.plan.model.parameters(1) == pytest.approx(124.4e6, rel=1e-2)
    linear = {one.name: one for one in verdict.plan.model.linears}["transformer.h.11.mlp.c_proj"]
    assert (linear.inputs, linear.outputs) == (3072, 768)
    assert "at most 1024, the positions of the model" in refusal(job(), GPT_2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["adapter.type=lora"], "spec.adapter.type: got lora with trainer.backend fsdp"),
        (["trainer.tensorParallelSize=1", "trainer.backend=megatron"], "trainer.backend megatron does not train it"),
    ],
)
def test_what_a_backend_cannot_do_is_refused(changes: list[str], message: str) -> None:
    assert message in refusal(job(*changes), PHI_4)


@pytest.mark.parametrize(
    ("field", "changes", "model", "megatron"),
    [
        ("tensorParallelSize", ["trainer.backend=fsdp"], SHAPES["7B"], True),
        ("tensorParallelSize", ["trainer.backend=fsdp", "model.quantization=fp8"], SHAPES["7B"], False),
        ("tensorParallelSize", ["model.quantization=nf4"], SHAPES["7B"], False),
        ("contextParallelSize", ["model.quantization=nf4"], SHAPES["7B"], False),
        ("contextParallelSize", [], PHI_4, False),
    ],
)
def test_fsdp_offers_megatron_only_where_that_trains_the_job(
    field: str, changes: list[str], model: dict[str, Any], megatron: bool
) -> None:
    message = refusal(job(f"trainer.{field}=2", *changes, gpus=2), model)
    assert f"spec.trainer.{field}: got 2 with trainer.backend fsdp" in message
    assert ("set spec.trainer.backend: megatron" in message) is megatron


@pytest.mark.parametrize(
    ("changes", "model", "why"),
    [
        (["adapter.dropout=0.1"], SHAPES["7B"], "layers are not fused, .*: spec.adapter.dropout is 0.1$"),
        (["trainer.precision=fp32"], SHAPES["0.5B"], "precision is fp32, so attention runs without flash attention"),
        ([], config(vocab_size=151_937), "vLLM holds its own copy of the base model: vLLM pads the vocabulary"),
    ],
)
def test_what_makes_a_model_slower_is_said(changes: list[str], model: dict[str, Any], why: str) -> None:
    (found,) = judge(job(*changes), model).slower
    assert re.search(why, found)


@pytest.mark.parametrize(
    ("changes", "model", "message"),
    [
        (["adapter.targetModules=[q_proj, gate]"], SHAPES["7B"], "spec.adapter.targetModules: got 'gate', expected a "),
        (
            ["adapter.type=lora", "adapter.targetModules=[q_proj]"],
            SHAPES["7B"],
            "spec.adapter.targetModules: got q_proj alone, expected all of q_proj, k_proj, v_proj",
        ),
        (
            ["cluster.gpusPerNode=2", "trainer.tensorParallelSize=2"],
            SMOLLM2,
            "spec.trainer.tensorParallelSize: got 2 for a model with 9 attention heads, expected a number of ranks "
            "that share them equally. Set it to 1.",
        ),
        (
            ["cluster.gpusPerNode=8", "rollout.tensorParallelSize=8"],
            SHAPES["7B"],
            "spec.rollout.tensorParallelSize: got 8 for a model with 28 attention heads, expected a number of ranks "
            "that share them equally. Set it to 1 or 2 or 4.",
        ),
        (
            ["cluster.gpusPerNode=2", "trainer.tensorParallelSize=2"],
            config(vocab_size=152_065),
            "spec.trainer.tensorParallelSize: got 2 for a model with a vocabulary of 152,065",
        ),
        (
            ["cluster.gpusPerNode=2", "rollout.tensorParallelSize=2"],
            config(num_attention_heads=28, num_key_value_heads=7),
            "spec.rollout.tensorParallelSize: got 2 for a model with 7 key-value heads",
        ),
    ],
)
def test_what_only_the_loaded_model_used_to_refuse(changes: list[str], model: dict[str, Any], message: str) -> None:
    """D11, D4: names of modules and layouts follow from config.json."""
    assert refusal(job(*changes), model).startswith(message)


def test_ranks_may_share_a_key_value_head() -> None:
    """Qwen2.5-1.5B has two. They are on two ranks each."""
    ranks = ["cluster.gpusPerNode=4", "trainer.tensorParallelSize=4", "rollout.tensorParallelSize=4"]
    model = config(num_attention_heads=12, hidden_size=1536, num_key_value_heads=2, vocab_size=151936)
    assert judge(job(*ranks), model).slower == ()


def test_a_gpu_without_flash_attention_is_refused() -> None:
    old = Gpu(16 * GB, 15 * GB, "Tesla T4", (7, 5))
    assert refusal(job(), SHAPES["0.5B"], old).startswith(
        "spec.cluster.gpusPerNode: got GPUs of compute capability 7.5 (Tesla T4), expected 8.0 or newer"
    )


def test_a_gpu_that_others_use_is_no_fault_of_the_manifest() -> None:
    """Such as a pod that is still ending: another attempt may find the memory free."""
    with pytest.raises(OutOfMemoryError, match=r"only 20\.0 of the GPU's 80\.0 GB are free: other processes use"):
        judge(job(), SHAPES["7B"], replace(GPUS[80], free=20 * GB))
    assert refusal(job(), LARGER["32B"], replace(GPUS[48], free=30 * GB)).startswith("spec: got a job that needs ")


def test_what_is_chosen_is_said() -> None:
    """`lorarl validate --gpu-memory` prints it."""
    assert "; chosen: trainer.tensorParallelSize 1, rollout.tensorParallelSize 1, " in str(
        judge(job(), SHAPES["1.5B"], GPUS[48])
    )
    set_alone = str(judge(job("trainer.recompute=full"), SHAPES["1.5B"], GPUS[48]))
    assert "chosen: " in set_alone and "recompute" not in set_alone


def test_the_verdict_takes_no_torch_and_little_time() -> None:
    """Nor any other package that takes seconds to import."""
    began = time.process_time()
    judge(job(), SHAPES["7B"], GPUS[80])
    assert time.process_time() - began < 5
    program = "import sys, lorarl_trainer.planning.verdict; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
