"""What people write by mistake, and the hint that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import ManifestError, faults, load_job
from unit.contract.manifests import manifest


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"spec.reward": {"function": "my-reward:score"}},
            'spec.reward.function: got "my-reward:score", expected package.module:function. Rename the file to '
            "my_reward.py: a module's name has no dash or space. Then write my_reward:score.",
        ),
        (
            {"spec.reward": {"function": "rewards/mine.py"}},
            'spec.reward.function: got "rewards/mine.py", expected package.module:function. Name its module and its '
            "function: mine:score.",
        ),
        (
            {"spec.reward": {"function": "my.rewards.right"}},
            'spec.reward.function: got "my.rewards.right", expected package.module:function. Name its module and its '
            "function: my.rewards:right.",
        ),
        (
            {"spec.reward": {"function": "my_rewards"}},
            'spec.reward.function: got "my_rewards", expected package.module:function. Name its module and its '
            "function: my_rewards:score.",
        ),
        (
            {"spec.cluster.memoryPerNode": "64 GB"},
            'spec.cluster.memoryPerNode: got "64 GB", expected a memory quantity with a unit, such as 512Mi or 64Gi. '
            "Write 64G.",
        ),
        (
            {"spec.adapter.type": "dora"},
            'spec.adapter.type: got "dora", expected canonical_lora or lora. Use canonical_lora or lora. For DoRA, '
            "rsLoRA or a quantized base, set adapter.dora: true, adapter.rslora: true or model.quantization: nf4 "
            "beside it.",
        ),
        (
            {"spec.reward": {"function": "1+1"}},
            'spec.reward.function: got "1+1", expected package.module:function. Use a value such as '
            "my_package.rewards:score.",
        ),
        (
            {"spec.model.uri": "“file:base”"},
            'spec.model.uri: got "“file:base”", must be a URI that starts with hf://ORG/NAME, s3://, gs://, az://, '
            'pvc://CLAIM/PATH, file:///PATH or file:PATH. Use plain quotes (") in place of typographic ones, as a word '
            "processor writes them.",
        ),
        (
            {"spec.adapter.targetModules": "‘all-linear’"},
            'spec.adapter.targetModules: got "‘all-linear’", expected a list of 1 to 64 entries. Use plain quotes (") '
            "in place of typographic ones, as a word processor writes them.",
        ),
        (
            {"spec.model": {"uri": "file:base", "5": None}},
            "spec.model.5: got an unknown key, expected one of uri, revision, credentialsSecret, quantization. Write a "
            "number without a comma: it separates entries here.",
        ),
    ],
)
def test_the_hint_names_what_was_meant(changes: dict[str, Any], sentence: str) -> None:
    (fault,) = faults(manifest(changes))
    assert str(fault) == sentence


@pytest.mark.parametrize(
    ("field", "got", "hint"),
    [
        ("spec.rollout.stop", "Human: ", 'Write a list: ["Human: "].'),
        ("spec.rollout.stop", "yes", 'Write a list: ["yes"].'),
        ("spec.rollout.stop", "1e3", 'Write a list: ["1e3"].'),
        ("spec.rollout.stop", "A:", 'Write a list: ["A:"].'),
        ("spec.adapter.targetModules", "q_proj k_proj", "Write a list: [q_proj, k_proj]."),
        ("spec.adapter.targetModules", "['q_proj', 'k_proj']", "Write a list: [q_proj, k_proj]."),
        ("spec.adapter.targetModules", "[q_proj]", "Write a list: [q_proj]."),
        ("spec.cluster.memoryPerNode", 64, "Add a unit: 64Gi."),
        ("spec.cluster.memoryPerNode", 64 * 2**30, "Add a unit: 64Gi."),
        ("spec.cluster.memoryPerNode", "16384", "Add a unit: 16384Mi."),
        ("spec.cluster.env", [{"name": "A", "value": 1}], "Write names with their values: env: {A: VALUE}."),
        ("spec.cluster.env", [{"name": ["A"], "value": "b"}], "Use a value such as {}."),
        ("spec.cluster.memoryPerNode", "9" * 5000, "Use a value such as"),
        ("spec.algorithm", "grpo", "Write {type: grpo}."),
        ("spec.data.train", "a.jsonl", "Write {uri: a.jsonl} with a scheme, for example {uri: s3://"),
    ],
)
def test_the_hint_says_what_was_meant(field: str, got: Any, hint: str) -> None:
    (fault,) = (one for one in faults(manifest({field: got})) if one.path == field)
    assert fault.hint.startswith(hint)


def test_a_manifest_in_utf_16_is_named(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("kind: LoRARLJob\n", encoding="utf-16")
    with pytest.raises(
        ManifestError, match=r"got text in UTF-16, expected text in UTF-8\. Convert it: iconv -f UTF-16"
    ):
        load_job(path)
