"""The rules of `rollout.servers`, each broken once and kept once."""

from __future__ import annotations

from typing import Any

from unit.contract.environment_cases import PLAYED
from unit.contract.manifests import SFT, TAUGHT, VOLUMES, Case

URL = "http://vllm:8000"
SERVERS: dict[str, Any] = VOLUMES | {"spec.rollout.servers": [URL], "spec.rollout.serverFolder": "/mnt/adapters"}
ENGINES = "spec.rollout.separateEngines"
SEPARATE: dict[str, Any] = {ENGINES: {"count": 2}}
FP8 = {"spec.model.quantization": "fp8"}
REPLAY = "spec.trainer.routerReplay"
CORRECTED = {"spec.algorithm": {"type": "grpo", "correction": {"preset": "decoupled_token_is"}}}
STALENESS = "spec.rollout.maxStaleness"
AHEAD = SERVERS | CORRECTED | {STALENESS: 1}
PLAYED_AHEAD = AHEAD | PLAYED


def _of_engines(field: str, bad: object, good: object | None = None) -> Case:
    """A setting that engines in the workers honour, and servers do not."""
    path = f"spec.rollout.{field}"
    kept = SERVERS if good is None else SERVERS | {path: good}
    return Case(f"no {field} with servers", SERVERS | {path: bad}, kept, path, f"Remove rollout.{field}.")


def _alone(field: str, value: object) -> Case:
    path = f"spec.rollout.{field}"
    return Case(
        f"no {field} without servers", {path: value}, SERVERS | {path: value}, path, f"Remove rollout.{field}, or name"
    )


SERVER_CASES = [
    Case(
        "servers have addresses",
        SERVERS | {"spec.rollout.servers": ["vllm:8000"]},
        SERVERS | {"spec.rollout.servers": ["https://vllm/v1/", URL]},
        "spec.rollout.servers",
        "Write each as http://HOST:PORT.",
    ),
    Case(
        "an address has no other path",
        SERVERS | {"spec.rollout.servers": [f"{URL}/v1/completions"]},
        SERVERS | {"spec.rollout.servers": [f"{URL}/v1"]},
        "spec.rollout.servers",
        "Write each as http://HOST:PORT.",
    ),
    Case(
        "addresses of servers have no credentials",
        SERVERS | {"spec.rollout.servers": ["http://me:secret@vllm:8000"]},
        SERVERS,
        "spec.rollout.servers",
        "Remove them from the addresses, and renew them.",
    ),
    Case(
        "each server once",
        SERVERS | {"spec.rollout.servers": [URL, URL]},
        SERVERS | {"spec.rollout.servers": [URL, "http://vllm:8001"]},
        "spec.rollout.servers",
        "Name each server once.",
    ),
    Case(
        "the folder of servers is absolute",
        SERVERS | {"spec.rollout.serverFolder": "mnt/adapters"},
        SERVERS,
        "spec.rollout.serverFolder",
        "Write it as /FOLDER.",
    ),
    _alone("serverFolder", "/mnt/adapters"),
    Case(
        "the workers' own engines have no time limit",
        {"spec.rollout.serverTimeoutSeconds": 60.0},
        SERVERS | {"spec.rollout.serverTimeoutSeconds": 60.0},
        "spec.rollout.serverTimeoutSeconds",
        "Remove rollout.serverTimeoutSeconds, add rollout.separateEngines",
    ),
    _alone("credentialsSecret", "vllm-key"),
    Case(
        "nothing is generated ahead without servers",
        CORRECTED | {STALENESS: 1},
        AHEAD,
        STALENESS,
        "Remove rollout.maxStaleness, add rollout.separateEngines",
    ),
    Case("stale samples need a correction", SERVERS | {STALENESS: 1}, AHEAD, STALENESS, "Add algorithm.correction"),
    Case(
        "only groups of rollouts are generated ahead",
        SERVERS | TAUGHT | {STALENESS: 1},
        SERVERS | TAUGHT,
        STALENESS,
        "Remove rollout.maxStaleness.",
    ),
    Case(
        "no refills of what is generated ahead",
        AHEAD | {"spec.algorithm.maxRefills": 2},
        AHEAD | {"spec.algorithm.maxRefills": 0},
        STALENESS,
        "remove algorithm.maxRefills",
    ),
    Case(
        "no curriculum beside what is generated ahead",
        AHEAD | {"spec.data.curriculum": {}},
        AHEAD,
        STALENESS,
        "Remove one of the two",
    ),
    Case(
        "a divergence is kept by fresh samples",
        AHEAD | {"spec.algorithm.klCoefficient": 0.1, "spec.algorithm.kl": {"target": 0.01}},
        AHEAD | {"spec.algorithm.klCoefficient": 0.1, "spec.algorithm.kl": {"estimator": "k2"}},
        STALENESS,
        "Remove algorithm.kl.target",
    ),
    Case(
        "no answers are continued by servers",
        SERVERS | CORRECTED | {"spec.rollout.partial": {"extraPrompts": 4}},
        SERVERS | CORRECTED,
        "spec.rollout.partial",
        "Remove rollout.partial.",
    ),
    _of_engines("topP", 0.9, 1.0),
    _of_engines("topK", 50),
    _of_engines("minP", 0.1, 0.0),
    _of_engines("adapterSync", "disk", "tensor"),
    _of_engines("verifySync", True, False),
    Case(
        "no offload with servers",
        SERVERS | {"spec.rollout.offload": [], "spec.cluster.gpusPerNode": 1},
        SERVERS | {"spec.cluster.gpusPerNode": 1},
        "spec.rollout.offload",
        "Remove rollout.offload.",
    ),
    _of_engines("gpuMemoryFraction", 0.5),
    _of_engines("tensorParallelSize", 1),
    Case("no quantized base with servers", SERVERS | FP8, SERVERS, "spec.model.quantization", "or rollout.servers."),
    Case("engines are in one place", SERVERS | SEPARATE, SERVERS, ENGINES, "Remove one of the two."),
    Case(
        "an engine on CPU is not split",
        {f"{ENGINES}.tensorParallelSize": 2},
        {"spec.cluster.gpusPerNode": 1},
        f"{ENGINES}.tensorParallelSize",
        "Remove tensorParallelSize, or set",
    ),
    Case(
        "all pods have the same claim",
        SEPARATE | {"spec.cluster": {"gpusPerNode": 2, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}}},
        {f"{ENGINES}.tensorParallelSize": 2}
        | {"spec.cluster": {"gpusPerNode": 2, "gpuClaim": {"deviceClass": "gpu.nvidia.com"}}},
        f"{ENGINES}.tensorParallelSize",
        "Set it to cluster.gpusPerNode",
    ),
    Case("separate engines generate something", SFT | SEPARATE, SFT, ENGINES, "Remove rollout.separateEngines."),
    Case(
        "no replay of routing with servers",
        SERVERS | {REPLAY: True},
        SERVERS | {REPLAY: False},
        REPLAY,
        "Remove trainer.routerReplay.",
    ),
    Case(
        "servers generate something",
        SFT | SERVERS,
        SFT,
        "spec.rollout.servers",
        "Remove rollout.servers.",
    ),
]
