"""Null, empty and absent are one in every format, and names lead into nested columns."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import DataSource
from lorarl_trainer.data.columns import cell
from lorarl_trainer.data.rows import Row, digest_of, load_rows
from lorarl_trainer.errors import InputError

FIELD = "spec.data.train"
CALL = {"function": {"name": "add", "arguments": {"x": 1}}}
CHATS = [
    [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4", "thinking": "two and two"}],
    [{"role": "user", "content": "hi", "name": "Ann"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
    [{"role": "user", "content": "yes?"}, {"role": "assistant", "content": "yes", "weight": 1}],
]


def load(path: Path, **fields: str) -> list[Row]:
    source = DataSource(uri=f"file:{path}", **fields)
    return load_rows(source, field=FIELD, needs_answer="answer_field" in source.model_fields_set, fetch=lambda _: path)


def written(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Path]:
    """Write the rows in each format that has nested columns."""
    lines, table = folder / "rows.jsonl", folder / "rows.parquet"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), table)
    hub = folder / "hub"
    hub.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), hub / "train-00000-of-00001.parquet")
    return {"jsonl": lines, "parquet": table, "hub": hub}


def test_messages_are_the_same_from_every_format(tmp_path: Path) -> None:
    """Arrow gives each message the keys of all others."""
    files = written(tmp_path, [{"messages": chat, "id": number} for number, chat in enumerate(CHATS)])
    assert pq.read_table(files["parquet"]).to_pylist()[0]["messages"][0]["tool_calls"] is None, "tables fill up"
    found = {name: load(path, messagesField="messages") for name, path in files.items() if name != "hub"}
    source = DataSource(uri=f"hf://{files['hub']}", messagesField="messages")
    found["hub"] = load_rows(source, field=FIELD, needs_answer=False, fetch=Path)
    assert [row.raw["messages"] for row in found["jsonl"]] == CHATS
    assert found["parquet"] == found["jsonl"] == found["hub"]
    assert len({digest_of(rows) for rows in found.values()}) == 1


NOTHING = st.sampled_from([None, "absent"])
MESSAGES = st.builds(
    lambda calls, thinking, name: {"tool_calls": calls, "thinking": thinking, "name": name},
    st.sampled_from([None, "absent", [], [CALL]]),
    NOTHING | st.just("hm"),
    NOTHING | st.just("Ann"),
).map(lambda keys: {"role": "user", "content": "a"} | {k: v for k, v in keys.items() if v != "absent"})


@settings(max_examples=50, deadline=None)
@given(chat=st.lists(MESSAGES, min_size=1, max_size=3))
def test_no_message_keeps_a_key_without_a_value(
    tmp_path_factory: pytest.TempPathFactory, chat: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text(json.dumps({"prompt": chat}) + "\n")
    ((row,),) = [load(path)]
    assert all(value not in (None, []) for message in row.prompt for value in message.values())
    plain = [{key: value for key, value in message.items() if value not in (None, [])} for message in chat]
    assert row.prompt == plain


def test_other_cells_keep_what_a_reward_may_look_for(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "level": null, "meta": {"unit": null}}\n')
    assert load(path)[0].raw == {"prompt": "a", "level": None, "meta": {"unit": None}}
    without = tmp_path / "without.jsonl"
    without.write_text('{"prompt": "a", "meta": {}}\n')
    assert digest_of(load(path)) == digest_of(load(without)), "to compare, it is as if it were not there"


def test_decimals_and_short_floats_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {
        "prompt": ["a", "b"],
        "answer": pa.array([Decimal("12.50"), Decimal("3.00")], pa.decimal128(10, 2)),
        "half": pa.array([0.1, None], pa.float16()),
        "long": pa.array([Decimal("1" * 30 + ".25")] * 2, pa.decimal128(38, 2)),
    }
    pq.write_table(pa.table(columns), path)
    rows = load(path, answerField="answer")
    assert [row.answer for row in rows] == ["12.5", "3"]
    assert [row.raw["answer"] for row in rows] == [12.5, 3] and [row.raw["half"] for row in rows] == [0.1, None]
    assert load(path, answerField="long")[0].answer == "1" * 30 + ".25", "exact where a double is not"


@pytest.mark.parametrize("short", [pa.float16(), pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("size", [None, 1], ids=["whole", "a part"])
def test_floats_are_the_numbers_that_people_wrote_at_any_depth(tmp_path: Path, short: pa.DataType, size: int) -> None:
    text = pa.field("unit", pa.string())
    kinds = {
        "number": (short, 0.1),
        "object": (pa.struct([("truth", short), text]), {"truth": 0.1, "unit": "kg"}),
        "list": (pa.list_(short), [0.1, None]),
        "large": (pa.large_list(short), [0.1]),
        "fixed": (pa.list_(short, 2), [0.1, 0.3]),
        "objects": (pa.list_(pa.struct([("all", pa.list_(short)), text])), [{"all": [0.1], "unit": None}]),
        "map": (pa.map_(pa.string(), short), [("a", 0.1)]),
    }
    short_of = np.float16 if pa.types.is_float16(short) else float
    columns = {name: pa.array(_as(short_of, [value, None, value]), kind) for name, (kind, value) in kinds.items()}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], **columns}), path, row_group_size=size or 3)
    rows = load(path)
    for name, (_, value) in kinds.items():
        assert [row.raw[name] for row in rows] == [value, None, value]
    pq.write_table(pa.table({"prompt": ["a"], "o": columns["object"].slice(0, 1)}), path)
    assert load(path, answerField="o.truth")[0].answer == "0.1", "not 0.10000000149011612"


def _as(kind: Any, value: Any) -> Any:
    """Return a value with its floats as Arrow takes those of a type."""
    if isinstance(value, dict):
        return {key: _as(kind, one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_as(kind, one) for one in value)
    return kind(value) if isinstance(value, float) else value


VERL = {"prompt": [{"role": "user", "content": "0+2?"}], "reward_model": {"style": "rule", "ground_truth": "2"}}


def test_a_name_leads_into_a_nested_column(tmp_path: Path) -> None:
    for path in (one for name, one in written(tmp_path, [VERL, VERL]).items() if name != "hub"):
        assert [row.answer for row in load(path, answerField="reward_model.ground_truth")] == ["2", "2"]
    assert cell({"a.b": 1, "a": {"b": 2}}, "a.b") == 1, "a column of that very name comes first"
    assert cell({"a": {"b": {"c": 3}}}, "a.b.c") == 3
    assert cell({"a": "text"}, "a.b") is cell({}, "a.b") is None


@pytest.mark.parametrize("name", ["reward_model", "reward_model.ground_trut", "reward_modl.ground_truth"])
def test_a_hint_for_a_nested_column_works(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, [VERL])["jsonl"]
    with pytest.raises(InputError) as caught:
        load(path, answerField=name)
    hint = caught.value.hint
    assert "reward_model.ground_truth" in hint
    assert load(path, answerField="reward_model.ground_truth")[0].answer == "2"


def test_an_answer_may_be_one_message_of_the_assistant(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    prompt, yes = [{"role": "user", "content": "q"}], {"role": "assistant", "content": "yes"}
    path.write_text(json.dumps({"prompt": prompt, "completion": [yes]}) + "\n")
    assert load(path, answerField="completion")[0].answer == "yes"
    for completion, told in {
        (("role", "assistant"), ("content", "yes"), ("thinking", "hm")): "Write thinking into content",
        (): "Join prompt and answer into one column of messages",
    }.items():
        path.write_text(json.dumps({"prompt": prompt, "completion": [dict(completion)] if completion else [yes, yes]}))
        with pytest.raises(InputError, match=told):
            load(path, answerField="completion")
