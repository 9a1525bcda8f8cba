"""Profiles generation on one GPU: our RolloutEngine with random weights of Qwen2.5 shapes and one LoRA adapter.

python benchmarks/profile_generation.py --size 7b              our layers, vLLM's LoRA layers, no LoRA: 2 minutes
python benchmarks/profile_generation.py --size 0.5b --variants one_adapter
python benchmarks/profile_generation.py --size 7b --products   only the products of the linear layers: seconds
python benchmarks/profile_generation.py --size 7b --variants one_adapter --prompt 2048 --running 1 4 16 64
                                                               the end of a step, when few are left: a minute

With torch.compile: --variants none --engine '{"compilation_config": {"mode": 3}}'

For each variant it prints the seconds of the start, tokens/s, the host's milliseconds per decode step by part, and the
GPU's busy share and time by kind of kernel over some decode steps. `--out` gets all of it as JSON, one line per
variant.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "crds"), str(ROOT / "trainer_image")]
from lorarl_trainer.devices.cuda import CudaDevice  # noqa: E402
from lorarl_trainer.timing import StartClock  # noqa: E402

os.environ.update(CudaDevice().environment(threads=8), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from generation.engine import facts, push_adapter, start, variant_of_vllm  # noqa: E402
from generation.products import products  # noqa: E402
from generation.times import host_times, kernel_times  # noqa: E402
from side_by_side.work import SHAPES  # noqa: E402

VARIANTS = ("one_adapter", "punica", "none")
PROFILED = 100, 50
"""The first decode step to profile, and how many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SHAPES), required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--running", type=int, nargs="+", help="numbers of requests  [default: all]")
    parser.add_argument("--runs", type=int, default=2, help="full runs to time; the fastest counts")
    parser.add_argument("--products", action="store_true", help="time the linear layers' products alone")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON: arguments of vLLM's engine to try")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not options.products and options.tokens < sum(PROFILED):
        parser.error(f"--tokens {options.tokens}: at least {sum(PROFILED)}, to profile {PROFILED[1]} decode steps")
    for variant in ["products"] if options.products else options.variants:
        print(f"\n=== {options.size} {variant} {options.engine or ''}", flush=True)
        found = products(options) if options.products else measure(options, variant)
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({"size": options.size, "variant": variant, "rank": options.rank, **found}) + "\n")
        gc.collect()
        torch.cuda.empty_cache()


def measure(options: argparse.Namespace, variant: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, variant_of_vllm(variant, options.engine):
        clock = time.perf_counter()
        parts = StartClock("engine", "process")
        engine = start(options, variant, Path(folder), parts)
        starting = time.perf_counter() - clock
    if variant != "none":
        push_adapter(engine, options)
    facts(engine)
    of_start = {
        part.name.removeprefix("engine/"): part.seconds for part in parts.parts if part.name.startswith("engine/")
    }
    print(f"  start {starting:.1f} s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in of_start.items()))
    prompts = [prompt for prompt in random_prompts(options) for _ in range(options.group_size)]
    made_of(engine, prompts[: options.group_size], 0)
    found: dict[str, Any] = {"start_s": starting, "start_parts_s": of_start}
    if options.running is None:
        return found | generation(engine, options, prompts)
    alone = prompts[:: options.group_size]
    return found | {f"{count} running": generation(engine, options, alone[:count]) for count in options.running}


def made_of(engine: Any, prompts: list[list[int]], first_seed: int) -> list[Any]:
    """Generate a completion of each prompt."""
    from lorarl_trainer.samples.requests import GenerationRequest

    asked = enumerate(prompts)
    engine.submit({at: GenerationRequest(prompt, seed=first_seed + at) for at, prompt in asked})
    return [completion for _, part in engine.results() for completion in part]


def generation(engine: Any, options: argparse.Namespace, prompts: list[list[int]]) -> dict[str, Any]:
    """Generate for these prompts, again and again."""
    run = 0

    def generate() -> list[Any]:
        nonlocal run
        run += 1
        if options.running is None:  # few requests are timed without their prompts
            engine.llm_engine.reset_prefix_cache()
        return made_of(engine, prompts, 1_000_000 * run)

    seconds = []
    for _ in range(options.runs):
        clock = time.perf_counter()
        completions = generate()
        seconds.append(time.perf_counter() - clock)
    made = sum(len(c.tokens) for c in completions)
    assert made == len(prompts) * options.tokens, f"{made} tokens"
    best = min(seconds)
    print(f"  {len(prompts)} x {options.tokens} tokens in {[round(s, 2) for s in seconds]} s")
    print(f"  {made / best:.0f} tokens/s, {1e3 * best / options.tokens:.2f} ms a step", flush=True)
    return {
        "seconds": seconds,
        "tokens_per_s": made / best,
        "host_ms": host_times(engine, options, generate),
        "gpu": kernel_times(engine, generate, *PROFILED),
    }


def random_prompts(options: argparse.Namespace) -> list[list[int]]:
    return np.random.default_rng(0).integers(1000, 100_000, (options.groups, options.prompt)).tolist()


if __name__ == "__main__":
    main()
