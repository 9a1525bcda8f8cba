"""The targets of `spec.publish`: what is listed for each, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lorarl_api.v1alpha1 import LoRARLJobSpec, TargetName
from lorarl_operator.decide.models import Job
from lorarl_operator.decide.served import Servers
from lorarl_operator.kube.client import Manifest
from lorarl_operator.kube.resources import LLM_SERVICES, MODEL_ADAPTERS, PODS, Resource
from lorarl_operator.manifests import llm_inference_service, llm_service_pods, model_adapter


@dataclass(frozen=True, slots=True)
class Target:
    """Servers of one product.

    Attributes:
        product: What has to be installed.
        resource: Its objects, which are written.
        listed: The kinds to list in a job's namespace, each with the labels that select among them.
        read: Makes the servers from what was listed, in the same order.
    """

    product: str
    resource: Resource
    listed: Callable[[Job], Sequence[tuple[Resource, str]]]
    read: Callable[[Job, LoRARLJobSpec, Sequence[list[Manifest]]], Servers]


TARGETS: dict[TargetName, Target] = {
    "aibrix": Target(
        "AIBrix",
        MODEL_ADAPTERS,
        lambda job: [(MODEL_ADAPTERS, model_adapter.selector(job))],
        lambda job, spec, lists: model_adapter.ModelAdapters(job, lists[0]),
    ),
    "kserve": Target(
        "KServe",
        LLM_SERVICES,
        lambda job: [(LLM_SERVICES, llm_inference_service.ACCEPTS), (PODS, llm_service_pods.SELECTOR)],
        lambda job, spec, lists: llm_inference_service.LlmInferenceServices(job, spec, lists[0], lists[1]),
    ),
}
