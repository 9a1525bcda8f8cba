"""How separate engines are started: which GPUs are whose, each one's command and variables, and its process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJobSpec, SeparateEnginesSpec
from lorarl_trainer.devices.host_cpus import host_cpus
from lorarl_trainer.devices.host_memory import host_memory
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.devices.vllm_environment import vllm_environment
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.server_process import API_KEY, LOADS_ADAPTERS, ServerProcess, server_command
from lorarl_trainer.models.model_sizes import read_model_sizes
from lorarl_trainer.planning.execution import capture_sizes
from lorarl_trainer.planning.precision import PRECISIONS
from lorarl_trainer.planning.separate import plan_engine, processes_on_engines_host, sequences_at_once
from lorarl_trainer.servers.hosts import LOOPBACK
from lorarl_trainer.storage.downloads import read_model_config

ENGINES = "spec.rollout.separateEngines"


@dataclass(frozen=True)
class GpuShares:
    """Which of a machine's GPUs are whose, by the names that CUDA_VISIBLE_DEVICES takes. None on a CPU."""

    trainer: tuple[str, ...]
    engines: tuple[tuple[str, ...], ...]


def share_gpus(spec: LoRARLJobSpec, gpus: Sequence[str]) -> GpuShares:
    """Give the first GPUs to the trainer, and the next ones to one separate engine after the other.

    Raises:
        InputError: there are too few.
    """
    engines = spec.separate_engines
    assert engines is not None, "a job without them divides nothing"
    if not spec.on_gpu:
        return GpuShares((), ((),) * engines.count)
    trained, each = spec.cluster.gpus_per_node, engines.tensor_parallel_size
    if len(gpus) < trained + spec.engine_gpus:
        raise InputError(
            ENGINES,
            f"{engines.count} x {each} GPU(s) for engines beside {trained} for the trainer",
            f"at most {len(gpus)} in all, the number of GPUs in this machine",
            "Lower its count or spec.cluster.gpusPerNode, or remove it, so that both share each GPU.",
        )
    starts = range(trained, trained + spec.engine_gpus, each)
    return GpuShares(tuple(gpus[:trained]), tuple(tuple(gpus[start : start + each]) for start in starts))


def start_engine(
    spec: LoRARLJobSpec, model: Path, port: int, key: str, log: Path, gpus: Sequence[str] = ()
) -> ServerProcess:
    """Start an engine on this machine. See `engine_command` and `engine_environment`; `log` takes what it prints."""
    with_images, cache_gib = "vision_config" in read_model_config(model), 0
    if not spec.on_gpu:
        plan = plan_engine(spec, read_model_sizes(model), host_memory())
        assert plan is not None, "the job has separate engines"
        cache_gib = -(-plan.execution.engine.kv_cache_bytes // 2**30)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = engine_command(spec, model, port, with_images=with_images)
    return ServerProcess(command, log, engine_environment(spec, gpus, key, cache_gib))


def engine_command(spec: LoRARLJobSpec, model: Path, port: int, *, with_images: bool) -> list[str]:
    """Return the command of one engine, which generates as an engine in a worker does.

    Args:
        spec: the job.
        model: the folder with the trainer's own base model.
        port: where it listens on the loopback interface.
        with_images: whether the model takes images too. It is trained on text, and the other part is not loaded.
    """
    engines, rollout, sequences = spec.separate_engines, spec.rollout, sequences_at_once(spec)
    assert engines is not None, "a job without them starts none"
    common = server_command(
        str(model),
        dtype=PRECISIONS[spec.precision].dtype,
        host=LOOPBACK,
        port=port,
        rank=spec.adapter.rank,
        adapters=rollout.max_staleness + 1,
    )
    return [
        *(*common, "--max-model-len", str(rollout.max_prompt_tokens + rollout.max_response_tokens)),
        *("--max-num-seqs", str(sequences), "--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),  # what is sampled is the manifest's alone
        *("--mamba-ssm-cache-dtype", "float32"),  # as the trainer has it
        *("--disable-uvicorn-access-log", *(["--language-model-only"] if with_images else [])),
        *(_on_gpu(engines, sequences) if spec.on_gpu else _on_cpu()),
    ]


def _on_gpu(engines: SeparateEnginesSpec, sequences: int) -> list[str]:
    # As in a worker: torch.compile takes 25 s of a start, and only decoding gains from graphs.
    graphs = {
        "mode": 0,
        "cudagraph_mode": "FULL_DECODE_ONLY",
        "cudagraph_capture_sizes": capture_sizes(sequences),
    }
    return [
        *("--tensor-parallel-size", str(engines.tensor_parallel_size)),
        *("--gpu-memory-utilization", f"{engines.gpu_memory_fraction:g}"),
        # Logits in float32, as the trainer computes them.
        *("--hf-overrides", json.dumps({"head_dtype": "float32"})),
        *("--compilation-config", json.dumps(graphs)),
    ]


def _on_cpu() -> list[str]:
    # vLLM 0.26 ends on a CPU when it splits a prompt.
    return ["--enforce-eager", "--no-enable-chunked-prefill"]


def engine_environment(spec: LoRARLJobSpec, gpus: Sequence[str], key: str, cache_gib: int) -> dict[str, str]:
    """Return the variables of one engine's process.

    Args:
        spec: the job.
        gpus: its own, by their names; none on a CPU, and where all that this process sees are its own.
        key: what its clients have to send.
        cache_gib: on a CPU, the size of its KV cache in GiB.
    """
    threads = max(1, host_cpus() // processes_on_engines_host(spec))
    device = get_device(spec.cluster.gpus_per_node).environment(threads)
    own = {} if spec.on_gpu else {"VLLM_CPU_KVCACHE_SPACE": str(cache_gib)}
    own |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return {**device, **vllm_environment(), **LOADS_ADAPTERS, API_KEY: key, **own}
