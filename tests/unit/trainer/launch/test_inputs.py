"""What a run reads of its rows, and what it warns of, by the job's rewards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.data.tokenizer import load_tokenizer
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import EncodedData, Vocabulary, encode_rows, read_rows
from support.tiny_tokenizers import CHATML, write_tokenizer
from unit.contract.manifests import manifest

JUDGE = {"url": "http://judge:8000/v1", "model": "judge"}


def read(folder: Path, rows: list[dict[str, Any]], changes: dict[str, Any], template: str = CHATML) -> EncodedData:
    """Read and encode the rows of a job, which are trained on and held out."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"spec.data.train.uri": f"file:{path}", "spec.data.eval.uri": f"file:{path}"}
    spec = LoRARLJob.model_validate(manifest(sources | changes)).spec
    tokenizer = load_tokenizer(write_tokenizer(folder / "model", template=template))
    return encode_rows(spec, read_rows(spec, {}), Vocabulary(tokenizer, (3,)))


LISTS = [{"prompt": "the capital of France", "answer": ["Paris", "paris"]}]


@pytest.mark.parametrize(
    "reward",
    [{"function": "a:b"}, {"type": "format", "pattern": "a"}, {"server": JUDGE | {"instruction": "{completion}?"}}],
    ids=str,
)
def test_a_reward_without_answers_leaves_them_in_the_row(tmp_path: Path, reward: dict[str, Any]) -> None:
    data = read(tmp_path, LISTS, {"spec.reward": reward})
    (row,) = data.train
    assert (row.row.answer, row.row.raw["answer"]) == (None, ["Paris", "paris"])
    told = [warning for warning in data.warnings if "no text or number" in warning]
    assert [warning.partition(":")[0] for warning in told] == [
        "spec.data.train.answerField",
        "spec.data.eval.answerField",
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"spec.reward": {"type": "exact"}},
        {"spec.reward": {"server": JUDGE}},
        {"spec.reward": None, "spec.algorithm.type": "sft"},
    ],
    ids=str,
)
def test_what_sees_the_answers_refuses_others_than_texts(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"answerField: got \['Paris', 'paris'\] \(list\) in row 1 of"):
        read(tmp_path, LISTS, changes)
