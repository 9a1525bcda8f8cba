"""What an adapter's metadata says about its making, and what it does not."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.launch.preparation import Stored
from lorarl_trainer.launch.provenance import code_digest, provenance
from lorarl_trainer.lora.files import INIT_FROM, TEACHER
from lorarl_trainer.lora.initial import InitialAdapter
from unit.contract.manifests import manifest

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: same, labels: {team: a}, uid: 0a}
spec:
  model: {uri: "file:base"}
  adapter: {targetModules: [all-linear]}
  reward: {function: "letters:score"}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
  cluster: {nodes: 1}
"""


def test_what_made_the_adapter_is_there_and_the_cluster_is_not(tmp_path: Path) -> None:
    (tmp_path / "letters.py").write_text("def score(): ...\n")
    made_of = provenance(load_job(MANIFEST), {"train": {"rows": 2, "sha256": "d"}}, tmp_path)
    assert made_of["rewardCode"] == {"letters:score": hashlib.sha256(b"def score(): ...\n").hexdigest()}
    assert made_of["data"] == {"train": {"rows": 2, "sha256": "d"}}
    assert {"python", "lorarl", "torch", "transformers"} <= set(made_of["versions"])
    assert made_of["manifest"]["metadata"] == {"name": "same"}
    assert set(made_of["manifest"]["spec"]) == {"model", "adapter", "reward", "data", "checkpoint"}
    assert json.loads(json.dumps(made_of)) == made_of


def test_the_code_is_that_of_rewards_and_environments_alone(tmp_path: Path) -> None:
    for name in ("letters", "games"):
        (tmp_path / f"{name}.py").write_text("def score(): ...\n")
    given = {"shown": {"tools": [{"a": 1}], "function": "letters:score"}}
    changes = {"spec.reward": None, "spec.environment": {"function": "games:Game"}}
    job = load_job(json.dumps(manifest(changes | {"spec.data.chatTemplateArguments": given})))
    assert list(provenance(job, {}, tmp_path)["rewardCode"]) == ["games:Game"]
    tools = {"spec.environment": {"tools": ["games:look", "letters:score"]}}
    assert list(provenance(load_job(json.dumps(manifest(tools))), {}, tmp_path)["rewardCode"]) == [
        "games:look",
        "letters:score",
    ]


EVALUATED: dict[str, Any] = {
    "spec.reward": {"function": "letters:score"},
    "spec.data.eval": {"uri": "file:e.jsonl"},
    "spec.data.evals": [{"name": "hard", "uri": "file:h.jsonl", "reward": {"type": "numeric"}, "temperature": 1.0}],
}
ROWS = {"eval": {"rows": 4, "sha256": "e"}, "hard": {"rows": 4, "sha256": "h"}}


@pytest.mark.parametrize(
    ("changes", "rows", "code", "differ"),
    [
        ({}, {}, "", set()),
        ({"spec.data.eval": {"uri": "s3://b/e.jsonl", "every": 5}}, {}, "", set()),
        ({"spec.trainer.steps": 9, "spec.reward.timeoutSeconds": 9, "spec.checkpoint.keepBest": {}}, {}, "", set()),
        ({}, {"eval": {"rows": 4, "sha256": "other"}}, "", {""}),
        ({"spec.data.evals[0].reward": {"type": "exact"}}, {}, "", {"hard"}),
        ({"spec.data.evals[0].temperature": 0.5}, {}, "", {"hard"}),
        ({"spec.data.evals[0].samples": 4}, {}, "", {"hard"}),
        ({"spec.data.evals[0].passReward": 0.5}, {}, "", {"hard"}),
        ({"spec.rollout.topP": 0.5}, {}, "", {"hard"}),
        ({"spec.rollout.maxResponseTokens": 9}, {}, "", {"", "hard"}),
        ({"spec.rollout.stop": ["x"]}, {}, "", {"", "hard"}),
        ({}, {}, "# other", {""}),
    ],
)
def test_an_evaluation_is_known_by_what_its_values_follow_from(
    tmp_path: Path, changes: dict[str, Any], rows: dict[str, Any], code: str, differ: set[str]
) -> None:
    def evaluations(changes: dict[str, Any], rows: dict[str, Any], code: str) -> dict[str, str]:
        (tmp_path / "letters.py").write_text(f"def score(): ...\n{code}")
        return dict(provenance(load_job(json.dumps(manifest(changes))), rows, tmp_path)["evaluations"])

    changed = json.loads(json.dumps(EVALUATED))
    for path, value in changes.items():
        if path.startswith("spec.data.evals[0]."):
            changed["spec.data.evals"][0][path.rpartition(".")[2]] = value
        elif path.startswith("spec.reward."):
            changed["spec.reward"][path.rpartition(".")[2]] = value
        else:
            changed[path] = value
    was, now = evaluations(EVALUATED, ROWS, ""), evaluations(changed, ROWS | rows, code)
    assert {name for name in was if was[name] != now[name]} == differ


def test_the_code_of_a_package_is_found_and_that_of_nothing_is_none(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "module.py").write_text("x = 1\n")
    path = [str(tmp_path / "missing"), str(tmp_path)]
    assert code_digest("package.module:score", path) == hashlib.sha256(b"x = 1\n").hexdigest()
    assert code_digest("package:score", path) == hashlib.sha256(b"").hexdigest()
    assert code_digest("absent:score", path) is None


def test_adapters_that_every_step_learns_from_are_there_by_their_digests(tmp_path: Path) -> None:
    adapters = {"spec.adapter.initFrom": None, "spec.algorithm.distillation.adapter": b"weights"}
    made_of = provenance(load_job(MANIFEST), {}, tmp_path, adapters)
    assert made_of["adapters"] == {"spec.algorithm.distillation.adapter": hashlib.sha256(b"weights").hexdigest()}
    assert "adapters" not in provenance(load_job(MANIFEST), {}, tmp_path)


@pytest.mark.parametrize(
    ("algorithm", "initial", "teacher"),
    [
        ({"type": "grpo"}, None, None),
        ({"type": "grpo", "klCoefficient": 0.1, "kl": {"reference": "start"}}, b"start", None),
        ({"type": "dpo"}, b"start", None),
        ({"type": "distillation", "distillation": {"adapter": "file:t"}}, None, b"teacher"),
    ],
)
def test_an_adapter_is_learned_from_as_a_reference_or_a_teacher(
    algorithm: dict[str, Any], initial: bytes | None, teacher: bytes | None
) -> None:
    changes: dict[str, Any] = {"spec.algorithm": algorithm, "spec.adapter.initFrom": "file:start"}
    if algorithm["type"] != "grpo":
        changes["spec.reward"] = None
    spec = load_job(json.dumps(manifest(changes))).spec
    stored = Stored("", InitialAdapter(b"start", 1, 1.0), InitialAdapter(b"teacher", 1, 1.0) if teacher else None)
    assert stored.learned_from(spec) == {INIT_FROM: initial, TEACHER: teacher}
