"""Where the time of generation goes on one GPU: our RolloutEngine with random weights of Qwen2.5 shapes and one LoRA adapter.

python benchmarks/profile_generation.py --size 7b              our layers, vLLM's own LoRA layers, no LoRA at all: 2 minutes
python benchmarks/profile_generation.py --size 0.5b --variants one_adapter
python benchmarks/profile_generation.py --size 7b --variants none --engine '{"compilation_config": {"mode": 3}}'     with torch.compile
python benchmarks/profile_generation.py --size 7b --products   the linear layers' products alone: seconds

It prints, a variant: seconds of the start, tokens/s, milliseconds of the host's work a decode step by part, and the GPU's busy share
and time by kind of kernel over some decode steps. `--out` takes all of it as JSON, one line a variant.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "crds"), str(ROOT / "trainer_image")]
from lorarl_trainer.devices.cuda import CudaPlatform  # noqa: E402
from lorarl_trainer.timing import StartClock  # noqa: E402

os.environ.update(CudaPlatform().environment(threads=8), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from side_by_side.work import SHAPES  # noqa: E402

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
VARIANTS = ("one_adapter", "punica", "none")
KINDS = (
    ("attention", r"flash|fmha|attention|reshape_and_cache"),
    ("LoRA (Punica)", r"lora_shrink|lora_expand"),
    ("sampler", r"gumbel|topk_log_softmax|ranks_kernel|argmax|temperature_kernel"),
    ("products", r"gemm|cutlass|nvjet|xmma|splitK|sm90_|cublas"),
    ("norm, activation, rope", r"rms|norm|silu|act_and_mul|rotary|triton_"),
    ("copies", r"memcpy|memset"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(SHAPES), required=True)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--groups", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--runs", type=int, default=2, help="full runs to time; the fastest counts")
    parser.add_argument("--products", action="store_true", help="time the linear layers' products alone")
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON: arguments of vllm.LLM to try")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
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
        engine = start(options, Path(folder), parts)
        starting = time.perf_counter() - clock
    if variant != "none":
        push_adapter(engine, options)
    facts(engine)
    prompts = [prompt for prompt in random_prompts(options) for _ in range(options.group_size)]
    run = 0

    def generate() -> Any:
        nonlocal run
        run += 1
        engine.llm.reset_prefix_cache()
        return [
            c
            for _, part in engine.generate(prompts, [1_000_000 * run + index for index in range(len(prompts))])
            for c in part
        ]

    list(engine.generate(prompts[: options.group_size], list(range(options.group_size))))
    seconds = []
    for _ in range(options.runs):
        clock = time.perf_counter()
        completions = generate()
        seconds.append(time.perf_counter() - clock)
    made = sum(len(c.tokens) for c in completions)
    assert made == len(prompts) * options.tokens, f"{made} tokens"
    best = min(seconds)
    of_start = {
        part.name.removeprefix("engine/"): part.seconds for part in parts.parts if part.name.startswith("engine/")
    }
    print(f"  start {starting:.1f} s: " + ", ".join(f"{name} {seconds:.1f}" for name, seconds in of_start.items()))
    print(f"  {len(prompts)} x {options.tokens} tokens in {[round(s, 2) for s in seconds]} s")
    print(f"  {made / best:.0f} tokens/s, {1e3 * best / options.tokens:.2f} ms a step", flush=True)
    return {
        "start_s": starting,
        "start_parts_s": of_start,
        "seconds": seconds,
        "tokens_per_s": made / best,
        "host_ms": host_times(engine, options, generate),
        "gpu": kernel_times(engine, options, generate),
    }


@contextlib.contextmanager
def variant_of_vllm(variant: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Dummy weights in any case, and for what ours is compared with vLLM's own LoRA layers, or no LoRA."""
    from lorarl_trainer.engine.vllm import engine
    from lorarl_trainer.engine.vllm.patches import linear

    engine.import_vllm()
    import vllm

    real = vllm.LLM

    def llm(**given: Any) -> Any:
        if variant == "none":
            given = {name: value for name, value in given.items() if "lora" not in name}
        extra = {
            "load_format": "dummy",
            "compilation_config": given["compilation_config"] | arguments.get("compilation_config", {}),
        }
        return real(**(given | arguments | extra))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(vllm, "LLM", llm))
        if variant != "one_adapter":
            stack.enter_context(mock.patch.object(linear, "one_adapter_layers", contextlib.nullcontext))
            stack.enter_context(mock.patch.object(linear, "skip_adapter_lookup", lambda worker: None))
        yield


def start(options: argparse.Namespace, folder: Path, parts: StartClock) -> Any:
    import torch.distributed as dist
    from transformers import Qwen2Config

    from lorarl_trainer.engine.vllm.engine import EngineConfig, RolloutEngine

    torch.cuda.set_device(0)
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    known = {"max_position_embeddings": 32768, "dtype": "bfloat16", "architectures": ["Qwen2ForCausalLM"]}
    Qwen2Config(**known, **SHAPES[options.size].config).save_pretrained(folder)
    config = EngineConfig(
        model_path=folder,
        precision="bf16",
        rank=options.rank,
        target_modules=LINEARS,
        max_prompt_tokens=options.prompt,
        max_response_tokens=options.tokens,
        sequences=min(options.groups * options.group_size, 1024),
        temperature=1.0,
        stop_token_ids=(),
        tensor_parallel_size=1,
        kv_cache_bytes=None,
        offload=frozenset(),
    )
    return RolloutEngine(CudaPlatform(), config, seed=0, base=None, clock=parts)


def push_adapter(engine: Any, options: argparse.Namespace) -> None:
    from lorarl_trainer.engine.vllm.adapter_slots import AdapterSlot

    shape = SHAPES[options.size]
    adapter = {}
    for layer in range(shape.num_hidden_layers):
        for name, (inputs, outputs) in zip(LINEARS, shape.linears[: len(LINEARS)], strict=True):
            prefix = f"model.layers.{layer}.{'mlp' if name in LINEARS[4:] else 'self_attn'}.{name}"
            adapter[f"{prefix}.lora_A.weight"] = (0.02 * torch.randn(options.rank, inputs)).bfloat16()
            adapter[f"{prefix}.lora_B.weight"] = (0.02 * torch.randn(outputs, options.rank)).bfloat16()
    AdapterSlot(engine.vllm_worker).load(adapter, options.rank, 2 * options.rank, version=1)
    engine.use_adapter(1, "/adapter-is-in-memory")


def random_prompts(options: argparse.Namespace) -> list[list[int]]:
    return np.random.default_rng(0).integers(1000, 100_000, (options.groups, options.prompt)).tolist()


def facts(engine: Any) -> None:
    config = engine.llm.llm_engine.vllm_config
    runner = engine.llm.collective_rpc(lambda worker: worker.model_runner)[0]
    sizes = config.compilation_config.cudagraph_capture_sizes
    print(
        f"  runner {'V2' if config.use_v2_model_runner else 'V1'}, asynchronous scheduling {config.scheduler_config.async_scheduling}, "
        f"batched tokens {config.scheduler_config.max_num_batched_tokens}, graphs {config.compilation_config.cudagraph_mode.name} "
        f"{len(sizes)} to {max(sizes, default=0)}, attention {runner.attn_groups[0][0].backend.get_name()}"
    )
    if config.lora_config:
        print(
            "  LoRA layers",
            dict(Counter(type(m).__name__ for m in runner.lora_manager._adapter_manager.modules.values())),
        )


def host_times(engine: Any, options: argparse.Namespace, generate: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds a decode step of each part of the host's work. `wait` is for the GPU: where it is near 0, the host is the brake."""
    from vllm.v1.worker.gpu.async_utils import AsyncOutput

    core = engine.llm.llm_engine.engine_core.engine_core
    runner = engine.vllm_worker.model_runner
    places = {
        "add_request": (core, "add_request"),
        "step": (core, "step_fn"),
        "schedule": (core.scheduler, "schedule"),
        "execute_model": (core.model_executor, "execute_model"),
        "sample_tokens": (core.model_executor, "sample_tokens"),
        "wait": (torch.cuda.Event, "synchronize"),
        "get_output": (AsyncOutput, "get_output"),
        "update_from_output": (core.scheduler, "update_from_output"),
    }
    # What is within execute_model and sample_tokens.
    within = {
        "update_requests": (runner, "update_requests"),
        "prepare_inputs": (runner, "prepare_inputs"),
        "prepare_attn": (runner, "prepare_attn"),
        "attention metadata": (runner.model_state, "prepare_attn"),
        "graph": (runner.cudagraph_manager, "run_fullgraph"),
        "logits": (runner.model, "compute_logits"),
        "sampler": (type(runner.sampler), "__call__"),
        "copies": (AsyncOutput, "__init__"),
        "postprocess": (runner, "postprocess_sampled"),
    }
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timer(*arguments: Any, **keywords: Any) -> Any:
            clock = time.perf_counter()
            try:
                return call(*arguments, **keywords)
            finally:
                spent[name] += time.perf_counter() - clock

        return timer

    with contextlib.ExitStack() as stack:
        for name, (owner, attribute) in (places | within).items():
            stack.enter_context(mock.patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
        timed("generate", generate)()
    spent["get_output"] -= spent["wait"]
    details = {name: 1e3 * spent.pop(name, 0.0) / options.tokens for name in within}
    total, step = spent.pop("generate"), spent.pop("step")
    adding = spent.pop("add_request")
    print(
        f"  host: {total:.2f} s in all, of it {1e3 * adding:.0f} ms taking {options.groups * options.group_size} requests in"
    )
    spent["rest of step"] = step - sum(spent.values())
    ms = {name: 1e3 * seconds / options.tokens for name, seconds in spent.items()}
    print(
        "  a step, ms: "
        + ", ".join(f"{name} {value:.2f}" for name, value in ms.items())
        + f"; in all {1e3 * step / options.tokens:.2f}"
    )
    print(
        "  within execute_model and sample_tokens: "
        + ", ".join(f"{name} {value:.2f}" for name, value in details.items()),
        flush=True,
    )
    return ms | details | {"add_requests_in_all": 1e3 * adding}


def kernel_times(
    engine: Any, options: argparse.Namespace, generate: Callable[[], Any], first: int = 100, steps: int = 20
) -> dict[str, Any]:
    """The GPU's busy share and its time by kind of kernel over some decode steps in the middle of a run."""
    core = engine.llm.llm_engine.engine_core.engine_core
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    step, count = core.step_fn, 0

    def counted() -> Any:
        nonlocal count
        count += 1
        if count == first:
            profiler.start()
        if count == first + steps:
            torch.cuda.synchronize()
            profiler.stop()
        return step()

    with mock.patch.object(core, "step_fn", counted):
        generate()
    spans = []
    names: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in profiler.profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.duration_ns():
            spans.append((event.start_ns(), event.start_ns() + event.duration_ns()))
            names[event.name()] += event.duration_ns()
            calls[event.name()] += 1
    spans.sort()
    busy, reached = 0, spans[0][0]
    for begin, end in spans:
        busy += max(0, end - max(begin, reached))
        reached = max(reached, end)
    wall = reached - spans[0][0]
    kinds: Counter[str] = Counter()
    for name, duration in names.items():
        kinds[next((kind for kind, pattern in KINDS if re.search(pattern, name, re.IGNORECASE)), "other")] += duration
    scale = 1e-6 / steps
    print(f"  GPU over {steps} steps: {wall * scale:.2f} ms a step, busy {100 * busy / wall:.1f}%")
    print(
        "  by kind, ms a step: " + ", ".join(f"{kind} {duration * scale:.2f}" for kind, duration in kinds.most_common())
    )
    for name, duration in names.most_common(25):
        print(f"    {duration * scale:7.3f} ms {calls[name] / steps:6.1f} x  {name[:130]}")
    sys.stdout.flush()
    return {
        "ms_a_step": wall * scale,
        "busy": busy / wall,
        "kinds_ms": {kind: duration * scale for kind, duration in kinds.items()},
        "kernels_ms": {name[:200]: [duration * scale, calls[name] / steps] for name, duration in names.most_common(40)},
    }


def products(options: argparse.Namespace) -> dict[str, Any]:
    """Time the decoder's linear layers in a CUDA graph, each layer with weights of its own, with the adapter in several ways."""
    from torch.nn.functional import linear

    from lorarl_trainer.engine.vllm.patches.linear import adapted_linear

    shape = SHAPES[options.size]
    hidden, mlp, rank = shape.hidden_size, shape.intermediate_size, options.rank
    kv = hidden // shape.num_attention_heads * shape.num_key_value_heads
    layers = [
        (inputs, outputs, slices)
        for _ in range(shape.num_hidden_layers)
        for inputs, outputs, slices in (
            (hidden, hidden + 2 * kv, 3),
            (hidden, hidden, 1),
            (hidden, 2 * mlp, 2),
            (mlp, hidden, 1),
        )
    ]
    make = {"device": "cuda", "dtype": torch.bfloat16}
    weights = [torch.randn(outputs, inputs, **make) * 0.02 for inputs, outputs, _ in layers]
    a = [torch.randn(slices * rank, inputs, **make) * 0.02 for inputs, _, slices in layers]
    b = [torch.randn(outputs, slices * rank, **make) * 0.02 for _, outputs, slices in layers]
    side = torch.cuda.Stream()

    def after(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return linear(x, w).addmm_(linear(x, a), b.t())

    def beside(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            low = linear(x, a)
        output = linear(x, w)
        torch.cuda.current_stream().wait_stream(side)
        return output.addmm_(low, b.t())

    ways: dict[str, Callable[..., torch.Tensor]] = {
        "base alone": lambda x, w, a, b: linear(x, w),
        "adapter first": lambda x, w, a, b: adapted_linear(x, w, None, a, b),
        "adapter after": after,
        "A beside the base": beside,
        "A and B alone": lambda x, w, a, b: linear(linear(x, a), b),
        "A alone": lambda x, w, a, b: linear(x, a),
    }
    found: dict[str, Any] = {}
    for tokens in (512, 256, 64):
        inputs = {width: torch.randn(tokens, width, **make) for width in {inputs for inputs, _, _ in layers}}
        for name, way in ways.items():

            def run(way: Callable[..., torch.Tensor] = way, inputs: dict[int, torch.Tensor] = inputs) -> None:
                for index, (width, _, _) in enumerate(layers):
                    way(inputs[width], weights[index], a[index], b[index])

            found[f"{tokens} {name}"] = ms = in_graph(run)
            flops = 2 * tokens * sum(inputs * outputs for inputs, outputs, _ in layers)
            print(
                f"  {tokens} tokens, {name}: {ms:.2f} ms a step ({flops / ms * 1e-9:.0f} TFLOP/s of the base)",
                flush=True,
            )
    return {"products_ms": found}


def in_graph(run: Callable[[], None], repeats: int = 10) -> float:
    """Milliseconds of one replay."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


if __name__ == "__main__":
    main()
