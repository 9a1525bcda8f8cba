import gzip
import json
from pathlib import Path

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub.errors import HfHubHTTPError

from lorarl_api.v1alpha1 import DataSource, EpisodesData, EvalSource
from lorarl_trainer.data.files import is_unreachable
from lorarl_trainer.data.rows import Row, load_rows
from lorarl_trainer.errors import InputError
from support.other_user import USER, as_a_user, open_folder


def load(path: Path | str, *, needs_answer: bool = True, source: type[DataSource] = DataSource, **fields) -> list[Row]:
    uri = path if isinstance(path, str) else f"file:{path}"
    spec = source(uri=uri, **fields)
    return load_rows(
        spec, field="spec.data.train", needs_answer=needs_answer, fetch=lambda uri: Path(uri.removeprefix("file:"))
    )


def refused(path: Path | str, **options) -> InputError:
    with pytest.raises(InputError) as caught:
        load(path, **options)
    return caught.value


def jsonl(tmp_path: Path, *rows: object) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json_lines_become_rows_with_everything_that_was_there(tmp_path):
    path = jsonl(tmp_path, {"question": "1+1=", "answer": "2", "level": {"n": 3}})
    assert load(path, prompt_field="question") == [
        Row("1+1=", "2", {"question": "1+1=", "answer": "2", "level": {"n": 3}}, 1)
    ]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "a", "answer": "b"}\n\n{"prompt": "c", "answer": "d"}\r\n')
    assert [(row.prompt, row.number) for row in load(path)] == [("a", 1), ("c", 3)]


@pytest.mark.parametrize(
    ("text", "got", "hint"),
    [
        ('{"prompt": "a", "prompt": "b"}\n', "which has the key prompt twice", "Rename or remove one of the two."),
        ('{"prompt": "a", "tree": ' + "[" * 100_000 + "]" * 100_000 + "}\n", "recursion depth", "Fix that line."),
        (
            '{"prompt": "a"}\r{"prompt": "b"}\r',
            "which is not JSON",
            "The lines end as on an old Mac. Convert them, for",
        ),
        ("{“prompt”: “a”}\n", "which is not JSON", 'Use plain double quotes (") in place of typographic ones'),
    ],
)
def test_lines_that_only_look_like_json_say_what_they_are(tmp_path, text, got, hint):
    path = tmp_path / "train.jsonl"
    path.write_text(text, newline="")
    error = refused(path)
    assert got in error.got and error.hint.startswith(hint)


def test_a_column_of_bytes_is_named(tmp_path):
    pq.write_table(pa.table({"prompt": [b"a"], "answer": ["b"]}), tmp_path / "rows.parquet")
    assert refused(tmp_path / "rows.parquet").hint == "Store the column as text, not as bytes, in every row."


def test_chat_messages_are_prompts(tmp_path):
    messages = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1"}]
    assert load(jsonl(tmp_path, {"prompt": messages, "answer": 2}))[0].prompt == messages


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ({"prompt": "hi \ud83d", "answer": "a"}, "promptField"),
        ({"prompt": [{"role": "user", "content": "\ud83d"}], "answer": "a"}, "promptField"),
        ({"prompt": "hi", "answer": "\ud83d"}, "answerField"),
    ],
)
def test_half_a_character_is_refused_with_its_row(tmp_path, row, field):
    error = refused(jsonl(tmp_path, {"prompt": "\U0001f600", "answer": "whole"}, row))
    assert (error.field, error.expected) == (f"spec.data.train.{field}", "valid Unicode")
    assert error.got.startswith("an unpaired surrogate (\\ud83d) in row 2 of")


def test_numbers_as_answers_become_text(tmp_path):
    numbers = {
        2: "2",
        -2.5: "-2.5",
        72.0: "72",
        0.0: "0",
        1e-05: "0.00001",
        6.02e23: "6.02e+23",
        1234567.9: "1234567.9",
    }
    rows = load(jsonl(tmp_path, *({"prompt": "a", "answer": number} for number in numbers)))
    assert [row.answer for row in rows] == list(numbers.values())


def test_a_narrow_number_is_the_one_that_was_written(tmp_path):
    path = tmp_path / "train.parquet"
    answers = pa.array([0.1, 72, None], pa.float32())
    pq.write_table(pa.table({"prompt": ["a", "b", "c"], "answer": answers, "n": pa.array([1, 2, 3], pa.int8())}), path)
    rows = load(path, needs_answer=False)
    assert [row.answer for row in rows] == ["0.1", "72", None]
    assert rows[0].raw == {"prompt": "a", "answer": 0.1, "n": 1}


@pytest.mark.parametrize("gap", [None, float("nan")])
def test_a_gap_in_a_column_of_numbers_is_a_missing_answer(tmp_path, gap):
    error = refused(jsonl(tmp_path, {"prompt": "a", "answer": 1.0}, {"prompt": "a", "answer": gap}))
    assert (error.field, error.got.partition(" in ")[0]) == ("spec.data.train.answerField", "answer, which is empty")


def test_parquet_keeps_nested_columns(tmp_path):
    path = tmp_path / "train.parquet"
    messages = [{"role": "user", "content": "1+1"}]
    pq.write_table(pa.Table.from_pylist([{"prompt": messages, "answer": "2", "tags": ["easy"]}]), path)
    assert load(path) == [Row(messages, "2", {"prompt": messages, "answer": "2", "tags": ["easy"]}, 1)]


def test_numbered_episodes_are_rows_with_their_seeds() -> None:
    source = DataSource(episodes=EpisodesData(size=2, seed=7))
    rows = load_rows(source, field="spec.data.train", needs_answer=False, fetch=Path)
    assert [(row.number, row.prompt, row.raw["seed"]) for row in rows] == [(1, "episode 7", 7), (2, "episode 8", 8)]


def test_csv_texts_that_look_like_numbers_stay_as_they_are(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('prompt,answer,level\n"what, then?\nsay",007,3\n12,1.50,4\n')
    rows = load(path)
    assert [(row.prompt, row.answer, row.raw["level"]) for row in rows] == [
        ("what, then?\nsay", "007", 3),
        ("12", "1.50", 4),
    ]


@pytest.mark.parametrize(("source", "prompt"), [(DataSource, "learn"), (EvalSource, "held out")])
def test_a_hub_data_set_is_read_from_the_split_of_its_role(tmp_path, source, prompt, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.jsonl").write_text('{"prompt": "learn", "answer": "x"}\n')
    (tmp_path / "test.jsonl").write_text('{"prompt": "held out", "answer": "y"}\n')
    assert [row.prompt for row in load(f"hf://{tmp_path}", source=source)] == [prompt]


def test_a_split_that_the_data_set_does_not_have_is_named(tmp_path):
    jsonl(tmp_path, {"prompt": "a", "answer": "b"})
    error = refused(f"hf://{tmp_path}", split="dev")
    assert error.field == "spec.data.train.uri"
    assert "split dev" in error.got
    assert 'Unknown split "dev"' in error.got


def http_error(status: int) -> HfHubHTTPError:
    return HfHubHTTPError("no", response=httpx.Response(status, request=httpx.Request("GET", "http://hub")))


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (ConnectionError("Couldn't reach 'org/set' on the Hub"), True),
        (httpx.ConnectTimeout("no answer"), True),
        (http_error(503), True),
        (http_error(403), False),
        (FileNotFoundError("no such data set"), False),
        (ValueError('Unknown split "dev"'), False),
    ],
    ids=str,
)
def test_a_hub_that_cannot_be_reached_is_no_fault_of_the_manifest(error, retried):
    assert is_unreachable(error) is retried


def test_a_missing_prompt_field_names_the_row_the_fields_and_the_nearest(tmp_path):
    error = refused(jsonl(tmp_path, {"prompt": "a", "answer": "b"}, {"promt": "a", "answer": "b"}))
    assert error.field == "spec.data.train.promptField"
    assert "row 2" in error.got
    assert "train.jsonl" in error.got
    assert "answer, promt" in error.expected
    assert error.hint == "Did you mean promt?"


def test_only_a_csv_file_is_said_to_need_a_header(tmp_path):
    for path in (jsonl(tmp_path, {"text": "a", "label": "b"}), tmp_path / "train.csv"):
        (tmp_path / "train.csv").write_text("prompt,label\na,b\n")
        field = "promptField" if path.suffix == ".jsonl" else "answerField"
        assert refused(path).hint == f"Set spec.data.train.{field} to one of them, or add the column."


def test_a_missing_answer_is_refused_only_where_answers_are_needed(tmp_path):
    path = jsonl(tmp_path, {"prompt": "a"})
    assert refused(path).field == "spec.data.train.answerField"
    assert load(path, needs_answer=False)[0].answer is None


OTHER_ANSWERS = [["Paris", "paris"], {"value": "Paris"}, True, float("inf"), []]


@pytest.mark.parametrize("answer", OTHER_ANSWERS, ids=str)
def test_an_answer_that_is_no_text_stays_in_the_row(tmp_path, answer):
    path = jsonl(tmp_path, {"prompt": "a", "answer": answer}, {"prompt": "b", "answer": "Rome"})
    first, second = load(path, needs_answer=False)
    assert (first.answer, first.raw["answer"], second.answer) == (None, answer, "Rome")


@pytest.mark.parametrize("answer", OTHER_ANSWERS, ids=str)
def test_an_answer_that_is_no_text_is_refused_where_one_is_needed(tmp_path, answer):
    error = refused(jsonl(tmp_path, {"prompt": "a", "answer": answer}))
    assert (error.field, error.expected) == ("spec.data.train.answerField", "a text or a number")
    assert error.got.startswith(f"{answer} ({type(answer).__name__}) in row 1 of ")


def test_a_column_of_answers_that_the_manifest_names_is_in_the_data(tmp_path):
    path = jsonl(tmp_path, {"prompt": "a", "answr": "b"}, {"prompt": "c"})
    error = refused(path, needs_answer=False, answer_field="answer")
    assert (error.field, error.hint) == ("spec.data.train.answerField", "Did you mean answr?")
    assert load(path, needs_answer=False, answer_field="answr")[1].answer is None, "one row has it"


def test_a_csv_cell_of_megabytes_is_read(tmp_path):
    """Tests of a program are as long, and Arrow reads blocks of 1 MiB by default."""
    tests = "assert f(1) == 2\n" * 200_000
    (tmp_path / "train.csv").write_text(f'prompt,answer,tests\na,b,"{tests}"\nc,d,short\n')
    assert [row.raw["tests"] for row in load(tmp_path / "train.csv")] == [tests, "short"]


def test_an_empty_csv_cell_is_a_missing_answer(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("prompt,answer\na,1\nb,\n")
    error = refused(path)
    assert "empty in row 2" in error.got


@pytest.mark.parametrize(
    "prompt",
    ["", [], 5, {"role": "user"}, [{"role": "user"}], [{"role": "user", "content": ["a"]}], ["hello"]],
    ids=repr,
)
def test_a_prompt_of_a_wrong_type_is_refused_with_its_row(tmp_path, prompt):
    error = refused(jsonl(tmp_path, {"prompt": prompt, "answer": "b"}))
    assert error.field == "spec.data.train.promptField"
    assert "row 1" in error.got


@pytest.mark.parametrize("answer", [True, ["a"], {"a": 1}], ids=repr)
def test_an_answer_of_a_wrong_type_is_refused(tmp_path, answer):
    assert refused(jsonl(tmp_path, {"prompt": "a", "answer": answer})).field == "spec.data.train.answerField"


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "header.csv"])
def test_an_empty_data_set_is_refused(tmp_path, name):
    (tmp_path / name).write_text("prompt,answer\n" if name == "header.csv" else "")
    assert "no rows" in refused(tmp_path / name).got


def test_an_empty_parquet_file_is_refused(tmp_path):
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "train.parquet")
    assert "no rows" in refused(tmp_path / "train.parquet").got


def test_a_broken_json_line_is_named_by_its_number(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"prompt": "a", "answer": "b"}\n\n{"prompt": \n')
    assert "line 3" in refused(path).got


def test_a_json_line_that_is_no_object_is_refused(tmp_path):
    assert "JSON list" in refused(jsonl(tmp_path, ["a"])).got


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv"])
def test_text_that_is_not_utf8_is_refused(tmp_path, name):
    content = b'{"prompt": "caf\xe9", "answer": "b"}\n' if name.endswith("jsonl") else b"prompt,answer\ncaf\xe9,b\n"
    (tmp_path / name).write_bytes(content)
    error = refused(tmp_path / name)
    assert "not UTF-8" in error.got
    assert "iconv" in error.hint


def test_a_csv_line_with_too_few_cells_is_refused(tmp_path):
    (tmp_path / "train.csv").write_text("prompt,answer\na,b\nc\n")
    assert "Expected 2 columns, got 1" in refused(tmp_path / "train.csv").got


GZIP, HTML = gzip.compress(b'{"prompt": "a"}\n', mtime=0), b"<!DOCTYPE html><html>"


@pytest.mark.parametrize(
    ("name", "content", "got", "hint"),
    [
        ("train.jsonl", GZIP, "which is compressed with gzip", "gunzip"),
        ("train.csv", GZIP, "which is compressed with gzip", "gunzip"),
        ("train.parquet", GZIP, "which is compressed with gzip", "gunzip"),
        ("train.jsonl", b"PK\x03\x04", "which is a zip archive", "unzip"),
        ("train.jsonl", '{"prompt": "a"}'.encode("utf-16"), "which is text in UTF-16", "iconv -f UTF-16"),
        ("train.csv", "prompt,answer\na,b".encode("utf-16"), "which is text in UTF-16", "iconv -f UTF-16"),
        ("train.csv", b"PAR1", "which is a Parquet file", "Rename it to .parquet"),
        ("train.parquet", b"ARROW1\0\0", "which is an Arrow file", "pandas.read_feather"),
        ("train.jsonl", b"\xff\xff\xff\xff\0\1", "which is a stream of Arrow", "Dataset.from_file"),
        (
            "train.jsonl",
            b"version https://git-lfs.github.com/spec/v1\n",
            "which is a pointer of git lfs",
            "git lfs pull",
        ),
        ("train.jsonl", HTML, "which is an HTML page", "Download the file again"),
        ("train.jsonl", b'[\n{"prompt": "a"}\n]', "line 1", "jq -c '.[]'"),
        ("train.jsonl", b'[{"prompt": "a"}]', "line 1", "jq -c '.[]'"),
        ("train.jsonl", b'{\n"prompt": "a"\n}', "line 1", "each object on one line"),
        ("train.jsonl", b"{'prompt': 'a'}", "line 1", "double quotes"),
        ("train.jsonl", b'{"prompt": "a", "answer": "b"},\n', "line 1", "Remove the comma"),
        ("train.jsonl", b'{"prompt": 5, "answer": "b"}', "5 (int) in row 1", "Write prompts as texts"),
        ("train.jsonl", b'{"prompt": "  ", "answer": "b"}', "an empty str in row 1", "Fix that row"),
        ("train.csv", b"prompt,prompt,answer\na,b,c\n", "several columns named prompt", "Rename or remove"),
        ("train.csv", b"prompt;answer\na;b\n", "whose columns are separated by ';'", "Write it again with commas"),
        ("train.csv", b"prompt\tanswer\na\tb\n", r"whose columns are separated by '\t'", "Write it again with commas"),
        ("train.csv", b"prompt , answer\na,b\n", "prompt, which row 1", "Did you mean 'prompt '?"),
        ("train.csv", b"say a word,a\nsing,b\n", "prompt, which row 1", "a line with the names of its columns"),
        ("train.csv", b"say promt,a\nsing,b\n", "prompt, which row 1", "a line with the names of its columns"),
        ("train.csv", b"promt,answer\na,b\n", "prompt, which row 1", "Did you mean promt?"),
        ("train.csv", b'prompt,answer\n"a,1\nb,2\n', "which is not valid CSV (CSV parse error", "Fix the file"),
    ],
)
def test_a_file_that_is_something_else_says_what_and_what_to_do(tmp_path, name, content, got, hint):
    (tmp_path / name).write_bytes(content)
    error = refused(tmp_path / name)
    assert got in error.got
    assert hint in error.hint
    assert "\n" not in str(error), "one line"


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path):
    for name, text in (("train.jsonl", '{"prompt": "a", "answer": "b"}\n'), ("train.csv", "prompt,answer\na,b\n")):
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
        assert [(row.prompt, row.answer) for row in load(tmp_path / name)] == [("a", "b")]


def test_a_truncated_parquet_file_is_refused(tmp_path):
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"prompt": ["a"] * 1000}), path)
    path.write_bytes(path.read_bytes()[:-1])
    assert "not a complete Parquet file" in refused(path).got


def test_a_missing_file_and_a_folder_and_another_kind_of_file_are_refused(tmp_path):
    assert "does not exist" in refused(tmp_path / "none.jsonl").got
    (tmp_path / "folder.jsonl").mkdir()
    assert "cannot be read" in refused(tmp_path / "folder.jsonl").got
    assert ".parquet" in refused(tmp_path / "train.txt").expected


@pytest.mark.parametrize("name", ["train.jsonl", "train.csv", "train.parquet"])
def test_an_unreadable_file_is_named_with_user_and_command(name):
    with open_folder() as folder:
        path = folder / name
        path.touch(mode=0)
        error = as_a_user(refused, path)
    assert error.got.startswith(f"file:{path}, but {path} cannot be read on ")
    assert "Permission denied" in error.got
    assert error.expected == f"files that user {USER} can read"
    assert f"chmod -R a+rX {path}" in error.hint


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_lines_in_another_encoding_are_counted_and_named(tmp_path, suffix):
    line = {"csv": "Schreib den 3. März\n", "jsonl": '{"prompt": "Schreib den 3. März"}\n'}[suffix]
    first = {"csv": "prompt\n", "jsonl": '{"prompt": "a"}\n'}[suffix]
    path = tmp_path / f"rows.{suffix}"
    path.write_bytes((first + line).encode("latin-1"))
    assert refused(path, needs_answer=False).got.endswith("but line 2 is not UTF-8")
    path.write_bytes((first + 5 * line).encode("latin-1"))
    error = refused(path, needs_answer=False)
    assert error.got.endswith("but 5 lines are not UTF-8 (2, 3, 4, ...)")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in error.hint
