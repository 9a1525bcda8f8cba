"""Makes the base models with random weights, and measures the GPU's matrix products. Prints one JSON object.

python -m side_by_side.prepare FOLDER 0.5b 7b
"""

from __future__ import annotations

import json
import platform
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from side_by_side.work import SHAPES, Shape, Work, write_prompts

PACKAGES = (
    "torch",
    "vllm",
    "megatron-core",
    "megatron-bridge",
    "transformer-engine",
    "transformers",
    "peft",
    "trl",
    "ray",
    "triton",
)
POSITIONS = 131_072
SHARD = "4GB"
END = 1
SPECIAL = {"pad": "<pad>", "eos": "<eos>", "unk": "<unk>"}
VISION = {"hidden_size": 64, "intermediate_size": 64, "depth": 1, "num_heads": 2, "out_hidden_size": 2560}
MATMUL_SIZE, MATMUL_SECONDS = 8192, 2.0


def main() -> None:
    import torch

    folder, names = Path(sys.argv[1]), sys.argv[2:]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = {name: make_model(SHAPES[name], folder / name, device) for name in names}
    facts: dict[str, Any] = {"machine": machine(), "versions": versions(), "model_seconds": seconds}
    if device == "cuda":
        facts["matmul_tflops"] = matmul_tflops()
    print(json.dumps(facts), flush=True)


def make_model(shape: Shape, folder: Path, device: str) -> float:
    """Write a model of this shape, a tokenizer and the prompts unless they exist; return the seconds it took."""
    import torch
    import transformers

    if (folder / Work().prompts_file).exists():
        return 0.0
    clock = time.perf_counter()
    own = shape.config | {
        "max_position_embeddings": POSITIONS,
        "pad_token_id": 0,
        "eos_token_id": END,
        "bos_token_id": None,
    }
    if not shape.more:
        own["rope_theta"] = 1e6  # those of the others are by kind of layer
    if shape.sees:
        family = own.pop("model_type")
        tied = {"tie_word_embeddings": shape.tie_word_embeddings}
        config = transformers.AutoConfig.for_model(family, text_config=own, vision_config=VISION, **tied)
    else:
        config = transformers.AutoConfig.for_model(**own)
    maker = transformers.AutoModelForImageTextToText if shape.sees else transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    with torch.device(device):
        model = maker.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):  # of a random number, which may be 0 in bf16
                parameter.clamp_(min=-5)
            elif shape.model_type == "gemma4_text" and name.endswith("q_norm.weight"):
                parameter.fill_(parameter.numel() ** -0.5)  # nothing else scales its scores
    if shape.ragged:
        with torch.no_grad():
            model.lm_head.weight[END] = 0
    model.save_pretrained(folder, max_shard_size=SHARD)  # a shard is copied to the host's memory
    tokenizer(shape.vocab_size).save_pretrained(folder)
    write_prompts(folder, Work())
    for file in folder.iterdir():  # the trainer in pods is another user, and safetensors lets only the owner read
        file.chmod(0o644)
    return time.perf_counter() - clock


def tokenizer(vocabulary: int) -> Any:
    """Return a tokenizer of Qwen2's kind. A digit is a token; the vocabulary is filled up."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    known = [*SPECIAL.values(), *sorted(ByteLevel.alphabet())]
    words = [*known, *(f"w{number}" for number in range(len(known), vocabulary))]
    return Qwen2Tokenizer(
        vocab={word: number for number, word in enumerate(words)},
        merges=[],
        **{f"{name}_token": token for name, token in SPECIAL.items()},
    )


def matmul_tflops() -> float:
    """Return the TFLOP/s of a large bf16 matrix product on random values, once the clocks have settled."""
    import torch

    a, b = (torch.randn(MATMUL_SIZE, MATMUL_SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    best, started = 0.0, time.perf_counter()
    while time.perf_counter() - started < MATMUL_SECONDS:
        begin.record()
        for _ in range(10):
            a @ b
        end.record()
        end.synchronize()
        best = max(best, 10 * 2 * MATMUL_SIZE**3 / (begin.elapsed_time(end) / 1000) / 1e12)
    return best


def machine() -> dict[str, Any]:
    """Describe the GPUs and the processor."""
    import os

    import torch

    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "gpus": [{"name": gpu.name, "bytes": gpu.total_memory} for gpu in gpus],
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter, if they are installed."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
