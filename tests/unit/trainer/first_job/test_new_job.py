"""`lorarl init`: what it writes is a job, and it overwrites nothing."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lorarl_api.load import load_job
from lorarl_trainer.cli import main
from lorarl_trainer.first_job.first_run import FirstRun, first_run
from lorarl_trainer.first_job.new_data import held_out_beside
from lorarl_trainer.first_job.new_job import REWARDS, NewJob, advice
from lorarl_trainer.models.model_sizes import ModelSizes, sizes_of
from lorarl_trainer.rewards.environment.environment import Answer, Environment
from lorarl_trainer.rewards.process import CodeFolders
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
    columns = {"promptField": "question", "answerField": "the solution"}
    job = NewJob("sums", "hf://org/model", "file:rows.csv", reward, columns, gpus=gpus)
    files, spec = job.files(), job.load()
    assert (spec.reward and (spec.reward.type or spec.reward.function)) == (
        "my_reward:score" if reward == "function" else reward
    )
    assert spec.data.train is not None
    assert (spec.data.train.prompt_field, spec.data.train.answer_field) == ("question", "the solution")
    assert spec.cluster.gpus_per_node == gpus
    assert sorted(files) == (["job.yaml", "my_reward.py"] if reward == "function" else ["job.yaml"])


@pytest.mark.parametrize("word", ["y", "no", "null", "on", "true", "1e3", "_", "n:m", "a b", "été"])
def test_columns_and_names_that_yaml_reads_otherwise_stay_texts(word: str) -> None:
    columns = {"promptField": "x", "answerField": word}
    name = word if word.isalpha() and word.isascii() else "sums"
    job = load_job(NewJob(name, "file:/base", "file:rows.jsonl", "exact", columns=columns).files()["job.yaml"])
    assert job.spec.data.train is not None
    assert (job.name, job.spec.data.train.prompt_field, job.spec.data.train.answer_field) == (name, "x", word)


def test_held_out_rows_are_a_file_of_the_same_kind_beside_the_others() -> None:
    def suggested(data: str | None) -> str:
        job = NewJob("sums", "hf://org/model", data, "numeric").files()["job.yaml"]
        (line,) = [line for line in job.splitlines() if "eval:" in line]
        assert line.strip().startswith("# eval" if data else "eval"), "example rows have some held out"
        return line.split('"')[1]

    assert suggested(None) == "file:held_out.jsonl"
    assert suggested("file:rows.csv") == "file:held_out.csv"
    assert suggested("file:///data/rows.parquet") == "file:///data/held_out.parquet"
    assert suggested("hf://org/rows") == "hf://org/rows", "of which the default split is test"


@pytest.mark.parametrize(
    ("data", "first"),
    [
        ("file:rows.jsonl", "split:"),
        ("file:rows.csv", "move some rows into file:held_out.csv, and remove the # before eval in job.yaml."),
        ("hf://org/rows", "name another split, and remove the # before eval in job.yaml."),
    ],
)
def test_what_holds_rows_out_is_told_as_the_data_allows(data: str, first: str) -> None:
    [told] = [line for line in advice(NewJob("demo", "hf://org/model", data, "exact"), []) if "held-out" in line]
    assert told.endswith(f"Name them (--held-out), or {first}")


def test_held_out_rows_that_are_there_are_used(tmp_path: Path, base: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS)
    first = init(tmp_path / "one", "--model", base, "--data", tmp_path / "rows.jsonl")
    assert f"head -n 64 {tmp_path}/rows.jsonl > {tmp_path}/held_out.jsonl" in first.stdout
    assert load_job(tmp_path / "one" / "job.yaml").spec.data.eval is None
    (tmp_path / "test.jsonl").write_text(ROWS)
    second = init(tmp_path / "two", "--model", base, "--data", tmp_path / "rows.jsonl")
    assert "head -n" not in second.stdout
    found = load_job(tmp_path / "two" / "job.yaml").spec.data.eval
    assert found is not None and found.uri == f"file://{tmp_path}/test.jsonl" and found.prompt_field == "question"


@pytest.mark.parametrize(
    ("data", "held_out"),
    [("sea.csv", "sea_held_out.csv"), ("sea_train.csv", "sea-test.csv"), ("train.csv", "eval.csv")],
)
def test_held_out_rows_are_found_by_the_datas_own_name(tmp_path: Path, data: str, held_out: str) -> None:
    (tmp_path / held_out).touch()
    (tmp_path / "other_test.csv").touch()
    assert held_out_beside(f"file://{tmp_path}/{data}") == f"file://{tmp_path}/{held_out}"


def test_data_without_answers_asks_for_a_rule(tmp_path: Path, base: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "Say a word with b.", "letter": "b"}\n' * 3)
    done = init(tmp_path / "new", "--model", base, "--data", tmp_path / "rows.jsonl")
    assert "The data has no column with answers, so the example in my_reward.py only prefers short" in done.stdout
    assert "`row` has letter." in done.stdout


@pytest.mark.parametrize("template", [CHATML, None])
def test_a_base_without_a_chat_template_takes_prompts_as_they_are(tmp_path: Path, template: str | None) -> None:
    base = write_tokenizer(tmp_path / "base", template=template)
    (base / "config.json").write_text(json.dumps(SHAPES["0.5B"]))
    assert init(tmp_path / "job", "--model", base, "--reward", "numeric").exit_code == 0
    job = load_job((tmp_path / "job" / "job.yaml").read_text())
    assert job.spec.data.chat_template == (template is not None)


@pytest.mark.parametrize("algorithm", ["sft", "dpo"])
def test_examples_and_pairs_make_jobs_without_a_reward(tmp_path: Path, base: Path, algorithm: str) -> None:
    done = init(tmp_path / "new", "--model", base, "--algorithm", algorithm)
    assert done.exit_code == 0, done.output
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["held_out.jsonl", "job.yaml", "train.jsonl"]
    job = load_job(tmp_path / "new" / "job.yaml")
    assert job.spec.algorithm.type == algorithm and job.spec.reward is None and job.spec.data.eval is not None
    row = json.loads((tmp_path / "new" / "train.jsonl").read_text().splitlines()[0])
    assert sorted(row) == (["answer", "prompt"] if algorithm == "sft" else ["chosen", "prompt", "rejected"])


@pytest.mark.parametrize(
    ("algorithm", "row", "fields"),
    [
        (
            "sft",
            {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
            {"messages_field": "messages"},
        ),
        (
            "dpo",
            {"question": "a", "chosen": "b", "rejected": "c"},
            {"prompt_field": "question", "chosen_field": "chosen"},
        ),
        ("grpo", {"question": "a", "level": 1}, {"prompt_field": "question", "answer_field": "answer"}),
    ],
)
def test_columns_are_found_by_the_algorithm(
    tmp_path: Path, base: Path, algorithm: str, row: dict[str, Any], fields: dict[str, str]
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    done = init(tmp_path / "new", "--model", base, "--data", tmp_path / "rows.jsonl", "--algorithm", algorithm)
    assert done.exit_code == 0, done.output
    train = load_job(tmp_path / "new" / "job.yaml").spec.data.train
    assert {name: getattr(train, name) for name in fields} == fields


SMALL, LARGE = sizes_of(SHAPES["0.5B"]), sizes_of(SHAPES["7B"])


def size_of(model: ModelSizes, algorithm: str = "grpo", answer: int = 4) -> FirstRun:
    job = NewJob("sums", "hf://org/model", None, "numeric", algorithm=algorithm)
    size = partial(replace, job)
    return first_run(
        lambda one: size(size=one).load(),
        model,
        2e11,
        from_data=algorithm != "grpo",
        prompt_tokens=64,
        answer_tokens=answer,
    )


def test_a_first_run_ends_in_time_on_two_cores() -> None:
    small = size_of(SMALL)
    assert small.seconds is not None and small.seconds <= 330 and small.steps >= 10
    assert small.duration == f"about {round(small.seconds / 60)} minutes here at most; more steps learn more"
    assert size_of(SMALL, answer=60).response == 128, "an answer fits, and as much again"
    examples = size_of(SMALL, "sft")
    assert examples.seconds is not None and examples.seconds <= 120 and examples.prompts >= 8
    assert (small.every, examples.every) == (small.steps // 2, examples.steps // 2), "three evaluations"


def test_a_first_run_of_a_minute_is_one_minute() -> None:
    assert FirstRun(4, 4, 32, 5, seconds=20.0).duration == "about 1 minute here at most; more steps learn more"


def test_a_model_that_is_too_large_says_so() -> None:
    large = size_of(LARGE)
    assert (large.prompts, large.group, large.steps) == (4, 4, 5)
    assert large.duration.endswith("a smaller model is faster")


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
    assert (job.spec.rollout.max_prompt_tokens, job.spec.rollout.max_response_tokens) == (128, 64)
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


def test_the_environment_that_it_writes_plays(tmp_path: Path, base: Path) -> None:
    done = init(tmp_path / "new", "--model", base, "--environment")
    assert done.exit_code == 0, done.output
    job = load_job(tmp_path / "new" / "job.yaml").spec
    assert "# a longer opening fails\n" in (tmp_path / "new" / "job.yaml").read_text()
    train, held_out = (source and source.episodes for source in (job.data.train, job.data.eval))
    assert train and held_out and train.seed + train.size <= held_out.seed
    assert job.environment is not None
    settings = job.environment.model_copy(update={"timeout_seconds": 60.0})
    environment = Environment(settings, CodeFolders((str(tmp_path / "new"),)))

    async def play() -> list[Answer]:
        async with environment.episode(0) as episode:
            assert str(await episode.reset({"seed": 0})).startswith("I think of a number from 1 to 20.")
            return [await episode.step(text) for text in ("No.", "It is 12345678901.", "1", *map(str, range(2, 21)))]

    answers = asyncio.run(play())
    environment.close()
    won = [answer.done for answer in answers].index(True)
    assert answers[won].reward == 1.0 and won == 1 + random.Random(0).randint(1, 20)
    assert [answer.text for answer in answers[:3]] == ["Write a number.", "It is lower.", "It is higher."]
    assert 0.0 < (answers[0].reward or 0.0) < (answers[1].reward or 0.0) < 0.1


def test_it_overwrites_nothing_and_keeps_a_reward(tmp_path: Path, base: Path) -> None:
    (tmp_path / "my_reward.py").write_text("mine")
    (tmp_path / "job.yaml").write_text("mine")
    done = init(tmp_path, "--model", base)
    assert done.exit_code == 1
    assert f"FOLDER: got {tmp_path}, which contains job.yaml, expected a folder without such a file." in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "job.yaml", "my_reward.py"]
    (tmp_path / "job.yaml").unlink()
    done = init(tmp_path, "--model", base)
    assert done.exit_code == 0 and f"kept {tmp_path}/my_reward.py" in done.stdout
    assert (tmp_path / "my_reward.py").read_text() == "mine"


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
            "--prompt-field: got nothing, and data with the columns a, b, expected the column with the prompt. Name "
            "them, for example --prompt-field a.",
        ),
        (
            ("--model", "org/model", "--data", "odd.jsonl", "--prompt-field", "a", "--reward", "exact"),
            "--answer-field: got nothing, and data with the columns a, b, expected the column with the answer. "
            "Name them, for example --answer-field b.",
        ),
        (("--model", "org/model", "--name", "No Name"), "metadata.name: got "),
        (
            ("--model", "org/model", "--environment", "--prompt-field", "a"),
            "--prompt-field: got a, expected none beside --environment, whose class makes tasks and rewards. Remove",
        ),
        (
            ("--model", "org/model", "--algorithm", "sft", "--reward", "exact"),
            "--reward: got exact, expected none for sft, which learns from the data's own answers. Remove --reward, or",
        ),
        (
            ("--model", "org/model", "--data", "odd.jsonl", "--algorithm", "dpo"),
            "--prompt-field and --chosen-field and --rejected-field: got nothing, and data with the columns a, b",
        ),
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
