"""Jobs that learn from the data can be evaluated by completions, whatever columns and adapters only they may have."""

from __future__ import annotations

import pytest

from lorarl_api.load import load_job
from lorarl_trainer.trained_adapters.request import Request, resolve

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
