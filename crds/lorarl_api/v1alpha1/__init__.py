"""`LoRARLJob` v1alpha1: the contract between a user's manifest, the trainer and the operator.

These models are the only source of truth. The CRD, docs/reference.md and `lorarl validate` are generated from them.
Each field has a description, a unit and a range. Unknown keys are refused. Rules between fields are beside the fields.
"""

from lorarl_api.v1alpha1.adapter import MAX_LORA_RANK, SERVED_RANKS, AdapterSpec, BaseModelSpec, served_rank
from lorarl_api.v1alpha1.algorithm import AlgorithmSpec, NamedReward, RewardSpec
from lorarl_api.v1alpha1.cluster import SCHEDULING_PREFIXES, ClusterSpec
from lorarl_api.v1alpha1.common import API_VERSION, CLAIMS_FOLDER, GROUP, KIND, VERSION, Model, claim_of
from lorarl_api.v1alpha1.data import DataSource, DataSpec, EvalSource, EvalSpec
from lorarl_api.v1alpha1.job import RULES_LATER, LoRARLJob, LoRARLJobSpec
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.pods import (
    HeadSpec,
    PodTemplateOverride,
    PodTemplateOverrides,
    RdmaSpec,
    Toleration,
    TopologySpec,
)
from lorarl_api.v1alpha1.runtime import CheckpointSpec, MlflowSpec, RolloutSpec, TrackingSpec, TrainerSpec, WandbSpec
from lorarl_api.v1alpha1.status import (
    AdapterStatus,
    Condition,
    FailureStatus,
    GpuSecondsStatus,
    LoRARLJobStatus,
    MetricsStatus,
)

__all__ = [
    "API_VERSION",
    "CLAIMS_FOLDER",
    "GROUP",
    "KIND",
    "MAX_LORA_RANK",
    "MAX_NAME",
    "RULES_LATER",
    "SCHEDULING_PREFIXES",
    "SERVED_RANKS",
    "VERSION",
    "AdapterSpec",
    "AdapterStatus",
    "AlgorithmSpec",
    "BaseModelSpec",
    "CheckpointSpec",
    "ClusterSpec",
    "Condition",
    "DataSource",
    "DataSpec",
    "EvalSource",
    "EvalSpec",
    "FailureStatus",
    "GpuSecondsStatus",
    "HeadSpec",
    "LoRARLJob",
    "LoRARLJobSpec",
    "LoRARLJobStatus",
    "Metadata",
    "MetricsStatus",
    "MlflowSpec",
    "Model",
    "NamedReward",
    "PodTemplateOverride",
    "PodTemplateOverrides",
    "RdmaSpec",
    "RewardSpec",
    "RolloutSpec",
    "Toleration",
    "TopologySpec",
    "TrackingSpec",
    "TrainerSpec",
    "WandbSpec",
    "claim_of",
    "served_rank",
]
