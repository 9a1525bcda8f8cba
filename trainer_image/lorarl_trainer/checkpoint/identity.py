"""Checks whether a manifest still describes the training that a checkpoint belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pydantic.main import IncEx

from lorarl_api.v1alpha1 import AlgorithmSpec, EnvironmentSpec, EvalSource, EvalSpec, LoRARLJobSpec, RewardSpec
from lorarl_api.v1alpha1.algorithm_types import OPTION_GROUPS
from lorarl_trainer.errors import InputError

FINGERPRINT = "model.fingerprint"
_NOT_OF_REWARDS: dict[str, IncEx | bool] = {
    "timeout_seconds": True,
    "max_failed_share": True,
    "source": True,
    "server": {"url", "concurrency", "retries", "credentials_secret"},
}
"""What a reward may change without being another: it scores the same. Of its source, the content counts alone."""
_NOT_OF_TEACHERS = ("url", "concurrency", "retries", "timeoutSeconds", "maxFailedShare", "credentialsSecret")
"""What a teacher's server may change without being another."""

Identity = Mapping[str, Any]
"""The settings that define a training, flat: {"adapter.rank": 8, "model.uri": "hf://...", ...}. Values are JSON."""


def training_identity(spec: LoRARLJobSpec, model_fingerprint: str) -> dict[str, Any]:
    """Return the settings that define this training: model, adapter, algorithm, reward or environment, data, its
    template and limits, and seed.

    The limits decide which rows there are, and so their order in every epoch.

    Only the same training resumes from a checkpoint. Steps, learning rate, batch sizes, cluster and storage may change.
    """
    limits = {"maxPromptTokens": spec.rollout.max_prompt_tokens}
    if spec.algorithm.about.from_data:  # rows with a longer answer are left out
        limits["maxResponseTokens"] = spec.rollout.max_response_tokens
    algorithm = spec.algorithm  # effective values: writing a default out later does not make another training
    parts = {
        "model": {
            "uri": spec.model.uri,
            "revision": spec.model.revision,
            "fingerprint": model_fingerprint,
            "quantization": None if spec.model.quantization == "none" else spec.model.quantization,
        },
        "adapter": spec.adapter.model_dump(by_alias=True),
        "algorithm": {
            "type": algorithm.type,
            "groupSize": algorithm.effective_group_size,
            "clipRange": algorithm.effective_clip_range,
            "klCoefficient": algorithm.effective_kl_coefficient,
            "updatesPerStep": algorithm.effective_updates_per_step,
            "lossAggregation": algorithm.effective_loss_aggregation,
            "maxRefills": algorithm.max_refills or None,
            **_option_groups(algorithm),
        },
        "reward": _scores(spec.reward) if spec.reward else {},
        "rewards": {
            reward.name: {key: value for key, value in _scores(reward).items() if value is not None}
            for reward in spec.rewards or []
        },
        "environment": _plays(spec.environment) if spec.environment else {},
        "data.train": spec.data.train.model_dump(by_alias=True) if spec.data.train else {},
        "data": {
            "mixture": [source.model_dump(by_alias=True, exclude_none=True) for source in spec.data.mixture or []]
            or None,
            "curriculum": spec.data.curriculum.model_dump(by_alias=True) if spec.data.curriculum else None,
            "chatTemplate": spec.data.chat_template,
            "chatTemplateFile": spec.data.chat_template_file,
            "chatTemplateArguments": spec.data.chat_template_arguments or None,
        },
        "rollout": limits,
        "trainer": {"seed": spec.trainer.seed},
    }
    return {
        f"{part}.{key}": value for part, values in parts.items() for key, value in values.items() if value is not None
    }


def evaluation_digest(spec: LoRARLJobSpec, source: EvalSource, rows_sha256: str | None, code: Mapping[str, str]) -> str:
    """Return a digest of what an evaluation's values follow from, besides the adapter and the training's identity.

    Values of two digests are not to be compared. `rows_sha256`: of its rows; None takes their source for them. `code`:
    the digests of reward functions and of the environment by their names, and as chatTemplate that of a template of
    the job's own.
    """
    own = source.reward if isinstance(source, EvalSpec) else None
    rewards = [own] if own else list(spec.rewards_by_path.values())
    drawn = isinstance(source, EvalSpec) and source.temperature > 0
    rollout = spec.rollout
    parts = {
        "rows": rows_sha256 or source.origin,
        "rewards": [_scores(reward) for reward in rewards],
        "code": [code.get(reward.function or "") for reward in rewards],
        "template": code.get("chatTemplate"),
        **(
            {"environment": [_plays(spec.environment), *map(code.get, spec.environment.functions)]}
            if spec.environment
            else {}
        ),
        "limits": [rollout.max_prompt_tokens, rollout.max_response_tokens, sorted(rollout.stop)],
        "sampling": [rollout.top_p, rollout.top_k, rollout.min_p, spec.trainer.seed] if drawn else None,
        "completions": source.model_dump(include={"temperature", "samples", "pass_reward"}),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _scores(reward: RewardSpec) -> dict[str, Any]:
    """Return what a completion's score follows from."""
    digest = reward.source.sha256 if reward.source else None
    return {**reward.model_dump(by_alias=True, exclude=_NOT_OF_REWARDS), "source.sha256": digest}


def _plays(environment: EnvironmentSpec) -> dict[str, Any]:
    """Return what an episode's course and its reward follow from, beside the model."""
    return {
        "function": environment.function,
        "tools": environment.tools,
        "agent": environment.agent,
        "textarena": environment.textarena,
        "skyrlGym": environment.skyrl_gym,
        "gymnasium": environment.gymnasium,
        "verifiers": environment.verifiers,
        "openEnv": environment.open_env,
        "toolFormat": environment.tool_format,
        "source.sha256": environment.source.sha256 if environment.source else None,
        "maxTurns": environment.max_turns,
        "maxTurnTokens": environment.max_turn_tokens,
    }


def _option_groups(algorithm: AlgorithmSpec) -> dict[str, Any]:
    """Return the algorithm's groups of options, without options that have their defaults."""
    groups = algorithm.model_dump(
        by_alias=True,
        exclude_defaults=True,
        include={*OPTION_GROUPS, "kl", "correction"},
        exclude={"ppo": {"critic_learning_rate"}},  # learning rates may change
    )
    server = groups.get("distillation", {}).get("server", {})
    for field in _NOT_OF_TEACHERS:
        server.pop(field, None)
    return {key: value for key, value in groups.items() if value}


def differences(was: Identity, now: Identity) -> list[str]:
    """Return each difference as `adapter.rank was 8, is 16`. A key that is missing on one side counts as null."""
    found = [
        f"{key} was {_show(was.get(key))}, is {_show(now.get(key))}"
        for key in sorted({*was, *now} - {FINGERPRINT})
        if _show(was.get(key)) != _show(now.get(key))
    ]
    if was.get(FINGERPRINT) != now.get(FINGERPRINT):
        found.append("model.uri has other weights or another config.json than then")
    return found


def require_same_training(was: Identity, now: Identity, checkpoint_uri: str) -> None:
    """Refuse to resume from another training's checkpoint.

    Raises:
        InputError: they differ; it names each difference and the fix.
    """
    found = differences(was, now)
    if found:
        raise InputError(
            "spec.checkpoint.resume",
            f"Auto, but the checkpoint {checkpoint_uri} belongs to another training ({'; '.join(found)})",
            "the manifest of the checkpoint's training",
            "Undo the change, or start from scratch with spec.checkpoint.resume: Never (which deletes older "
            "checkpoints once the new run publishes its first), another spec.checkpoint.uri, or another "
            "metadata.name.",
        )


def other_inputs(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a warning if a resumed run gets other rows, reward code, teacher or reference than its checkpoint's.

    That may be meant, so it is no other training. The manifest looks the same, so nothing else would show it.
    """
    rows = (
        f"the rows of {name} (had {before.get('rows')}, has {after.get('rows')})"
        for name, after in now.get("data", {}).items()
        if (before := was.get("data", {}).get(name)) and before.get("sha256") != after.get("sha256")
    )
    code = (
        f"the code of {function}"
        for function, after in now.get("rewardCode", {}).items()
        if was.get("rewardCode", {}).get(function, after) != after
    )
    adapters = (
        f"the adapter of {field}"
        for field, adapter in now.get("adapters", {}).items()
        if was.get("adapters", {}).get(field, adapter) != adapter
    )
    template = ["the chat template"] if was.get("chatTemplate") != now.get("chatTemplate") else []
    if not (changed := [*rows, *template, *code, *adapters]):
        return []
    return [
        f"the manifest names the same data, rewards and adapters as before, but {' and '.join(changed)} changed since "
        "the checkpoint was made. The training continues with them as they are now. To start from the base instead, "
        "choose another metadata.name."
    ]


def _show(value: object) -> str:
    return json.dumps(value, sort_keys=True)
