"""Whether an LLMInferenceService can load a job's adapter, as far as the object says it.

What it leaves open (a base model from another place, options of vLLM from a configuration elsewhere) is not judged:
then its pods say it, when they load the adapter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec

_VLLM_MAX_RANK = 16
"""vLLM's `--max-lora-rank` if it is not given."""
_HUB = "hf://"


def misfit(job: LoRARLJobSpec, service: Mapping[str, Any], adapters: int) -> str:
    """Why the service would not load the adapter, and what to change; empty if nothing says so.

    `service`: its spec. `adapters`: how many it would have with this one.
    """
    model = service.get("model") or {}
    lora = model.get("lora") or {}
    base = str(model.get("uri") or "")
    if _hub_name(base) and _hub_name(job.model.uri) and _hub_name(base) != _hub_name(job.model.uri):
        return f"its spec.model.uri is {base}, and the adapter was trained on {job.model.uri}. Name another service."
    rank, limit = job.adapter.rank, _max_rank(service, lora)
    if limit is not None and rank > limit:
        found = f"is {limit}" if "maxRank" in lora else f"is not set, and vLLM takes ranks up to {limit}"
        return f"its spec.model.lora.maxRank {found}. Set it to at least {rank}, the job's adapter.rank."
    for field in ("maxCpuAdapters", "maxAdapters"):
        if (most := lora.get(field)) is not None:
            # More would push each other out of memory, with each request.
            if adapters > most:
                text = f"its spec.model.lora.{field} is {most}, and with this one it would have {adapters} adapters"
                return f"{text}. Raise it to at least {adapters}, or remove an adapter."
            break
    if (service.get("storageInitializer") or {}).get("enabled") is False:
        return "its spec.storageInitializer.enabled is false, so KServe cannot download from s3://. Set it to true."
    return ""


def _max_rank(service: Mapping[str, Any], lora: Mapping[str, Any]) -> int | None:
    """The largest rank that its vLLM takes; None if options that are not read here may say it."""
    if (given := lora.get("maxRank")) is not None:
        return int(given)
    elsewhere = service.get("baseRefs") or "VLLM_ADDITIONAL_ARGS" in json.dumps(service)
    return None if elsewhere or "--max-lora-rank" in json.dumps(service) else _VLLM_MAX_RANK


def _hub_name(uri: str) -> str:
    """A model's name on the hub, without a revision; empty for another place."""
    return uri.removeprefix(_HUB).partition(":")[0].strip("/").lower() if uri.startswith(_HUB) else ""
