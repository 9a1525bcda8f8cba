"""Whether a job's base model can be trained, judged by its config.json: before any weight is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.devices.base import Gpu, Host
from lorarl_trainer.errors import InputError
from lorarl_trainer.models.layer_kinds import require_together
from lorarl_trainer.models.model_sizes import ModelSizes, sizes_of
from lorarl_trainer.models.shape import ModelShape
from lorarl_trainer.models.supported_models import family_of, require_supported
from lorarl_trainer.planning.backend_choice import chosen_instead
from lorarl_trainer.planning.choice import JobPlan, choose_plan
from lorarl_trainer.planning.choices_table import choices_line
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.planning.layouts import require_layout
from lorarl_trainer.planning.mixtures import require_mixture_job
from lorarl_trainer.planning.remedies import require_fit
from lorarl_trainer.planning.usual import decide

OLDEST_GPU = (8, 0)
"""Compute capability of the A100: the first with bf16 and flash attention."""
CPU_HEADS = (32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Widths of heads for which vLLM 0.26 has attention on CPUs."""
_UNKNOWN_GPU = Gpu(total=0, free=0)
_MERGED = ("vLLM by itself serves no adapters with this model, so serve it merged (lorarl merge)",)
_FROZEN = ("a layer's experts get no adapter, with all-linear too: they are one tensor, which stays as it is",)
_ATTENTION_ALONE = ("nor do MLPs: PEFT 0.21 takes their names for those of experts in this family, and drops them",)


@dataclass(frozen=True)
class Verdict:
    """What is known of a base model that can be trained.

    Attributes:
        slower: why it trains slower, takes more memory, or is served with more effort than others.
        plan: how each worker runs; None if its memory is not known.
    """

    family: str
    slower: tuple[str, ...]
    plan: JobPlan | None = None

    def __str__(self) -> str:
        chosen = [f"chosen: {choices_line(self.plan)}"] if self.plan and self.plan.seconds else []
        return "; ".join((f"the base model is of a tested family ({self.family})", *self.slower, *chosen))


def judge(spec: LoRARLJobSpec, config: Mapping[str, Any], there: Gpu | Host | None = None) -> Verdict:
    """Judge a job's base model.

    `there`: one worker's GPU, or on CPU its machine; None if it is not known.

    Raises:
        InputError: the model cannot be trained as the job asks, or not there; with the reason and the fix.
        OutOfMemoryError: other processes use the memory.
    """
    has_engines = spec.generates or spec.separate_engines is not None
    require_supported(
        config,
        spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens,
        rollouts=has_engines,
        backend=spec.trainer.backend,
    )
    model = sizes_of(config)
    require_mixture_job(spec, model)
    require_together(name for target in model.targets(spec.adapter) for name in target.hf_names)
    require_layout(spec, model)
    if model.served_merged and (elsewhere := _generates_elsewhere(spec)):
        raise InputError(
            elsewhere,
            "servers for a model with which vLLM by itself serves no adapters",
            "another model, or engines in the workers",
            f"Remove {elsewhere}: the workers' own engines take adapters with this model.",
        )
    if spec.publish and model.served_merged:
        raise InputError(
            "spec.publish",
            "a model with which vLLM by itself serves no adapters",
            "another model, or nothing to publish",
            "Remove spec.publish: merge the adapter when it is trained (lorarl merge), and serve the whole model.",
        )
    if has_engines and not spec.on_gpu:
        _require_heads_of_cpus(model)
    if has_engines and spec.on_gpu:
        _require_precision_of_gpus(spec, model)
    family = family_of(config).models
    told = *(_MERGED if model.served_merged else ()), *(_FROZEN if model.frozen_experts else ())
    told += _ATTENTION_ALONE if model.adapted_part else ()
    if there is None:
        plan = decide(spec, model, _UNKNOWN_GPU if spec.on_gpu else None)
        return Verdict(family, (*_slower(spec, plan), *told))
    if isinstance(there, Gpu):
        require_gpu(there)
    job_plan = choose_plan(spec, model, there)
    require_fit(job_plan)
    _require_fit_on_fewest(spec, model, there)
    return Verdict(family, (*_slower(spec, job_plan.execution), *told), job_plan)


def _require_fit_on_fewest(spec: LoRARLJobSpec, model: ModelSizes, there: Gpu | Host) -> None:
    """Refuse an elastic job that fits on all of its nodes alone: fewer share a base with larger parts for each."""
    nodes = spec.cluster.fewest_nodes
    if nodes == spec.cluster.nodes:
        return
    try:
        require_fit(choose_plan(spec.on_nodes(nodes), model, there))
    except InputError as error:
        raise InputError(
            "spec.cluster.minNodes",
            f"{nodes}, with {error.got}",
            "as many nodes as the job fits on",
            f"Raise cluster.minNodes, or remove it. Or make the job fit on {nodes}: {error.hint}",
        ) from error


def _generates_elsewhere(spec: LoRARLJobSpec) -> str | None:
    """Return the field that has servers of vLLM generate; None if the workers do, or nothing does."""
    if spec.separate_engines:
        return "spec.rollout.separateEngines"
    return "spec.rollout.servers" if spec.servers else None


def _require_heads_of_cpus(model: ModelShape) -> None:
    if model.head not in CPU_HEADS:
        raise InputError(
            "spec.model.uri",
            f"a config.json with heads of {model.head} (head_dim, or hidden_size / num_attention_heads)",
            f"one of {', '.join(map(str, CPU_HEADS))}, for which vLLM has attention on CPUs",
            "Choose another model, or train on GPUs: spec.cluster.gpusPerNode.",
        )


def _require_precision_of_gpus(spec: LoRARLJobSpec, model: ModelShape) -> None:
    if model.states and spec.precision == "fp32":
        layers = model.states[0].layers
        raise InputError(
            "spec.trainer.precision",
            f"fp32 for a model with {layers}",
            "bf16: fp32 was not run with them on a GPU",
            "Set spec.trainer.precision: bf16.",
        )


def require_gpu(gpu: Gpu) -> None:
    """Refuse a GPU that is too old. Raises InputError if it has no bf16 or no flash attention."""
    if gpu.capability is not None and gpu.capability < OLDEST_GPU:
        found, oldest = (".".join(map(str, capability)) for capability in (gpu.capability, OLDEST_GPU))
        raise InputError(
            "spec.cluster.gpusPerNode",
            f"GPUs of compute capability {found} ({gpu.name})",
            f"{oldest} or newer: flash attention needs it",
            "Use an A100, L4, L40S, H100 or newer, or spec.cluster.gpusPerNode: 0 for a small model.",
        )


def _slower(spec: LoRARLJobSpec, plan: ExecutionPlan) -> list[str]:
    chosen = chosen_instead(spec, plan.backend)
    found = [chosen] if chosen else []
    if not spec.on_gpu:
        return found
    if not plan.trainer.fused_layers and plan.backend == "megatron":
        why = f"spec.adapter.dropout is {spec.adapter.dropout:g}"
        found.append(f"layers are not fused, so they are slower and keep twice the activations: {why}")
    if plan.compute.name == "fp32":
        found.append("spec.trainer.precision is fp32, so attention runs without flash attention")
    if plan.layout.unshared:
        found.append(f"vLLM holds its own copy of the base model: {plan.layout.unshared}")
    return found
