"""What Python passes becomes the manifest's fields, with the manifest's own messages. A fault writes nothing."""

from __future__ import annotations

import json
import linecache
from pathlib import Path
from typing import Any

import pytest
import yaml

from lorarl.job import JobLike, asked, assignments
from lorarl_api.load import ManifestError, assign, load_job
from lorarl_trainer.errors import InputError
from unit.contract.manifests import manifest

JOB = manifest({"metadata.name": "sums"})
ROWS = [{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 2", "answer": "4", "level": None}]


def right(prompt: str, completion: str, answer: str, row: dict[str, Any]) -> float:
    return float(completion == answer)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_form_of_a_job_is_the_same_job() -> None:
    Path("job.yaml").write_text(yaml.safe_dump(JOB))
    forms: list[JobLike] = ["job.yaml", Path("job.yaml"), yaml.safe_dump(JOB), JOB, load_job(json.dumps(JOB))]
    jobs = [asked(form, overrides={"spec.trainer.learningRate": 1e-5}).job for form in forms]
    assert all(job == jobs[0] for job in jobs)
    assert jobs[0].spec.trainer.learning_rate == 1e-5


@pytest.mark.parametrize("changes", [{"spec.trainer.step": 3}, {"metadata.name": "No Name"}, {"spec.model": None}])
def test_a_fault_reads_as_that_of_the_manifest(changes: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as here:
        asked(JOB, data=ROWS, overrides=changes)
    with pytest.raises(ManifestError) as there:
        load_job(json.dumps(JOB), assignments(changes))
    assert str(here.value) == str(there.value)
    assert list(Path().iterdir()) == []


def test_rows_take_the_place_of_the_file_and_keep_the_columns() -> None:
    source = {"uri": "hf://org/data", "subset": "main", "promptField": "question", "answerField": "solution"}
    called = asked(manifest({"metadata.name": "sums", "spec.data.train": source}), data=ROWS, held_out=ROWS[:1])
    data = called.job.spec.data
    assert data.train is not None and data.eval is not None
    assert (data.train.uri, data.train.prompt_field) == ("file:out/sums/inputs/train.jsonl", "question")
    assert data.eval.uri == "file:out/sums/inputs/eval.jsonl"
    written = called.files[Path("out/sums/inputs/train.jsonl")]
    assert [json.loads(line) for line in written.splitlines()] == ROWS


def test_rows_take_the_place_of_a_mixture() -> None:
    several = {"spec.data.train": None, "spec.data.mixture": [{"name": "one", "uri": "file:one.jsonl"}]}
    data = asked(manifest(several), data=ROWS).job.spec.data
    assert data.mixture is None and data.train is not None


def test_a_reward_may_be_what_the_manifest_takes() -> None:
    for given, expected in (
        ("numeric", ("type", "numeric")),
        ("my_rewards:score", ("function", "my_rewards:score")),
        ({"type": "regex", "pattern": "a"}, ("type", "regex")),
        (json.dumps, ("function", "json:dumps")),
    ):
        reward = asked(JOB, reward=given).job.spec.reward
        assert reward is not None and getattr(reward, expected[0]) == expected[1]


def test_several_functions_are_several_rewards() -> None:
    spec = asked(JOB, reward=[right, json.dumps]).job.spec
    assert spec.reward is None and spec.rewards is not None
    assert [(each.name, each.function) for each in spec.rewards] == [
        ("right", f"{__name__}:right"),
        ("dumps", "json:dumps"),
    ]


def test_a_path_of_ones_own_is_used_as_it_is(tmp_path: Path) -> None:
    called = asked(JOB, data=ROWS, out=tmp_path / "my run")
    assert called.out == tmp_path / "my run"
    assert tmp_path / "my run" / "inputs" / "job.yaml" in called.files


REFUSED = {
    "columns": ({"prompt": ["a"], "answer": ["b"]}, "data='train'|data\\['train'\\]"),
    "a text": ("train.jsonl", "spec.data.train.uri"),
    "nothing": ([], "Add rows"),
    "a text in place of a row": (["a"], "Write a dict for each row"),
    "a value without a place in JSON": ([{"prompt": "a", "answer": {1, 2}}], "Convert it"),
    "half a surrogate pair": (
        [{"prompt": "a", "answer": {"b": "c\ud800"}}],
        "column answer.*surrogate .*ud800.*encode",
    ),
    "half a surrogate pair as a column": ([{"a\ud800": "b"}], "column a.*surrogate"),
    "a number as a column": ([{"prompt": "a", 1: "b"}], "column 1.* the key 1 of type int.*texts"),
    "a tuple as a column": ([{"prompt": "a", (1, 2): "b"}], r"the key \(1, 2\) of type tuple"),
    "a number as a key within": ([{"prompt": "a", "choices": [{0: "b"}]}], "column choices.* the key 0 of type int"),
    "a number that is none": ([{"prompt": "a", "answer": float("nan")}], "use None"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_rows_is_refused_with_a_fix(kind: str) -> None:
    rows, fix = REFUSED[kind]
    with pytest.raises(InputError, match=fix):
        asked(JOB, data=rows)  # type: ignore[arg-type]


@pytest.mark.slow
def test_rows_may_be_a_data_set_or_a_table() -> None:
    import datasets
    import pandas as pd
    import pyarrow as pa

    rows = asked(JOB, data=datasets.Dataset.from_list(ROWS[::-1])).files
    assert [json.loads(line) for line in next(iter(rows.values())).splitlines()] == [
        ROWS[1],
        {**ROWS[0], "level": None},
    ]
    with pytest.raises(InputError, match=r"data=table.to_dict\('records'\)"):
        asked(JOB, data=pd.DataFrame(ROWS))
    with pytest.raises(InputError, match=r"data=table.to_pylist\(\)"):
        asked(JOB, data=pa.Table.from_pylist(ROWS))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="train"):
        asked(JOB, data=datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}))


def test_a_table_of_polars_is_not_asked_for_its_columns() -> None:
    class DataFrame:  # the names of Polars, which is not a dependency
        columns = ("prompt",)

        def to_dict(self) -> dict[str, list[str]]:
            return {"prompt": ["a"]}

        def to_dicts(self) -> list[dict[str, str]]:
            return [{"prompt": "a"}]

    with pytest.raises(InputError, match=r"Write data=table.to_dicts\(\)"):
        asked(JOB, data=DataFrame())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "fix"),
    [
        ([linecache.getline, "numeric"], r"'numeric' in a list of functions.*overrides={'spec.rewards': "),
        ({"function": linecache.getline}, "spec.reward: got a value of type function.* Pass functions as reward="),
        (3, "got a value of type int.* Define it with def"),
    ],
)
def test_what_is_no_reward_is_refused_with_a_fix(reward: Any, fix: str) -> None:
    with pytest.raises(InputError, match=fix):
        asked(JOB, reward=reward)


@pytest.mark.parametrize("value", [b"x", {"q_proj"}, object(), [{"a": b"x"}]], ids=["bytes", "set", "object", "list"])
def test_a_value_that_no_manifest_has_is_refused_with_its_field(value: object) -> None:
    with pytest.raises(InputError, match=r"spec.x: got .*expected texts, numbers, lists and dicts. Convert it"):
        assignments({"spec.x": value})


@pytest.mark.parametrize("value", ["y", "09", "1e5", "a: b", "", ["n", "no"], {"on": "off"}, 1e-5, True, None])
def test_a_value_of_python_is_that_value_in_the_manifest(value: object) -> None:
    (assignment,) = assignments({"spec.x": value})
    document: dict[str, object] = {}
    assign(document, [assignment])
    assert document == {"spec": {"x": value}}
