"""Makes the base models with random weights, and measures the GPU's matrix products. Prints one JSON object.

python -m side_by_side.prepare FOLDER 0.5b 7b
"""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import replace
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
BY_LAYERS = 40_000_000_000
"""Parameters of layers above which a model is written layer by layer: it may be larger than a GPU."""
FIRST_LAYER = ".layers.0."
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
    if (folder / Work().prompts_file).exists():
        return 0.0
    clock = time.perf_counter()
    layers = shape.num_hidden_layers
    if layers * shape.layer_parameters > BY_LAYERS:
        random_model(replace(shape, num_hidden_layers=1), device).save_pretrained(folder)
        repeat_layer(folder, layers, device)
    else:
        random_model(shape, device).save_pretrained(folder, max_shard_size=SHARD)  # a shard is copied to the host
    tokenizer(shape.vocab_size).save_pretrained(folder)
    write_prompts(folder, Work())
    for file in folder.iterdir():  # the trainer in pods is another user, and safetensors lets only the owner read
        file.chmod(0o644)
    return time.perf_counter() - clock


def random_model(shape: Shape, device: str) -> Any:
    """Return a model of this shape, with random weights in bf16."""
    import torch
    import transformers

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
            model.lm_head.weight[END] = 0
    return model


def repeat_layer(folder: Path, layers: int, device: str) -> None:
    """Give a model of one layer so many, each in a file: what is random there is drawn again."""
    import torch
    from safetensors.torch import load_file, save_file

    once = load_file(folder / "model.safetensors")
    first = {name: tensor for name, tensor in once.items() if FIRST_LAYER in name}
    spread = {name: tensor.float().std().item() for name, tensor in first.items()}
    files: dict[str, str] = {}

    def write(file: str, tensors: dict[str, Any]) -> None:
        save_file(tensors, folder / file, metadata={"format": "pt"})
        files.update(dict.fromkeys(tensors, file))

    write("model-rest.safetensors", {name: once[name] for name in once.keys() - first.keys()})
    for layer in range(layers):
        drawn = {
            name: torch.empty_like(tensor, device=device).normal_(0, spread[name]).cpu() if spread[name] else tensor
            for name, tensor in first.items()
        }
        named = {name.replace(FIRST_LAYER, f".layers.{layer}."): tensor for name, tensor in drawn.items()}
        write(f"model-layer-{layer}.safetensors", named)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}, indent=1))


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
