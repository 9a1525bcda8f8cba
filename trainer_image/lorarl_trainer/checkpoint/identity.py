"""Checks whether a manifest still describes the training that a checkpoint belongs to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.fingerprint import same_base_model

_FINGERPRINT = "model.fingerprint"
_RECORDED_LATER = frozenset(["rollout.maxPromptTokens", "rollout.maxResponseTokens"])
"""Keys that checkpoints of earlier releases lack."""

_NOT_OF_REWARDS = {"timeout_seconds", "max_failed_share"}
"""What a reward may change without being another: it scores the same."""

Identity = Mapping[str, Any]
"""The settings that define a training, flat: {"adapter.rank": 8, "model.uri": "hf://...", ...}. Values are JSON."""


def training_identity(spec: LoRARLJobSpec, model_fingerprint: str) -> dict[str, Any]:
    """Return the settings that define this training: model, adapter, algorithm, reward, data, its template and
    limits, and seed.

    The limits decide which rows there are, and so their order in every epoch.

    Only the same training resumes from a checkpoint. Steps, learning rate, batch sizes, cluster and storage may change.
    """
    limits = {"maxPromptTokens": spec.rollout.max_prompt_tokens}
    if spec.algorithm.type == "sft":  # rows with a longer answer are left out
        limits["maxResponseTokens"] = spec.rollout.max_response_tokens
    algorithm = spec.algorithm  # effective values: writing a default out later does not make another training
    parts = {
        "model": {"uri": spec.model.uri, "revision": spec.model.revision, "fingerprint": model_fingerprint},
        "adapter": spec.adapter.model_dump(by_alias=True),
        "algorithm": {
            "type": algorithm.type,
            "groupSize": algorithm.effective_group_size,
            "clipRange": algorithm.effective_clip_range,
            "klCoefficient": algorithm.effective_kl_coefficient,
            "updatesPerStep": algorithm.effective_updates_per_step,
        },
        "reward": spec.reward.model_dump(by_alias=True, exclude=_NOT_OF_REWARDS) if spec.reward else {},
        "rewards": {
            reward.name: reward.model_dump(by_alias=True, exclude=_NOT_OF_REWARDS, exclude_none=True)
            for reward in spec.rewards or []
        },
        "data.train": spec.data.train.model_dump(by_alias=True),
        "data": {
            "chatTemplate": spec.data.chat_template,
            "chatTemplateArguments": spec.data.chat_template_arguments or None,
        },
        "rollout": limits,
        "trainer": {"seed": spec.trainer.seed},
    }
    return {
        f"{part}.{key}": value for part, values in parts.items() for key, value in values.items() if value is not None
    }


def differences(was: Identity, now: Identity) -> list[str]:
    """Return each difference as `adapter.rank was 8, is 16`. A key that is missing on one side counts as null.

    What an earlier release did not record is no difference: its checkpoints can be resumed.
    """
    unknown = _RECORDED_LATER - set(was)
    found = [
        f"{key} was {_show(was.get(key))}, is {_show(now.get(key))}"
        for key in sorted({*was, *now} - unknown - {_FINGERPRINT})
        if _show(was.get(key)) != _show(now.get(key))
    ]
    if not same_base_model(str(was.get(_FINGERPRINT, "")), str(now.get(_FINGERPRINT, ""))):
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


def _show(value: object) -> str:
    return json.dumps(value, sort_keys=True)
