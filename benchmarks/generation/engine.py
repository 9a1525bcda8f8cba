"""An engine with random weights of Qwen2.5 shapes: with our LoRA layers, with vLLM's, or without LoRA."""

from __future__ import annotations

import argparse
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.lora.config import AdapterConfig
from lorarl_trainer.models.model_sizes import shape_of
from lorarl_trainer.planning.execution import kv_cache_bytes
from lorarl_trainer.samples.sampling import Sampling
from lorarl_trainer.storage.downloads import read_model_config
from lorarl_trainer.timing import StartClock
from side_by_side import ours
from side_by_side.work import SHAPES, Work

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
NO_SLOT = SimpleNamespace(request=None, version=0, version_in_vllm=0)
"""Stands for the adapter's slot in an engine without LoRA."""


@contextlib.contextmanager
def variant_of_vllm(variant: str, arguments: dict[str, Any]) -> Iterator[None]:
    """Give every engine dummy weights, vLLM's own layers unless it is `one_adapter`, and no LoRA if it is `none`."""
    from lorarl_trainer.engine.vllm import binding, engine, names
    from lorarl_trainer.engine.vllm.imports import import_vllm

    import_vllm()
    import vllm

    real = vllm.EngineArgs

    def engine_arguments(**given: Any) -> Any:
        if variant == "none":
            given = {name: value for name, value in given.items() if "lora" not in name}
        extra = {
            "load_format": "dummy",
            "compilation_config": given["compilation_config"] | arguments.get("compilation_config", {}),
        }
        return real(**(given | arguments | extra))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(vllm, "EngineArgs", engine_arguments))
        if variant != "one_adapter":
            gone = {"gone": binding.used("vllm:gone")}  # a name that vLLM lacks turns lorarl's layers off
            stack.enter_context(mock.patch.dict(names.AdapterLayers.names, gone))
        if variant == "none":
            stack.enter_context(mock.patch.object(engine, "AdapterSlot", lambda *_: NO_SLOT))
        yield


def start(
    options: argparse.Namespace,
    variant: str,
    folder: Path,
    parts: StartClock,
    stop_token_ids: tuple[int, ...] = (),
    kv_cache_most: int | None = None,
) -> Any:
    """Start an engine. Its KV cache holds all samples at their longest, or takes `kv_cache_most` bytes."""
    import torch.distributed as dist
    from transformers import Qwen2Config

    from lorarl_trainer.engine.vllm.config import EngineConfig
    from lorarl_trainer.engine.vllm.engine import RolloutEngine

    torch.cuda.set_device(0)
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    known = {"max_position_embeddings": 32768, "dtype": "bfloat16", "architectures": ["Qwen2ForCausalLM"]}
    Qwen2Config(**known, **SHAPES[options.size].config).save_pretrained(folder)
    work = Work(
        prompts=options.groups,
        group=options.group_size,
        prompt_tokens=options.prompt,
        response_tokens=options.tokens,
        rank=options.rank,
        alpha=2 * options.rank,
    )
    device = CudaDevice()
    _, plan = ours.planned(folder, work, device.memory())
    kv_cache = kv_cache_bytes(shape_of(read_model_config(folder)), plan)
    config = EngineConfig(
        model_path=folder,
        plan=replace(plan.engine, kv_cache_bytes=min(kv_cache, kv_cache_most or kv_cache)),
        ranks=1,
        dtype=plan.compute.dtype,
        expert_rank=None,
        rank=options.rank,
        target_modules=LINEARS,
        max_prompt_tokens=options.prompt,
        max_response_tokens=options.tokens,
        sampling=Sampling(work.temperature),
        stop_token_ids=stop_token_ids,
    )
    return RolloutEngine(device, config, seed=0, base=None, clock=parts)


def push_adapter(engine: Any, options: argparse.Namespace) -> None:
    shape = SHAPES[options.size]
    adapter = {}
    for layer in range(shape.num_hidden_layers):
        for name, (inputs, outputs) in zip(LINEARS, shape.linears[: len(LINEARS)], strict=True):
            prefix = f"model.layers.{layer}.{'mlp' if name in LINEARS[4:] else 'self_attn'}.{name}"
            adapter[f"{prefix}.lora_A.weight"] = (0.02 * torch.randn(options.rank, inputs)).bfloat16()
            adapter[f"{prefix}.lora_B.weight"] = (0.02 * torch.randn(outputs, options.rank)).bfloat16()
    engine.slot.load(adapter, AdapterConfig(options.rank, 2 * options.rank), version=1)


def facts(engine: Any) -> None:
    config = engine.llm_engine.vllm_config
    runner = engine.llm_engine.collective_rpc(lambda worker: worker.model_runner)[0]
    sizes = config.compilation_config.cudagraph_capture_sizes
    print(
        f"  runner {'V2' if config.use_v2_model_runner else 'V1'}, "
        f"asynchronous scheduling {config.scheduler_config.async_scheduling}, "
        f"batched tokens {config.scheduler_config.max_num_batched_tokens}, "
        f"graphs {config.compilation_config.cudagraph_mode.name} "
        f"{len(sizes)} to {max(sizes, default=0)}, attention {runner.attn_groups[0][0].backend.get_name()}"
    )
    if config.lora_config:
        print(
            "  LoRA layers",
            dict(Counter(type(m).__name__ for m in runner.lora_manager._adapter_manager.modules.values())),
        )
