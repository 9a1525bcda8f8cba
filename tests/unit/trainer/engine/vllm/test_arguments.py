"""The arguments for vLLM on a GPU, which takes no GPU."""

from __future__ import annotations

import pytest

from lorarl_trainer.engine.vllm.arguments import kernels_of_triton
from lorarl_trainer.engine.vllm.imports import environment
from lorarl_trainer.planning.execution import capture_sizes


@pytest.mark.parametrize("sequences", [1, 3, 8, 100, 128, 129, 512, 700, 1024])
def test_a_cuda_graph_fits_every_batch(sequences: int) -> None:
    sizes = capture_sizes(sequences)
    assert sizes == sorted(set(sizes)) and sizes[0] == 1 and sizes[-1] == sequences
    padded = {batch: min(size for size in sizes if size >= batch) - batch for batch in range(1, sequences + 1)}
    assert all(padding < batch if batch <= 128 else padding < 32 for batch, padding in padded.items())
    assert len(sizes) <= 36


@pytest.mark.parametrize(("told", "expected"), [("1", "0"), ("0", None), (None, None)])
def test_vllm_learns_that_there_is_no_multicast(
    monkeypatch: pytest.MonkeyPatch, told: str | None, expected: str | None
) -> None:
    monkeypatch.delenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", raising=False)
    if told is not None:
        monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", told)
    assert environment().get("VLLM_ALLREDUCE_USE_SYMM_MEM") == expected


@pytest.mark.parametrize(
    ("family", "config", "chosen"),
    [
        ("qwen2", {}, {}),
        ("gemma3_text", {"head_dim": 256}, {}),
        ("gemma4_text", {"head_dim": 256, "global_head_dim": 512}, {"attention_backend": "TRITON_ATTN"}),
        ("qwen3_5_text", {"head_dim": 256}, {"gdn_prefill_backend": "triton"}),
    ],
)
def test_kernels_that_each_start_would_compile_are_left_out(family: str, config: dict, chosen: dict) -> None:
    from transformers import AutoConfig

    text = AutoConfig.for_model(family, **config)
    assert kernels_of_triton(text, on_gpu=True) == chosen
    assert kernels_of_triton(text, on_gpu=False) == {}
