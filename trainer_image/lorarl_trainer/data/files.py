"""Reads data files, and data sets on the Hugging Face hub, as numbered dictionaries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorarl_trainer.data.doubles import with_doubles
from lorarl_trainer.data.foreign import foreign_format, json_hint
from lorarl_trainer.errors import InputError, StorageError, unreadable
from lorarl_trainer.storage.hints import missing_hint
from lorarl_trainer.storage.hub import cache_if_unreachable

if TYPE_CHECKING:
    import pyarrow

Fetch = Callable[[str], Path]
"""Returns the local file of a URI."""
_NAMED_LINES = 3
_BLOCK_BYTES = 64 << 20
"""A row of a CSV file may be as long. Arrow's own limit is 1 MiB, and a row's tests of a program are longer."""
_CHECKED_LINES = 1000
"""Lines in which a key that is there twice is looked for, which makes reading slower."""
Numbered = Iterator[tuple[int, dict[str, Any]]]


def read_file(uri: str, *, field: str, fetch: Fetch, text_columns: Sequence[str]) -> Numbered:
    """Read a .jsonl, .parquet or .csv file.

    `field`: the data source's path in the manifest, for errors. `text_columns`: columns of a CSV file that are texts
    even if they look like numbers (007 stays 007).

    Yields:
        The row's number, counted from 1 (the line number for .jsonl), and the row.

    Raises:
        InputError: the file is of another kind, missing, unreadable, or broken (with the line).
    """
    suffix = uri.rpartition("/")[2].rpartition(".")[2].lower()
    if suffix not in ("jsonl", "parquet", "csv"):
        raise InputError(
            f"{field}.uri",
            uri,
            "a .jsonl, .parquet or .csv file, or hf://ORG/NAME",
            "Convert the data, or rename the file.",
        )
    path = fetch(uri)
    try:
        if (foreign := foreign_format(path)) and not (suffix == "parquet" and "Parquet" in foreign[0]):
            expected = "a Parquet file" if suffix == "parquet" else "text in UTF-8"
            raise InputError(f"{field}.uri", f"{uri}, which {foreign[0]}", expected, foreign[1])
        if suffix == "jsonl":
            yield from _read_jsonl(path, uri, field)
        elif suffix == "parquet":
            yield from _read_parquet(path, uri, field)
        else:
            yield from _read_csv(path, uri, field, text_columns)
    except FileNotFoundError as error:
        raise InputError(
            f"{field}.uri", f"{uri}, which does not exist", "a file with data", missing_hint(path)
        ) from error
    except OSError as error:
        raise unreadable(f"{field}.uri", uri, path, error) from error


def _read_jsonl(path: Path, uri: str, field: str) -> Numbered:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            hook = _once if number <= _CHECKED_LINES else None
            try:
                # Windows editors put a byte-order mark at the beginning of a UTF-8 file.
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), object_pairs_hook=hook)
            except _TwiceError as error:
                got = f"line {number} of {uri}, which has the key {error} twice"
                raise InputError(f"{field}.uri", got, "each key once", "Rename or remove one of the two.") from None
            except UnicodeDecodeError as error:
                raise _not_utf8(uri, field, path) from error
            except (ValueError, RecursionError) as error:
                why = f"{error.msg}, character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
                raise InputError(
                    f"{field}.uri",
                    f"line {number} of {uri}, which is not JSON ({why})",
                    "one JSON object per line",
                    json_hint(line.decode("utf-8-sig")),
                ) from error
            if not isinstance(row, dict):
                got = f"line {number} of {uri}, which is a JSON {type(row).__name__}"
                hint = json_hint(line.decode("utf-8-sig"))
                raise InputError(f"{field}.uri", got, "one JSON object per line", hint)
            yield number, row


class _TwiceError(Exception):
    """A JSON object has a key twice. Its argument names it."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object unless it has a key twice, of which JSON's reader would silently take the last."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _TwiceError(next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1))
    return found


def _read_parquet(path: Path, uri: str, field: str) -> Numbered:
    import pyarrow  # takes half a second, and runs on JSON lines do not need it
    import pyarrow.parquet

    try:
        table = with_doubles(pyarrow.parquet.ParquetFile(path).read())
    except pyarrow.ArrowException as error:
        raise InputError(
            f"{field}.uri",
            f"{uri}, which is not a complete Parquet file ({error})",
            "a Parquet file",
            "Write or copy it again.",
        ) from error
    _require_names(table, uri, field)
    yield from enumerate(table.to_pylist(), start=1)


def _read_csv(path: Path, uri: str, field: str, text_columns: Sequence[str]) -> Numbered:
    import pyarrow  # takes half a second, and runs on JSON lines do not need it
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
            path,
            read_options=pyarrow.csv.ReadOptions(block_size=_BLOCK_BYTES),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=convert,
        )
        _require_names(table, uri, field)
        rows = table.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        if "UTF8" in str(error) or isinstance(error, UnicodeDecodeError):
            raise _not_utf8(uri, field, path) from error
        if "Empty CSV" in str(error):
            return
        raise InputError(
            f"{field}.uri",
            f"{uri}, which is not valid CSV ({' '.join(str(error).split())})",
            "a header line, commas, and quotes around texts that contain commas or quotes",
            "Fix the file.",
        ) from error
    yield from enumerate(rows, start=1)


def _require_names(table: pyarrow.Table, uri: str, field: str) -> None:
    """Refuse columns of one name, of which a row would have only the last, and a CSV file with other separators."""
    names = table.column_names
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        got = f"{uri}, which has several columns named {twice[0]}"
        raise InputError(f"{field}.uri", got, "a different name for each column", "Rename or remove one of them.")
    if len(names) == 1 and (other := next((mark for mark in ";\t|" if mark in names[0]), None)):
        got = f"{uri}, whose columns are separated by {other!r}"
        raise InputError(f"{field}.uri", got, "commas between the columns", "Write it again with commas.")


def _not_utf8(uri: str, field: str, path: Path) -> InputError:
    """Return the error of a file with lines in another encoding. It counts them, and names the first few."""
    with path.open("rb") as file:
        lines = [number for number, line in enumerate(file, start=1) if not _is_utf8(line)]
    named = ", ".join(map(str, lines[:_NAMED_LINES])) + ", ..." * (len(lines) > _NAMED_LINES)
    where = f"{len(lines):,} lines are not UTF-8 ({named})" if len(lines) > 1 else f"line {named} is not UTF-8"
    return InputError(
        f"{field}.uri",
        f"{uri}, but {where}",
        "text in UTF-8",
        "Convert it, for example with iconv -f WINDOWS-1252 -t UTF-8, as Windows and Excel write it.",
    )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def read_hub(name: str, subset: str | None, split: str, *, field: str, token: str | None) -> Numbered:
    """Read one split of a data set, using the hub's own cache.

    Args:
        name: ORG/NAME on the hub (or a local folder with a data set's files).
        subset: the data set's configuration; None for its default.
        split: name of the split.
        field: the data source's path in the manifest, for errors.
        token: access token; None for the hub's own settings.

    Yields:
        The row's number, counted from 1, and the row.

    Raises:
        InputError: there is no such data set, subset or split, or no access.
        StorageError: the hub cannot be reached.
    """
    import datasets  # takes seconds, and only hf:// sources need it
    from httpx import HTTPError
    from huggingface_hub.errors import HfHubHTTPError

    datasets.disable_progress_bars()
    why = ""
    try:
        with cache_if_unreachable() as why:
            rows = datasets.load_dataset(name, subset, split=split, token=token)
    except (ValueError, OSError, HTTPError, HfHubHTTPError, datasets.exceptions.DatasetsError) as error:
        wanted = f"hf://{name}, subset {subset or 'default'}, split {split}"
        got = f"{wanted} ({why or f'{type(error).__name__}: {_first_line(error)}'})"
        if why or is_unreachable(error):
            raise StorageError(f"{field}.uri: {got}. Check the network (HF_ENDPOINT, proxies).") from error
        raise InputError(
            f"{field}.uri",
            got,
            "a readable data set on the hub",
            "Check name, subset and split. If access is restricted, put HF_TOKEN into spec.data.credentialsSecret.",
        ) from error
    yield from enumerate(with_doubles(rows.with_format("arrow")[:]).to_pylist(), start=1)


def is_unreachable(error: Exception) -> bool:
    """Return whether the hub, or the way to it, is to blame. Another attempt may find it."""
    from httpx import HTTPError

    response = getattr(error, "response", None)
    if response is not None:
        return bool(response.status_code >= 500)
    return isinstance(error, ConnectionError | HTTPError)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
