"""The rules between the parts of a job's spec."""

from __future__ import annotations

from lorarl_api.rules import Rule
from lorarl_api.v1alpha1.algorithm_types import (
    FROM_ANSWERS,
    FROM_DATA,
    TAUGHT,
    WITHOUT_REWARD,
    is_one_of,
    listed,
    those,
)
from lorarl_api.v1alpha1.environment import ENVIRONMENT_CLUSTER_RULES, environment_rules
from lorarl_api.v1alpha1.layout_rules import LAYOUT_RULES
from lorarl_api.v1alpha1.partial_rules import TRAINS_WITHOUT_REWARD, off_policy_rules
from lorarl_api.v1alpha1.publish import publish_rules
from lorarl_api.v1alpha1.quantization_rules import quantization_rules
from lorarl_api.v1alpha1.row_rules import ROW_RULES
from lorarl_api.v1alpha1.server_rules import SERVER_CLUSTER_RULES, server_job_rules

_FROM_DATA = is_one_of("self.algorithm.type", FROM_DATA)
_TAUGHT = is_one_of("self.algorithm.type", TAUGHT)
_IS_FROM_DATA = f"algorithm.type is {listed(FROM_DATA, 'or')}"
_IS_WITHOUT_REWARD = f"algorithm.type is {listed(WITHOUT_REWARD, 'or')}"
_IS_TAUGHT = f"algorithm.type is {listed(TAUGHT, 'or')}"
_SOME_GENERATED = "self.data.evals.exists(e, has(e.reward))"
"""An evaluation with a reward is of completions, also where the training generates none."""
_UNSET_WITHOUT_ROLLOUTS = ("topK", "offload", "servers", "separateEngines")


def _default_without_rollouts(field: str, cel: str, default: str) -> Rule:
    """A setting of rollouts. The API server writes defaults before it looks at rules, so only another value is seen."""
    return Rule(
        f"rollout.{field}",
        f"!({_FROM_DATA}) || {_SOME_GENERATED} || {cel}",
        f"be {default} if {_IS_FROM_DATA} and no evaluation has a reward, so that nothing is generated",
        f"Remove rollout.{field}.",
    )


SPEC_RULES: tuple[Rule, ...] = (
    Rule(
        "reward",
        f"{TRAINS_WITHOUT_REWARD} || has(self.reward) || has(self.rewards) || "
        "has(self.environment) && !has(self.environment.tools)",
        f"be set unless {_IS_WITHOUT_REWARD}, if there are no rewards and no environment that rewards",
        "Add a reward, for example reward: {type: exact}, or set algorithm.type to sft.",
    ),
    Rule(
        "reward",
        f"!({TRAINS_WITHOUT_REWARD}) || !has(self.reward)",
        f"not be set if {_IS_FROM_DATA}, which learn from the data's own answers, or if {_IS_TAUGHT}, which learns "
        "from a teacher",
        "Remove reward, or set algorithm.type to grpo. An evaluation in data.evals may have its own.",
    ),
    Rule(
        "rewards",
        f"!({TRAINS_WITHOUT_REWARD}) || !has(self.rewards)",
        f"not be set if {_IS_FROM_DATA}, which learn from the data's own answers, or if {_IS_TAUGHT}, which learns "
        "from a teacher",
        "Remove rewards, or set algorithm.type to grpo. An evaluation in data.evals may have its own.",
    ),
    Rule(
        "data.curriculum",
        f"!({TRAINS_WITHOUT_REWARD}) || !has(self.data.curriculum)",
        f"not be set if {_IS_WITHOUT_REWARD}, which score no completions",
        "Remove data.curriculum, or set algorithm.type to grpo.",
    ),
    Rule(
        "data.curriculum",
        "!has(self.data.curriculum) || "
        "(has(self.algorithm.groupSize) ? self.algorithm.groupSize > 1 : "
        f"!({is_one_of('self.algorithm.type', those(lambda about: about.group_size == 1))}))",
        "not be set for groups of one completion, whose pass rate can only be 0 or 1",
        "Set algorithm.groupSize, for example to 8, or remove data.curriculum.",
    ),
    Rule(
        "data.eval",
        f"!({_TAUGHT}) || !has(self.data.eval)",
        f"not be set if {_IS_TAUGHT}: it is scored as the training is, which has no reward",
        "Use data.evals: [{name: held-out, uri: ..., reward: {type: exact}}].",
    ),
    Rule(
        "data.evals",
        f"!({_TAUGHT}) || self.data.evals.all(e, has(e.reward))",
        "have a reward each if algorithm.type is distillation, whose training has none",
        "Add a reward to each, for example reward: {type: exact}.",
    ),
    *(
        Rule(
            f"rollout.{field}",
            f"!({_TAUGHT}) || {cel}",
            f"be {usual} if algorithm.type is distillation: the teacher's probabilities are those of all tokens at "
            "temperature 1",
            f"Remove rollout.{field}.",
        )
        for field, cel, usual in (
            ("temperature", "self.rollout.temperature == 1.0", "1, the default,"),
            ("topP", "self.rollout.topP == 1.0", "1, the default,"),
            ("topK", "!has(self.rollout.topK)", "absent"),
            ("minP", "self.rollout.minP == 0.0", "0, the default,"),
        )
    ),
    Rule(
        "rewards",
        "!has(self.reward) || !has(self.rewards)",
        "not be set beside reward",
        "Move reward into the list with a name, or remove rewards.",
    ),
    Rule(
        "rewards",
        "!has(self.rewards) || self.rewards.all(one, self.rewards.exists_one(other, other.name == one.name))",
        "have names that differ",
        "Rename a reward, since each name is recorded as reward/NAME.",
    ),
    Rule(
        "rewards",
        "!has(self.rewards) || self.rewards.exists(one, one.weight != 0.0)",
        "have at least one weight that is not 0",
        "Set the weight of a reward that the model should learn, for example to 1.",
    ),
    Rule(
        "reward.length.freeTokens",
        "!has(self.reward) || !has(self.reward.length) || "
        "self.reward.length.freeTokens < self.rollout.maxResponseTokens",
        "be less than rollout.maxResponseTokens, or no completion is long enough to cost anything",
        "Lower freeTokens, or raise rollout.maxResponseTokens.",
    ),
    Rule(
        "rewards",
        "!has(self.rewards) || self.rewards.all(one, !has(one.length) || "
        "one.length.freeTokens < self.rollout.maxResponseTokens)",
        "have a length.freeTokens less than rollout.maxResponseTokens, or no completion is long enough to cost "
        "anything",
        "Lower length.freeTokens, or raise rollout.maxResponseTokens.",
    ),
    Rule(
        "rollout.logprobTolerance",
        f"!has(self.rollout.logprobTolerance) || !({_FROM_DATA})",
        f"not be set if {_IS_FROM_DATA}, which have no rollouts to compare with",
        "Remove rollout.logprobTolerance.",
    ),
    Rule(
        "checkpoint.keepBest",
        "!has(self.checkpoint.keepBest) || has(self.checkpoint.keepBest.eval) || has(self.data.eval)",
        "have an evaluation to choose by",
        "Add data.eval, or name one of data.evals in keepBest.eval.",
    ),
    Rule(
        "checkpoint.keepBest.eval",
        "!has(self.checkpoint.keepBest) || !has(self.checkpoint.keepBest.eval) || "
        "self.data.evals.exists(e, e.name == self.checkpoint.keepBest.eval)",
        "be the name of one of data.evals",
        "Name one of data.evals, or remove it and set data.eval to choose by that.",
    ),
    Rule(
        "checkpoint.keepBest.passAtK",
        "!has(self.checkpoint.keepBest) || !has(self.checkpoint.keepBest.passAtK) || "
        "!has(self.checkpoint.keepBest.eval) || self.data.evals.exists("
        "e, e.name == self.checkpoint.keepBest.eval && self.checkpoint.keepBest.passAtK in e.passAtK)",
        "be in passAtK of the evaluation",
        "Add it to the evaluation's passAtK, or remove it.",
    ),
    Rule(
        "data.evals",
        f"!({_FROM_DATA}) || self.data.evals.all(e, has(e.reward) || e.temperature == 0.0)",
        f"have a temperature only beside a reward if {_IS_FROM_DATA}, which generate nothing else",
        "Give the evaluation a reward, or remove its temperature.",
    ),
    *ROW_RULES,
    Rule(
        "rollout.temperature",
        f"!({_FROM_DATA}) || self.rollout.temperature == 1.0",
        f"be 1, the default, if {_IS_FROM_DATA}, which have no rollouts",
        "Remove rollout.temperature.",
    ),
    _default_without_rollouts("topP", "self.rollout.topP == 1.0", "1, the default,"),
    _default_without_rollouts("minP", "self.rollout.minP == 0.0", "0, the default,"),
    _default_without_rollouts("stop", "size(self.rollout.stop) == 0", "empty"),
    _default_without_rollouts("adapterSync", "self.rollout.adapterSync == 'tensor'", "tensor, the default,"),
    _default_without_rollouts("verifySync", "!self.rollout.verifySync", "false, the default,"),
    # 0.5 and 1 were the defaults once, and the API server wrote them into objects.
    _default_without_rollouts(
        "gpuMemoryFraction",
        "!has(self.rollout.gpuMemoryFraction) || self.rollout.gpuMemoryFraction == 0.5",
        "absent or 0.5",
    ),
    _default_without_rollouts(
        "tensorParallelSize",
        "!has(self.rollout.tensorParallelSize) || self.rollout.tensorParallelSize == 1",
        "absent or 1",
    ),
    *(_default_without_rollouts(field, f"!has(self.rollout.{field})", "absent") for field in _UNSET_WITHOUT_ROLLOUTS),
    *off_policy_rules(),
    *environment_rules(),
    Rule(
        "algorithm.updatesPerStep",
        "!has(self.algorithm.updatesPerStep) || self.rollout.promptsPerStep % self.algorithm.updatesPerStep == 0",
        "divide rollout.promptsPerStep",
        "Use a divisor, such as 1.",
    ),
    Rule(
        "algorithm.ppo.criticWarmupSteps",
        "!has(self.algorithm.ppo) || self.algorithm.ppo.criticWarmupSteps < self.trainer.steps",
        "be less than trainer.steps, or the policy never learns",
        "Lower criticWarmupSteps, or raise trainer.steps.",
    ),
    Rule(
        "algorithm.ppo.criticWarmupSteps",
        "!has(self.algorithm.ppo) || self.algorithm.ppo.criticWarmupSteps >= self.trainer.steps || "
        "self.algorithm.ppo.criticWarmupSteps + self.trainer.warmupSteps <= self.trainer.steps",
        "be at most trainer.steps less trainer.warmupSteps, since the policy's warm-up comes after the critic's",
        "Lower criticWarmupSteps or trainer.warmupSteps, or raise trainer.steps.",
    ),
    Rule(
        "algorithm.dapo.overlongBufferTokens",
        "!has(self.algorithm.dapo) || !has(self.algorithm.dapo.overlongBufferTokens) || "
        "self.algorithm.dapo.overlongBufferTokens < self.rollout.maxResponseTokens",
        "be less than rollout.maxResponseTokens, of which it is the last part",
        "Use about a fifth of rollout.maxResponseTokens.",
    ),
    Rule(
        "algorithm.kl.reference",
        "!has(self.algorithm.kl) || self.algorithm.kl.reference != 'start' || has(self.adapter.initFrom)",
        "not be start unless adapter.initFrom names an adapter to start from",
        "Set adapter.initFrom, or remove reference.",
    ),
    Rule(
        "adapter.dora",
        f"!self.adapter.dora || {is_one_of('self.algorithm.type', FROM_ANSWERS)}",
        f"be false unless algorithm.type is {listed(FROM_ANSWERS, 'or')}: vLLM makes the rollouts, and serves no DoRA",
        "Remove dora. adapter.rslora works with every algorithm.",
    ),
    Rule(
        "adapter.dora",
        f"!self.adapter.dora || !{_SOME_GENERATED}",
        "be false if an evaluation has a reward: vLLM makes its completions, and it serves no DoRA",
        "Remove the reward of data.evals, or dora.",
    ),
    Rule(
        "adapter.dora",
        "!self.adapter.dora || !has(self.trainer.backend) || self.trainer.backend == 'fsdp'",
        "be false with trainer.backend megatron, which does not train DoRA",
        "Remove trainer.backend, or set it to fsdp.",
    ),
    *quantization_rules(),
    *server_job_rules(),
    *publish_rules(),
    *LAYOUT_RULES,
)
CLUSTER_RULES: tuple[Rule, ...] = (
    # The operator looks at the volumes: CEL cannot, because a PodSpec's fields are not in the schema.
    Rule(
        "checkpoint.uri",
        "!self.checkpoint.uri.startsWith('file:') || self.checkpoint.uri.startsWith('file:/') && "
        "(has(self.cluster.podTemplateOverrides.head) && has(self.cluster.podTemplateOverrides.head.spec) && "
        "has(self.cluster.podTemplateOverrides.worker) && has(self.cluster.podTemplateOverrides.worker.spec))",
        "be a store or pvc://CLAIM/FOLDER in a cluster, or file:///FOLDER on a volume that podTemplateOverrides "
        "mounts in head and workers, because a pod's other files are deleted with it",
        "Use s3://, gs://, az:// or pvc://. Only `lorarl run` on one machine takes any folder.",
    ),
    *SERVER_CLUSTER_RULES,
    *ENVIRONMENT_CLUSTER_RULES,
)
