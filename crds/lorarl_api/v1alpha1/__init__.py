"""`LoRARLJob` v1alpha1: the contract between a user's manifest, the trainer and the operator.

These models are the only source of truth. The CRD, docs/reference.md and `lorarl validate` are generated from them.
Each field has a description, a unit and a range. Unknown keys are refused. Rules between fields are beside the fields.
"""

from lorarl_api.v1alpha1.adapter import (
    MAX_LORA_RANK,
    SERVED_RANKS,
    AdapterSpec,
    BaseModelSpec,
    Quantization,
    served_rank,
)
from lorarl_api.v1alpha1.algorithm import AlgorithmSpec
from lorarl_api.v1alpha1.cluster import CPUS_PER_GPU, SCHEDULING_PREFIXES, ClusterSpec
from lorarl_api.v1alpha1.common import (
    API_VERSION,
    CLAIMS_FOLDER,
    GROUP,
    KIND,
    REWARDS_FOLDER,
    VERSION,
    Model,
    claim_of,
)
from lorarl_api.v1alpha1.data import (
    CurriculumSpec,
    DataSource,
    DataSpec,
    EvalSource,
    EvalSpec,
    MixtureSource,
)
from lorarl_api.v1alpha1.environment import EnvironmentSpec, ToolFormat
from lorarl_api.v1alpha1.generated_data import EpisodesData, ReasoningGymData
from lorarl_api.v1alpha1.job import RULES_LATER, LoRARLJob, LoRARLJobSpec
from lorarl_api.v1alpha1.metadata import MAX_NAME, Metadata
from lorarl_api.v1alpha1.pods import (
    EnvironmentPodsSpec,
    HeadSpec,
    PodTemplateOverride,
    PodTemplateOverrides,
    RdmaSpec,
    Toleration,
    TopologySpec,
)
from lorarl_api.v1alpha1.publish import TARGETS, AibrixTarget, KserveTarget, PublishSpec, TargetName
from lorarl_api.v1alpha1.reward import NamedReward, RewardSpec
from lorarl_api.v1alpha1.reward_source import RewardSource
from lorarl_api.v1alpha1.rollout import RolloutSpec, SeparateEnginesSpec
from lorarl_api.v1alpha1.runtime import CheckpointSpec, MlflowSpec, TrackingSpec, TrainerSpec, WandbSpec
from lorarl_api.v1alpha1.schedule import (
    MAX_SCHEDULE_NAME,
    SCHEDULE_KIND,
    LoRARLSchedule,
    LoRARLScheduleSpec,
)
from lorarl_api.v1alpha1.schedule_status import MAX_ACTIVE, LoRARLScheduleStatus
from lorarl_api.v1alpha1.scoring import CodeReward, LengthPenalty, RepetitionPenalty, ServerReward
from lorarl_api.v1alpha1.status import (
    MAX_PUBLISHED,
    AdapterStatus,
    Condition,
    FailureStatus,
    GpuSecondsStatus,
    LoRARLJobStatus,
    MetricsStatus,
    PublishedStatus,
    PublishedVersion,
)
from lorarl_api.v1alpha1.sweep import (
    MAX_TRIALS,
    SWEEP_KIND,
    HalvingStopping,
    LoRARLSweep,
    LoRARLSweepSpec,
    MedianStopping,
    SweepObjective,
    SweepStopping,
)
from lorarl_api.v1alpha1.sweep_status import (
    MAX_POINTS,
    BestTrialStatus,
    CurvePoint,
    LoRARLSweepStatus,
    RungStatus,
    StoppedStatus,
    TrialPhase,
    TrialStatus,
)
from lorarl_api.v1alpha1.template import (
    CLUSTER_TEMPLATE_KIND,
    KEYS,
    LOCKABLE,
    PARTS,
    TEMPLATE_KIND,
    TemplateRef,
    TemplateSpec,
    fields_of,
)

__all__ = [
    "API_VERSION",
    "CLAIMS_FOLDER",
    "CLUSTER_TEMPLATE_KIND",
    "CPUS_PER_GPU",
    "GROUP",
    "KEYS",
    "KIND",
    "LOCKABLE",
    "MAX_ACTIVE",
    "MAX_LORA_RANK",
    "MAX_NAME",
    "MAX_POINTS",
    "MAX_PUBLISHED",
    "MAX_SCHEDULE_NAME",
    "MAX_TRIALS",
    "PARTS",
    "REWARDS_FOLDER",
    "RULES_LATER",
    "SCHEDULE_KIND",
    "SCHEDULING_PREFIXES",
    "SERVED_RANKS",
    "SWEEP_KIND",
    "TARGETS",
    "TEMPLATE_KIND",
    "VERSION",
    "AdapterSpec",
    "AdapterStatus",
    "AibrixTarget",
    "AlgorithmSpec",
    "BaseModelSpec",
    "BestTrialStatus",
    "CheckpointSpec",
    "ClusterSpec",
    "CodeReward",
    "Condition",
    "CurriculumSpec",
    "CurvePoint",
    "DataSource",
    "DataSpec",
    "EnvironmentPodsSpec",
    "EnvironmentSpec",
    "EpisodesData",
    "EvalSource",
    "EvalSpec",
    "FailureStatus",
    "GpuSecondsStatus",
    "HalvingStopping",
    "HeadSpec",
    "KserveTarget",
    "LengthPenalty",
    "LoRARLJob",
    "LoRARLJobSpec",
    "LoRARLJobStatus",
    "LoRARLSchedule",
    "LoRARLScheduleSpec",
    "LoRARLScheduleStatus",
    "LoRARLSweep",
    "LoRARLSweepSpec",
    "LoRARLSweepStatus",
    "MedianStopping",
    "Metadata",
    "MetricsStatus",
    "MixtureSource",
    "MlflowSpec",
    "Model",
    "NamedReward",
    "PodTemplateOverride",
    "PodTemplateOverrides",
    "PublishSpec",
    "PublishedStatus",
    "PublishedVersion",
    "Quantization",
    "RdmaSpec",
    "ReasoningGymData",
    "RepetitionPenalty",
    "RewardSource",
    "RewardSpec",
    "RolloutSpec",
    "RungStatus",
    "SeparateEnginesSpec",
    "ServerReward",
    "StoppedStatus",
    "SweepObjective",
    "SweepStopping",
    "TargetName",
    "TemplateRef",
    "TemplateSpec",
    "Toleration",
    "ToolFormat",
    "TopologySpec",
    "TrackingSpec",
    "TrainerSpec",
    "TrialPhase",
    "TrialStatus",
    "WandbSpec",
    "claim_of",
    "fields_of",
    "served_rank",
]
