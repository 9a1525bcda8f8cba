"""Bad input that is found without workers: a message with a hint, within seconds, and nothing written or lost.

The folder is that of a job that has been trained, so there is something to lose.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from lorarl_trainer.dry_run.dry_run import dry_run
from lorarl_trainer.launch.run import run_manifest
from run.command import Ended
from run.jobs import PROMPTS, STEPS, Job

SECONDS = 5.0
"""Of a processor's time: the most that finding a mistake takes in this process, which has imported Transformers."""
WEIGHTS = "adapter_model.safetensors"
NEW = "checkpoint.uri=file:new"
"""A folder without a checkpoint, which would belong to another training."""

LARGE = ("rollout.promptsPerStep=16384", "algorithm.groupSize=256")
BY_ITS_MANIFEST = [
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
]
BY_THE_COMMAND = [
    (
        ["trainer.seed=1"],
        "belongs to another training (trainer.seed was 0, is 1), expected the manifest of the checkpoint's training",
    ),
    (
        ["model.uri=file:experts", NEW],
        "spec.model.uri: got a config.json with num_experts 8: a mixture of experts, ",
    ),
]
BY_ITS_PREPARATION = [
    (
        ["model.uri=file:nowhere"],
        "spec.model.uri: got file:nowhere, which is not a folder, expected a folder with a model",
    ),
    (
        ["adapter.targetModules=[q_proj, gate]", NEW],
        "spec.adapter.targetModules: got 'gate', expected a layer that may have an adapter (",
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
    (["reward.source.uri=file:gone.py"], "spec.reward.source.uri: got file:gone.py, where there is nothing, expected"),
    (["reward.source.uri=file:letters.py"], "belongs to another training (reward.source.sha256 was null, is "),
    (["adapter.rank=8"], "belongs to another training (adapter.rank was 4, is 8), expected the manifest of the"),
    (
        ["adapter.initFrom=file:trained", "adapter.rank=2", NEW],
        "spec.adapter.initFrom: got an adapter with r 4, expected at most 2, as in spec.adapter.rank. "
        "Set spec.adapter.rank: 4.",
    ),
    (
        ["adapter.initFrom=file:trained", "model.uri=file:other", NEW],
        "spec.adapter.initFrom: got an adapter of another base model",
    ),
    (
        ["adapter.initFrom=file:no-template", NEW],
        "spec.adapter.initFrom: got file:no-template, which contains no adapter_config.json, expected",
    ),
    (
        ["adapter.initFrom=file:nowhere", NEW],
        "spec.adapter.initFrom: got file:nowhere, which does not exist, expected",
    ),
    (
        ["reward.function=mistakes:three"],
        "mistakes:three(prompt, completion, answer) in ",
    ),
    (["reward.function=mistakes:LETTERS"], "has an object of type int of this name, expected a function package."),
    (["reward.function=mistakes:scor"], "has no such function"),
    (["reward.function=unfinished:score"], "SyntaxError"),
    (["reward.function=needs_more:score"], "No module named 'a_package_that_is_not_here'"),
    (["reward.function=ends:score"], "whose module ended the process when imported: it exited with code 3"),
    (
        ["data.train.uri=file:broken.jsonl"],
        "spec.data.train.uri: got line 2 of file:broken.jsonl, which is not JSON (",
    ),
    (
        ["data.train.uri=file:latin.jsonl"],
        "spec.data.train.uri: got file:latin.jsonl, but line 1 is not UTF-8, expected text in UTF-8. Convert it,",
    ),
    (
        ["data.train.uri=file:list.jsonl"],
        "got line 1 of file:list.jsonl, which is a JSON list, expected one JSON object per line. Write one object",
    ),
    (
        ["data.train.uri=file:rows.txt"],
        'spec.data.train.uri: got "file:rows.txt", must end in .jsonl, .parquet or .csv,',
    ),
    (
        ["data.train.uri=file:silent.jsonl"],
        "spec.data.train.promptField: got an empty str in row 1 of file:silent.jsonl",
    ),
    (["data.train.uri=file:roles.jsonl"], "expected a text, or a list of chat messages with role and content, both"),
    (["data.train.promptField=promt"], "expected one of the existing fields (prompt). Did you mean prompt?"),
    (["data.eval.uri=file:gone.jsonl"], "spec.data.eval.uri: got file:gone.jsonl, which does not exist"),
    (
        ["reward.function=null", "reward.type=exact"],
        "spec.data.train.answerField: got answer, which row 1 of file:train.jsonl does not have",
    ),
    (
        ["data.train.uri=file:chats.jsonl", "data.chatTemplate=false", NEW],
        "chatTemplate",
    ),
    (
        ["model.uri=file:bad-template", NEW],
        "spec.data.chatTemplate: got a template that refuses row 1 (",
    ),
    (
        ["rollout.maxPromptTokens=5", NEW],
        "spec.rollout.maxPromptTokens: got 5, but every prompt of spec.data.train is longer (23 to 32 tokens, 8 rows)",
    ),
    (["adapter.targetModules=[q_projj]", NEW], "Did you mean q_proj?"),
    (
        ["adapter.targetModules=[q_proj]", "adapter.excludeModules=['*.q_proj']", NEW],
        "expected at least one module left",
    ),
    (["model.uri=file:another-family", NEW], "spec.model.uri: got "),
    (["model.uri=file:no-weights", NEW], "which has no *.safetensors weights"),
    (["model.uri=file:no-tokenizer", NEW], "which has no tokenizer"),
    (
        ["adapter.initFrom=file:trained", "adapter.targetModules=[q_proj, v_proj]", NEW],
        ", which the training has no place for, expected one tensor for each matrix of the adapted layers. "
        "Set spec.adapter.targetModules: [down_proj, gate_proj,",
    ),
    (
        ["adapter.initFrom=file:fewer", NEW],
        "spec.adapter.initFrom: got an adapter without base_model.model.model.layers.0.mlp.",
    ),
    (
        ["adapter.initFrom=file:cut", NEW],
        "spec.adapter.initFrom: got an adapter whose adapter_model.safetensors is not a whole safetensors file (",
    ),
    (
        ["adapter.initFrom=file:dora", NEW],
        "spec.adapter.initFrom: got an adapter with use_dora: true, expected false, as in spec.adapter.dora.",
    ),
    (
        ["adapter.initFrom=file:wide", NEW],
        "has the shape [4, 65], expected [4, 64]. Use an adapter of this base model.",
    ),
    (["checkpoint.uri=file:train.jsonl"], "train.jsonl is not a folder. Use another folder."),
    (
        [*LARGE, "trainer.tokensPerMicroBatch=100000000", NEW],
        "spec: got a job that needs ",
    ),
]


def named(value: object) -> str:
    return value[0] if isinstance(value, list) else ""


@pytest.mark.parametrize(("overrides", "message"), BY_THE_COMMAND, ids=named)
def test_bad_input_ends_the_command_and_costs_nothing(trained_job: Job, overrides: list[str], message: str) -> None:
    before = trained_job.contents()
    ended = trained_job.run(*overrides)
    assert message in ended.stderr
    require_one_message(ended)
    assert trained_job.contents() == before


@pytest.mark.parametrize(("overrides", "message"), BY_ITS_MANIFEST, ids=named)
def test_a_manifest_that_no_run_can_follow_ends_it_before_it_begins(
    trained_job: Job,
    overrides: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, since nothing else is started. With one line for a person, only on standard error."""
    monkeypatch.chdir(trained_job.folder)
    before, began = trained_job.contents(), time.process_time()
    assert run_manifest(Path("job.yaml"), None, [f"spec.{change}" for change in overrides]) == 1
    assert time.process_time() - began < SECONDS
    said = capsys.readouterr()
    assert said.err.startswith("lorarl: ") and message in said.err and len(said.err.splitlines()) == 1
    assert said.out == ""
    assert trained_job.contents() == before


def test_a_manifest_that_is_not_there(trained_job: Job) -> None:
    (trained_job.folder / "job.yaml").rename(trained_job.folder / "jobs.yaml")
    ended = trained_job.run()
    (trained_job.folder / "jobs.yaml").rename(trained_job.folder / "job.yaml")
    assert "job.yaml: got no such file or directory, expected a readable file. Check the path." in ended.stderr
    require_one_message(ended)


@pytest.mark.parametrize(("overrides", "message"), BY_ITS_PREPARATION, ids=named)
def test_bad_input_is_refused_before_ray_starts_and_costs_nothing(
    trained_job: Job,
    overrides: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By a dry run, in this process: it makes all checks that a run makes before it starts Ray."""
    AutoTokenizer.from_pretrained(trained_job.base)
    monkeypatch.chdir(trained_job.folder)
    before, began = trained_job.contents(), time.process_time()
    assert dry_run(Path("job.yaml"), None, [f"spec.{change}" for change in overrides]) == 1
    assert time.process_time() - began < SECONDS
    said = capsys.readouterr().err
    assert message in said
    assert said.startswith("lorarl: ")
    assert trained_job.contents() == before


def test_a_folder_for_the_run_that_cannot_be_made_is_named(
    trained_job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_job.folder)
    assert dry_run(Path("job.yaml"), Path("letters.py/out"), []) == 1
    assert "--out: " in (said := capsys.readouterr().err)
    assert "letters.py is not a folder. Use another folder." in said


def test_a_dry_run_shows_what_a_run_would_do(
    trained_job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_job.folder)
    before = trained_job.contents()
    assert dry_run(Path("job.yaml"), None, ["spec.cluster.image=trainer:1", f"spec.trainer.steps={STEPS + 4}"]) == 0
    shown = capsys.readouterr().out
    for part in (
        "warning: `lorarl run` ignores fields that need a cluster: spec.cluster.image\n",
        "grpo on file://",
        "rank 4, alpha 8, 8,960 parameters in 14 layers",
        "8 rows, 1 held out; prompts of 23 to 32 tokens, median 29",
        "  | <|im_start|>user\n  | say a word<|im_end|>\n  | <|im_start|>assistant",
        "row 1: 'I do not know.' -> 0.75;  '' -> 0\n",
        "training, in all",
        "for 4 steps, as in the last run in out/letters",
        f"trainer.steps {STEPS} -> {STEPS + 4}",
        "Everything that needs no worker is in order.",
    ):
        assert part in shown
    assert trained_job.contents() == before


@pytest.mark.parametrize(
    ("function", "warning"),
    [
        ("return 1.0", "warning: every completion got 1. A reward without differences teaches nothing."),
        ("return completion != answer", "warning: a made-up completion scores higher than every row's own answer."),
    ],
)
def test_a_dry_run_warns_of_a_reward_that_teaches_nothing(
    trained_job: Job, function: str, warning: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_job.folder)
    (trained_job.folder / "rewards.py").write_text(f"def score(prompt, completion, answer, row):\n    {function}\n")
    changes = ["reward.function=rewards:score", "data.train.uri=file:answers.jsonl", NEW]
    assert dry_run(Path("job.yaml"), None, [f"spec.{change}" for change in changes]) == 0
    printed = capsys.readouterr().out
    assert warning in printed
    assert "The warnings above do not stop a run." in printed and "is in order" not in printed
    (trained_job.folder / "rewards.py").unlink()


def test_a_dry_run_warns_of_fewer_rows_than_a_step_takes(
    trained_job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(trained_job.folder)
    assert dry_run(Path("job.yaml"), None, ["spec.rollout.promptsPerStep=9"]) == 0
    assert "warning: spec.rollout.promptsPerStep: 9, but the data has only 8 rows" in capsys.readouterr().out


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
    add_mistakes(job)
    (job.folder / "empty.jsonl").touch()
    (job.folder / "questions.jsonl").write_text('{"prompt": "hello"}\n{"question": "hello"}\n')
    return job


def add_mistakes(job: Job) -> None:
    """Add rewards, data, models and adapters that are each wrong in one way."""
    files = {
        "mistakes.py": "LETTERS = 1\ndef three(prompt, completion, answer): ...\ndef score(*all): ...\n",
        "unfinished.py": "def score(prompt, completion, answer, row)\n    return 1.0\n",
        "needs_more.py": "import a_package_that_is_not_here\n",
        "ends.py": "import os\nos._exit(3)\n",
        "broken.jsonl": '{"prompt": "a"}\n{"prompt": "b"\n',
        "list.jsonl": '["a"]\n',
        "rows.txt": '{"prompt": "a"}\n',
        "silent.jsonl": '{"prompt": ""}\n',
        "roles.jsonl": '{"prompt": [{"content": "a"}]}\n',
        "chats.jsonl": '{"prompt": [{"role": "user", "content": "a"}]}\n',
        "answers.jsonl": "".join(json.dumps({"prompt": prompt, "answer": "7"}) + "\n" for prompt in PROMPTS),
    }
    for name, content in files.items():
        (job.folder / name).write_text(content)
    (job.folder / "latin.jsonl").write_bytes('{"prompt": "caf\xe9"}\n'.encode("latin-1"))
    for name in ("bad-template", "another-family", "no-weights", "no-tokenizer"):
        shutil.copytree(job.base, job.folder / name)
    change_json(job.folder / "bad-template" / "tokenizer_config.json", chat_template="{{ raise_exception('no') }}")
    change_json(job.folder / "another-family" / "config.json", model_type="gpt2")
    (job.folder / "no-weights" / "model.safetensors").unlink()
    (job.folder / "no-tokenizer" / "tokenizer.json").unlink()
    for name in ("fewer", "cut", "dora", "wide"):
        shutil.copytree(job.folder / "trained", job.folder / name)
    change_json(job.folder / "dora" / "adapter_config.json", use_dora=True)
    tensors = load_file(job.folder / "trained" / WEIGHTS)
    save_file({name: value for name, value in tensors.items() if "mlp" not in name}, job.folder / "fewer" / WEIGHTS)
    os.truncate(job.folder / "cut" / WEIGHTS, (job.folder / "trained" / WEIGHTS).stat().st_size - 8)
    first = next(name for name in tensors if name.endswith("layers.0.self_attn.q_proj.lora_A.weight"))
    save_file(tensors | {first: np.pad(tensors[first], ((0, 0), (0, 1)))}, job.folder / "wide" / WEIGHTS)


def change_json(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
