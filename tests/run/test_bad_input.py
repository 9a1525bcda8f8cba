"""Bad input that is found without workers: a message with a hint, within seconds, and nothing written or lost.

The folder is that of a job that has been trained, so there is something to lose.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.checkpoint.identity import training_identity
from lorarl_trainer.checkpoint.open import check_checkpoints
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.launch.init_from import read_initial_adapter
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.storage.base_model import fetch_base_model
from run.command import Ended
from run.jobs import Job

SECONDS = 45.0
"""Time for Ray and the wrong part of the manifest, on a busy machine. A whole start takes longer."""
NEW = "checkpoint.uri=file:new"
"""A folder without a checkpoint, which would belong to another training."""

BY_THE_COMMAND = [
    (
        ["suspend=true"],
        "spec.suspend: got true, expected false for `lorarl run`. Set it to false: --set spec.suspend=false.",
    ),
    (
        ["cluster.nodes=2"],
        "spec.cluster.nodes: got 2, expected 1 for `lorarl run`, which uses only this machine. Use --set spec.cluster",
    ),
    (["cluster.gpusPerNode=64", NEW], "spec.cluster.gpusPerNode: got 64, expected "),
    (["trainer.stepz=3"], "spec.trainer.stepz: got an unknown key, expected one of"),
    (["checkpoint.credentialsSecret=none"], "spec.checkpoint.credentialsSecret: got 'none', expected a folder"),
    (
        ["trainer.seed=1"],
        "belongs to another training (trainer.seed was 0, is 1), expected the manifest of the checkpoint's training",
    ),
    (
        ["model.uri=file:experts", NEW],
        "spec.model.uri: got a config.json with num_experts 8: a mixture of experts, expected a dense model",
    ),
]
BY_ITS_PREPARATION = [
    (
        ["model.uri=file:nowhere"],
        "spec.model.uri: got file:nowhere, which is not a folder, expected a folder with a model",
    ),
    (
        ["adapter.targetModules=[q_proj, gate]", NEW],
        "spec.adapter.targetModules: got 'gate', expected a linear layer of this model (",
    ),
    (
        ["rollout.maxResponseTokens=193", NEW],
        "spec.rollout.maxResponseTokens: got 257 tokens together with rollout.maxPromptTokens, expected at most 256,",
    ),
    (["model.uri=file:garbage"], "garbage/config.json, which cannot be read (Expecting property name"),
    (
        ["model.uri=file:half", NEW],
        "half/model.safetensors, which is not a whole safetensors file (it has ",
    ),
    (
        ["model.uri=file:no-template"],
        "spec.data.chatTemplate: got true, but the model's tokenizer has no chat template, expected",
    ),
    (
        ["data.train.uri=file:empty.jsonl"],
        "spec.data.train.uri: got file:empty.jsonl with no rows, expected at least one row.",
    ),
    (
        ["data.train.uri=file:gone.jsonl"],
        "spec.data.train.uri: got file:gone.jsonl, which does not exist, expected a file with data.",
    ),
    (
        ["data.train.uri=file:questions.jsonl"],
        "spec.data.train.promptField: got prompt, which row 2 of file:questions.jsonl does not have, "
        "expected one of the existing fields",
    ),
    (
        ["reward.function=elsewhere:score"],
        "spec.reward.function: got elsewhere:score, but there is no module elsewhere, expected",
    ),
    (["reward.function=letters:missing", NEW], "has no such function, expected a function package.module:function"),
    (["adapter.rank=8"], "belongs to another training (adapter.rank was 4, is 8), expected the manifest of the"),
    (
        ["adapter.initFrom=file:trained", "adapter.rank=8", NEW],
        "spec.adapter.initFrom: got an adapter with r 4, expected 8, as in spec.adapter.rank. "
        "Set spec.adapter.rank: 4.",
    ),
    (
        ["adapter.initFrom=file:trained", "model.uri=file:other", NEW],
        "spec.adapter.initFrom: got an adapter of another base model",
    ),
    (
        ["adapter.initFrom=file:no-template"],
        "spec.adapter.initFrom: got file:no-template, which contains no adapter_config.json, expected",
    ),
    (
        ["adapter.initFrom=file:nowhere"],
        "spec.adapter.initFrom: got file:nowhere, which contains no adapter_config.json, expected",
    ),
]


def named(value: object) -> str:
    return value[0] if isinstance(value, list) else ""


@pytest.mark.parametrize(("overrides", "message"), BY_THE_COMMAND, ids=named)
def test_bad_input_ends_the_command_in_seconds_and_costs_nothing(
    trained_job: Job, overrides: list[str], message: str
) -> None:
    before = trained_job.contents()
    ended = trained_job.run(*overrides)
    assert message in ended.stderr
    require_one_message(ended)
    assert ended.seconds < SECONDS
    assert trained_job.contents() == before


def test_a_manifest_that_is_not_there(trained_job: Job) -> None:
    (trained_job.folder / "job.yaml").rename(trained_job.folder / "jobs.yaml")
    ended = trained_job.run()
    (trained_job.folder / "jobs.yaml").rename(trained_job.folder / "job.yaml")
    assert "job.yaml: got no such file or directory, expected a readable file. Check the path." in ended.stderr
    require_one_message(ended)


@pytest.mark.parametrize(("overrides", "message"), BY_ITS_PREPARATION, ids=named)
def test_bad_input_is_refused_while_the_run_is_prepared_and_costs_nothing(
    trained_job: Job, overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, with the same functions in the same order, but without Ray, which would start meanwhile."""
    monkeypatch.chdir(trained_job.folder)
    before = trained_job.contents()
    with pytest.raises(InputError) as refused:
        prepare_run(trained_job, overrides)
    assert message in str(refused.value)
    assert trained_job.contents() == before


def prepare_run(a_job: Job, overrides: list[str]) -> None:
    job = load_job(a_job.folder / "job.yaml", [f"spec.{change}" for change in overrides])
    spec = job.spec
    inputs.judge_model(spec, {})
    inputs.load_rows(spec, inputs.load_vocabulary(spec, {}), {})
    assert spec.reward is not None
    scorer = make_scorer(spec.reward, a_job.folder, processes=1)
    try:
        asyncio.run(scorer.ready())
    finally:
        scorer.close()
    model = fetch_base_model(spec, {})
    read_initial_adapter(spec, {}, model.fingerprint)
    check_checkpoints(job, {}, training_identity(spec, model.fingerprint), a_job.out / "unpublished")


def require_one_message(ended: Ended) -> None:
    """One line for a person, only on standard error."""
    assert ended.code == 1, ended
    assert ended.stderr.startswith("lorarl: ")
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert ended.stderr.removeprefix("lorarl: ").strip() not in ended.stdout
    assert ended.left_running == []


@pytest.fixture(scope="module")
def trained_job(base: Path, reference: Ended, reference_job: Job, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A copy of the trained job, with unusable models, adapters and data beside it."""
    job = Job(tmp_path_factory.mktemp("trained"), base)
    shutil.copytree(reference_job.folder, job.folder, dirs_exist_ok=True)
    shutil.copytree(reference_job.checkpoints / "iter_0000002" / "lora_adapter", job.folder / "trained")
    shutil.copytree(base, job.folder / "garbage")
    (job.folder / "garbage" / "config.json").write_text("{ garbage")
    shutil.copytree(base, job.folder / "half")
    os.truncate(job.folder / "half" / "model.safetensors", (base / "model.safetensors").stat().st_size // 2)
    shutil.copytree(base, job.folder / "no-template")
    tokenizer = job.folder / "no-template" / "tokenizer_config.json"
    tokenizer.write_text(
        json.dumps({key: value for key, value in json.loads(tokenizer.read_text()).items() if key != "chat_template"})
    )
    shutil.copytree(base, job.folder / "other")
    config = job.folder / "other" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"rms_norm_eps": 1e-5}))
    shutil.copytree(base, job.folder / "experts")
    config = job.folder / "experts" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_experts": 8}))
    (job.folder / "empty.jsonl").touch()
    (job.folder / "questions.jsonl").write_text('{"prompt": "hello"}\n{"question": "hello"}\n')
    return job
