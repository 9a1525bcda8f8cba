"""Readers of data files and of data sets on the Hugging Face hub: numbered rows, as dictionaries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorarl_trainer.errors import InputError, unreadable

if TYPE_CHECKING:
    import pyarrow

Fetch = Callable[[str], Path]
"""Gives the local file of a URI."""
Numbered = Iterator[tuple[int, dict[str, Any]]]


def read_file(uri: str, *, field: str, fetch: Fetch, text_columns: Sequence[str]) -> Numbered:
    """Read a .jsonl, .parquet or .csv file.

    Args:
        uri: The file, as in the manifest.
        field: Path of the data source in the manifest, to name it in errors.
        fetch: Gives the local file of the URI.
        text_columns: Columns of a CSV file that are texts even where they look like numbers (007 stays 007).

    Yields:
        The row's number from 1 (for .jsonl its line) and the row.

    Raises:
        InputError: Another kind of file, one that is missing or unreadable, or one that is broken (with the line).
    """
    suffix = uri.rpartition("/")[2].rpartition(".")[2].lower()
    if suffix not in ("jsonl", "parquet", "csv"):
        raise InputError(
            f"{field}.uri",
            uri,
            "a .jsonl, .parquet or .csv file, or hf://ORG/NAME",
            "Convert the data, or mend its name.",
        )
    path = fetch(uri)
    try:
        if suffix == "jsonl":
            yield from _read_jsonl(path, uri, field)
        elif suffix == "parquet":
            yield from _read_parquet(path, uri, field)
        else:
            yield from _read_csv(path, uri, field, text_columns)
    except FileNotFoundError as error:
        raise InputError(
            f"{field}.uri", f"{uri}, which does not exist", "a file with data", f"Looked for {path}."
        ) from error
    except OSError as error:
        raise unreadable(f"{field}.uri", uri, path, error) from error


def _read_jsonl(path: Path, uri: str, field: str) -> Numbered:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                # Windows editors begin a UTF-8 file with a byte-order mark.
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise _not_utf8(uri, field, f"line {number}") from error
            except ValueError as error:
                raise InputError(
                    f"{field}.uri",
                    f"line {number} of {uri}, which is not JSON ({error})",
                    "one JSON object a line",
                    "Mend that line.",
                ) from error
            if not isinstance(row, dict):
                got = f"line {number} of {uri}, which is a JSON {type(row).__name__}"
                raise InputError(f"{field}.uri", got, "one JSON object a line", "Mend that line.")
            yield number, row


def _read_parquet(path: Path, uri: str, field: str) -> Numbered:
    import pyarrow  # half a second that runs on JSON lines do not need
    import pyarrow.parquet

    try:
        table = _with_doubles(pyarrow.parquet.ParquetFile(path).read())
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{field}.uri",
            f"{uri}, which is no whole Parquet file ({error})",
            "a Parquet file",
            "Write or copy it anew.",
        ) from error
    yield from enumerate(table.to_pylist(), start=1)


def _with_doubles(table: pyarrow.Table) -> pyarrow.Table:
    """With each number of a column of 32-bit floats as it is written: 0.1, not the double next to the float 0.1."""
    import pyarrow
    import pyarrow.compute

    for index, column in enumerate(table.schema):
        if pyarrow.types.is_float32(column.type):
            texts = pyarrow.compute.cast(table.column(index), pyarrow.string())
            table = table.set_column(index, column.name, pyarrow.compute.cast(texts, pyarrow.float64()))
    return table


def _read_csv(path: Path, uri: str, field: str, text_columns: Sequence[str]) -> Numbered:
    import pyarrow  # half a second that runs on JSON lines do not need
    import pyarrow.csv

    # An empty cell is a missing value; "" in quotes is an empty text.
    convert = pyarrow.csv.ConvertOptions(
        column_types=dict.fromkeys(text_columns, pyarrow.string()),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    try:
        table = pyarrow.csv.read_csv(
            path, convert_options=convert, parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True)
        )
        rows = table.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        if "UTF8" in str(error) or isinstance(error, UnicodeDecodeError):
            raise _not_utf8(uri, field, "it") from error
        if "Empty CSV" in str(error):
            return
        raise InputError(
            f"{field}.uri",
            f"{uri}, which is no valid CSV ({error})",
            "a header line, commas, and quotes around texts that hold them",
            "Mend the file.",
        ) from error
    yield from enumerate(rows, start=1)


def _not_utf8(uri: str, field: str, where: str) -> InputError:
    return InputError(
        f"{field}.uri", f"{uri}, where {where} is not UTF-8", "text in UTF-8", "Convert it, as with iconv -t UTF-8."
    )


def read_hub(name: str, subset: str | None, split: str, *, field: str, token: str | None) -> Numbered:
    """Read one split of a data set, through the hub's own cache.

    Args:
        name: ORG/NAME on the hub (or a local folder with a data set's files).
        subset: The data set's configuration; its default when None.
        split: Name of the split.
        field: Path of the data source in the manifest, to name it in errors.
        token: Access token; the hub's own settings when None.

    Yields:
        The row's number from 1 and the row.

    Raises:
        InputError: No such data set, subset or split, no access, or the hub cannot be reached.
    """
    import datasets  # takes seconds, and only hf:// sources need it
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(name, subset, split=split, token=token)
    except (ValueError, OSError, HTTPError, HfHubHTTPError, datasets.exceptions.DatasetsError) as error:
        wanted = f"hf://{name}, subset {subset or 'default'}, split {split}"
        raise InputError(
            f"{field}.uri",
            f"{wanted} ({type(error).__name__}: {_first_line(error)})",
            "a data set of the hub that can be read",
            "Check name, subset and split, and put HF_TOKEN into data.credentialsSecret where access is restricted.",
        ) from error
    yield from enumerate(_with_doubles(rows.with_format("arrow")[:]).to_pylist(), start=1)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
