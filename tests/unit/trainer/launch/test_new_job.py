"""`lorarl init`: what it writes is a job, and it overwrites nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lorarl_api.load import load_job
from lorarl_trainer.cli import main
from lorarl_trainer.launch.new_job import REWARDS, NewJob
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.trainer.planning.shapes import SHAPES

ROWS = '{"question": "2 + 2", "solution": "4", "level": 1}\n'


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model without its weights, which a manifest needs not."""
    folder = write_tokenizer(tmp_path / "base", template=CHATML)
    (folder / "config.json").write_text(json.dumps(SHAPES["0.5B"] | {"max_position_embeddings": 256}))
    return folder


def init(*words: object, gpus: int = 0) -> Result:
    return CliRunner().invoke(main, ["init", *map(str, words), "--gpus", str(gpus)])


@pytest.mark.parametrize("reward", REWARDS)
@pytest.mark.parametrize("gpus", [0, 1])
def test_every_answer_makes_a_valid_manifest(reward: str, gpus: int) -> None:
    files = NewJob("sums", "hf://org/model", "file:rows.csv", reward, "question", "solution", gpus).files()
    spec = load_job(files["job.yaml"]).spec
    assert (spec.reward and (spec.reward.type or spec.reward.function)) == (
        "my_reward:score" if reward == "function" else reward
    )
    assert (spec.data.train.prompt_field, spec.data.train.answer_field) == ("question", "solution")
    assert spec.cluster.gpus_per_node == gpus
    assert sorted(files) == (["job.yaml", "my_reward.py"] if reward == "function" else ["job.yaml"])


def test_held_out_rows_are_looked_for_beside_the_others() -> None:
    def suggested(data: str | None) -> str:
        job = NewJob("sums", "hf://org/model", data, "numeric").files()["job.yaml"]
        (line,) = [line for line in job.splitlines() if "# eval:" in line]
        return line.split('"')[1]

    assert suggested(None) == suggested("file:rows.csv") == suggested("hf://org/rows") == "file:held_out.jsonl"
    assert suggested("file:///data/rows.csv") == "file:///data/held_out.jsonl"


def test_the_example_reward_looks_for_the_answer_as_a_word() -> None:
    made: dict[str, Any] = {}
    exec(NewJob("sums", "hf://org/model", None, "function").files()["my_reward.py"], made)
    scores = {said: made["score"]("", said, "5", {})["score"] for said in ("5", "It is 5.", "150")}
    assert scores["5"] > scores["It is 5."] == 0.5 > scores["150"]


def test_what_it_writes_passes_validation(tmp_path: Path, base: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    done = init(tmp_path / "new", "--model", base, "--data", tmp_path / "rows.jsonl")
    assert done.exit_code == 0, done.output
    assert "lorarl run job.yaml --dry-run" in done.stdout
    job = load_job(tmp_path / "new" / "job.yaml")
    assert job.name == "new"
    assert (job.spec.data.train.prompt_field, job.spec.data.train.answer_field) == ("question", "solution")
    assert job.spec.rollout.max_prompt_tokens + job.spec.rollout.max_response_tokens == 256
    command = [sys.executable, "-m", "lorarl_trainer.cli", "validate", "job.yaml"]
    valid = subprocess.run(command, cwd=tmp_path / "new", capture_output=True, text=True, check=False)
    assert valid.returncode == 0, valid.stdout


def test_the_reward_that_it_writes_works(tmp_path: Path, base: Path) -> None:
    init(tmp_path / "new", "--model", base)
    code: dict[str, object] = {}
    exec((tmp_path / "new" / "my_reward.py").read_text(), code)
    score = code["score"]
    assert callable(score)
    exact, within, wrong, empty = (score("", text, "5", {})["score"] for text in ("5", "It is 5.", "six", ""))
    assert exact == 1
    assert exact > within > wrong > empty == 0


def test_it_overwrites_nothing(tmp_path: Path, base: Path) -> None:
    (tmp_path / "my_reward.py").write_text("mine")
    done = init(tmp_path, "--model", base)
    assert done.exit_code == 1
    assert f"FOLDER: got {tmp_path}, which contains my_reward.py, expected a folder without them." in done.output
    assert (tmp_path / "my_reward.py").read_text() == "mine"
    assert not (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--model: got nothing, expected the base model. Add --model, for example"),
        (
            ("--model", "./nowhere"),
            "--model: got ./nowhere, expected a folder with a model, or ORG/NAME on the Hugging",
        ),
        (
            ("--model", "org/model", "--data", "gone.jsonl"),
            "gone.jsonl, which does not exist, expected a file with data",
        ),
        (
            ("--model", "org/model", "--data", "odd.jsonl"),
            "--prompt-field and --answer-field: got nothing, and data with the columns a, b, expected the column with "
            "the prompt and the column with the answer. Name them, for example --prompt-field a --answer-field b.",
        ),
        (
            ("--model", "org/model", "--data", "odd.jsonl", "--prompt-field", "a"),
            "--answer-field: got nothing, and data with the columns a, b, expected the column with the answer. "
            "Name them, for example --answer-field b.",
        ),
        (("--model", "org/model", "--name", "No Name"), "metadata.name: got "),
    ],
    ids=str,
)
def test_a_mistake_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.jsonl").write_text('{"a": "x", "b": "y"}\n')
    done = init("new", *words)
    assert done.exit_code == 1
    assert message in done.output
    assert not (tmp_path / "new").exists()
