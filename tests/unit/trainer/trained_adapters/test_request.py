"""Jobs that learn from the data can be evaluated by completions, whatever columns and adapters only they may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch import inputs
from lorarl_trainer.trained_adapters.request import Request, of_other_rows, resolve

JOB = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: examples}
spec:
  model: {uri: "file:base"}
  adapter: {rank: 8, targetModules: [all-linear]}
  algorithm: {type: sft}
  data: {train: {uri: "file:rows.jsonl"}, eval: {uri: "file:held_out.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""


@pytest.mark.parametrize(
    "changes",
    [
        ["spec.data.train.messagesField=chat", "spec.data.eval.messagesField=chat"],
        ["spec.data.train={uri: 'file:a.parquet', tokensField: ids, lossMaskField: mask}"],
        ["spec.data.train=null", "spec.data.mixture=[{name: a, uri: 'file:a.jsonl', messagesField: chat}]"],
        ["spec.adapter.dora=true"],
        ["spec.algorithm.type=dpo", "spec.data.train.chosenField=good"],
    ],
)
def test_a_job_that_learns_from_the_data_may_be_judged_by_completions(changes: list[str]) -> None:
    task = resolve(Request("out/examples", data="questions.jsonl", reward="numeric"), load_job(JOB, changes))
    assert task.source.origin == "file:questions.jsonl" and not task.of_job
    assert task.spec.reward is not None and task.spec.reward.type == "numeric"


def test_other_rows_are_read_by_the_columns_of_the_training() -> None:
    """A prompt without its system message would be another one than those that were trained."""
    columns = {"promptField": "question", "answerField": "solution", "systemField": "system", "toolsField": "api"}
    changes = [f"spec.data.train.{name}={column}" for name, column in columns.items()]
    task = resolve(Request("out/examples", data="questions.jsonl", reward="numeric"), load_job(JOB, changes))
    assert task.source.model_dump(by_alias=True) | columns == task.source.model_dump(by_alias=True)


def test_the_games_of_an_evaluation_are_those_of_the_run() -> None:
    """They follow from the run's seed."""
    changes = ["spec.algorithm.type=grpo", "spec.environment.function='my_env:Episode'", "spec.trainer.seed=5"]
    assert resolve(Request("out/examples"), load_job(JOB, changes)).spec.trainer.seed == 5


def test_an_error_of_other_rows_names_what_can_be_changed(tmp_path: Path) -> None:
    """The job's own evaluation is replaced by `--data`, so no field of it can be set beside that."""
    (file := tmp_path / "rows.jsonl").write_text('{"asked": "1+1=", "answer": "2"}\n')

    def read(data: Path, job: LoRARLJob | None) -> str:
        task = resolve(Request("out/examples", data=f"file:{data}", reward="exact"), job)
        try:
            return f"{len(inputs.read_source(task.spec, task.source, field=task.field, secrets={}))} rows"
        except InputError as error:
            return str(of_other_rows(error, task))

    job = load_job(JOB, ["spec.data.train.promptField=question"])
    said = read(file, job)
    assert said.startswith("spec.data.train.promptField: got question, which row 1 of")
    assert said.endswith("Set spec.data.train.promptField to one of them, or add the column.")
    assert read(file, load_job(JOB, ["spec.data.train.promptField=asked"])) == "1 rows", "the hint works"
    assert read(tmp_path / "no.jsonl", job).startswith(f"--data: got file:{tmp_path}/no.jsonl, which does not exist")
    assert read(file, None).startswith("--data: got prompt, which row 1 of") and "--job" in read(file, None)
