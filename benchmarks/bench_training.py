"""Measures one training step on one GPU, without vLLM: tokens/s, MFU, peak memory, and where the GPU's time goes.

python benchmarks/bench_training.py --size 0.5b
python benchmarks/bench_training.py --size 7b --tokens-per-micro-batch 16384 --profile

The model has random weights, made on the GPU. The step is that of a GRPO job: prompts with a
group of completions each, the loss of PPO, and AdamW on the adapter.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from lorarl_trainer.devices.cuda import CudaDevice

os.environ.update(CudaDevice().environment(threads=8), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")

import numpy as np
import torch
import torch.distributed as dist

from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.samples.agreement import AgreementLimits
from lorarl_trainer.samples.requests import LossChoice, UpdateRequest
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.samples.wire import Samples
from lorarl_trainer.timing import StartClock
from side_by_side import ours
from side_by_side.prepare import make_model
from side_by_side.work import SHAPES, Work

PEAK_TFLOPS = 790
"""Measured with large bf16 matrices on an H200."""
CATEGORIES = {
    "attention": r"flash|fmha|cudnn.*(attn|sdpa)|mha",
    "matrix products": r"nvjet|gemm|cutlass|xmma|cublas|sm90_|splitKreduce",
    "norms": r"norm",
    "rotary, heads": r"rope|rotary|heads",
    "sums, softmax": r"reduce|softmax|logsumexp",
    "gathers": r"index|gather|scatter|embedding",
    "copies, joins": r"copy|CatArray|memcpy|memset|fill",
    "optimizer": r"multi_tensor|foreach",
    "elementwise": r"elementwise|triton|silu|swiglu|add|mul",
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--size", choices=SHAPES, default="0.5b")
    arguments.add_argument("--backend", choices=("megatron", "fsdp"), default="megatron")
    arguments.add_argument("--adapter", choices=("canonical_lora", "lora"), default="canonical_lora")
    arguments.add_argument("--rank", type=int, default=32)
    arguments.add_argument("--prompts", type=int, default=64)
    arguments.add_argument("--completions", type=int, default=8, help="per prompt")
    arguments.add_argument("--prompt-tokens", type=int, default=64)
    arguments.add_argument("--response-tokens", type=int, default=256)
    arguments.add_argument("--tokens-per-micro-batch", type=int, nargs="+", default=[16384])
    arguments.add_argument("--recompute", choices=("none", "selective", "full"), default="none")
    arguments.add_argument("--padded", action="store_true", help="padded rows, as on the CPU")
    arguments.add_argument(
        "--megatron-layers", action="store_true", help="Megatron's own layers and adapters, for comparison"
    )
    arguments.add_argument("--steps", type=int, default=3, help="timed steps, after one to warm up")
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    arguments.add_argument("--out", type=Path, help="write the figures to this JSON file")
    chosen = arguments.parse_args()

    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    torch.cuda.set_device(0)
    device = CudaDevice()
    backend = get_backend(chosen.backend)
    backend.import_libraries(device)
    from lorarl_trainer.backends.optimizer import AdapterOptimizer
    from lorarl_trainer.backends.update import Trainer

    clock = time.perf_counter()
    folder = model_folder(chosen.size, chosen.folder)
    work = Work(
        prompts=chosen.prompts,
        group=chosen.completions,
        prompt_tokens=chosen.prompt_tokens,
        response_tokens=chosen.response_tokens,
        rank=chosen.rank,
        alpha=2 * chosen.rank,
        learning_rate=1e-5,
    )
    changes = (
        f"spec.adapter.type={chosen.adapter}",
        f"spec.trainer.recompute={chosen.recompute}",
        f"spec.trainer.backend={chosen.backend}",
    )
    spec, plan = ours.planned(folder, work, device.memory(), *changes)
    fused = plan.trainer.fused_layers and not chosen.padded and not chosen.megatron_layers
    plan = replace(plan, trainer=replace(plan.trainer, packed=not chosen.padded, fused_layers=fused))
    model = backend.load_model(device, spec, folder, plan, StartClock("benchmark", "model"))
    optimizer = AdapterOptimizer(model, spec.trainer, fused=True)
    print(
        f"model ready after {time.perf_counter() - clock:.1f} s, {torch.cuda.memory_allocated() / 1e9:.1f} GB",
        flush=True,
    )
    request = step_request(chosen)
    rows = []
    for budget in chosen.tokens_per_micro_batch:
        trainer = Trainer(device, model, optimizer, budget, dropout=0.0)
        torch.cuda.reset_peak_memory_stats()
        try:
            trainer.update(request)
            torch.cuda.synchronize()
            seconds = []
            for _ in range(chosen.steps):
                clock = time.perf_counter()
                result = trainer.update(request)
                seconds.append((time.perf_counter() - clock, result.seconds["optimizer"]))
        except torch.OutOfMemoryError as error:
            print(f"budget {budget}: {str(error).splitlines()[0]}", flush=True)
            optimizer.zero_grad()
            torch.cuda.empty_cache()
            continue
        step, in_optimizer = min(seconds)
        useful = useful_work(chosen, model)
        rows.append(
            {
                "size": chosen.size,
                "adapter": chosen.adapter,
                "layout": "padded" if chosen.padded else "packed",
                "layers": "fused" if fused else chosen.backend,
                "recompute": chosen.recompute,
                "tokens_per_micro_batch": budget,
                "micro_batches": sum(1 for _ in model.micro_batches(request.samples, budget)),
                "seconds": round(step, 4),
                "optimizer_ms": round(in_optimizer * 1e3, 2),
                "tokens_per_second": round(useful["tokens"] / step),
                "mfu": round(useful["flops"] / step / PEAK_TFLOPS / 1e12, 3),
                "mfu_4N": round(useful["flops_4N"] / step / PEAK_TFLOPS / 1e12, 3),
                "peak_GB": round(torch.cuda.max_memory_allocated() / 1e9, 1),
                "loss": result.metrics["loss"],
                "grad_norm": result.metrics["grad_norm"],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        if chosen.profile:
            profile(trainer, request)
    if chosen.out:
        chosen.out.write_text(json.dumps(rows, indent=1))


def model_folder(size: str, root: Path) -> Path:
    """Return the folder of a model with random weights, made on the GPU."""
    folder = root / f"lorarl-bench-{size}"
    make_model(SHAPES[size], folder, "cuda")
    torch.cuda.empty_cache()
    return folder


def step_request(chosen: argparse.Namespace) -> UpdateRequest:
    """Return a step's samples: random tokens, advantages around zero."""
    stream = np.random.default_rng(0)
    samples = []
    for _ in range(chosen.prompts):
        prompt = stream.integers(0, 150_000, chosen.prompt_tokens)
        for _ in range(chosen.completions):
            tokens = np.concatenate([prompt, stream.integers(0, 150_000, chosen.response_tokens)])
            rollout = np.full(chosen.response_tokens, -11.9, np.float32)
            samples.append(Sample(tokens, chosen.prompt_tokens, float(stream.normal()), rollout))
    return UpdateRequest(
        samples=Samples(samples),
        loss=LossChoice("policy_gradient", clip_range=0.2),
        total_tokens=sum(sample.response_length for sample in samples),
        temperature=1.0,
        learning_rate=1e-5,
        seed=0,
        on_policy=True,
        limits=AgreementLimits(tolerance=float("inf")),
    )


def useful_work(chosen: argparse.Namespace, model: Any) -> dict[str, float]:
    """Return tokens and floating-point operations that a step needs, each prompt counted once.

    Per parameter and token, a frozen matrix takes 2 operations forward and 2 backward, and an adapter 2 and 4. The
    output layer only sees response tokens. Attention is left out. `flops_4N` counts 4 for every parameter and token, as
    lower bounds in the literature do.
    """
    shape = SHAPES[chosen.size]
    responses = chosen.prompts * chosen.completions * chosen.response_tokens
    tokens = responses + chosen.prompts * chosen.prompt_tokens
    adapter = sum(p.numel() for p in model.parameters.values())
    linear = (
        sum(p.numel() for name, p in model.module.named_parameters() if ".layers." in name and p.dim() == 2) - adapter
    )
    head = shape.head_parameters
    everything = linear + head * (1 if shape.tie_word_embeddings else 2)
    return {
        "tokens": tokens,
        "flops": tokens * (4 * linear + 6 * adapter) + responses * 4 * head,
        "flops_4N": tokens * 4 * everything,
    }


def profile(trainer: Any, request: UpdateRequest) -> None:
    """Print where the GPU's time of one step goes, by category and by kernel."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        clock = time.perf_counter()
        trainer.update(request)
        torch.cuda.synchronize()
        wall = time.perf_counter() - clock
    by_kernel: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            by_kernel[event.name] += event.device_time_total
            calls[event.name] += 1
    by_category: Counter[str] = Counter()
    for name, microseconds in by_kernel.items():
        category = next((c for c, pattern in CATEGORIES.items() if re.search(pattern, name, re.IGNORECASE)), "other")
        by_category[category] += microseconds
    busy = sum(by_kernel.values())
    print(f"profiled step {wall:.3f} s, kernels {busy / 1e6:.3f} s, {sum(calls.values())} kernels")
    for category, microseconds in by_category.most_common():
        print(f"  {category:18} {microseconds / 1e3:9.1f} ms {100 * microseconds / busy:5.1f}%")
    for name, microseconds in by_kernel.most_common(40):
        print(f"  {microseconds / 1e3:9.1f} ms {calls[name]:6} x {microseconds / calls[name]:8.1f} us  {name[:150]}")


if __name__ == "__main__":
    main()
