"""Files that are not what their name says, and lines that are not JSON: what they are instead, and what to do."""

from __future__ import annotations

from pathlib import Path

_BEGINNINGS = (
    (b"\x1f\x8b", "is compressed with gzip", "Decompress it, for example with gunzip."),
    (b"PK\x03\x04", "is a zip archive", "Unpack it, for example with unzip."),
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd", "Decompress it, for example with unzstd."),
    (b"\xfd7zXZ", "is compressed with xz", "Decompress it, for example with unxz."),
    (b"BZh", "is compressed with bzip2", "Decompress it, for example with bunzip2."),
    (b"\xff\xfe", "is text in UTF-16", "Convert it, for example with iconv -f UTF-16 -t UTF-8."),
    (b"\xfe\xff", "is text in UTF-16", "Convert it, for example with iconv -f UTF-16 -t UTF-8."),
    (b"PAR1", "is a Parquet file", "Rename it to .parquet."),
    (b"ARROW1", "is an Arrow file", "Convert it, for example with pandas.read_feather(FILE).to_parquet(NEW)."),
    (
        b"\xff\xff\xff\xff",
        "is a stream of Arrow, as datasets saves it",
        "Convert it, for example with datasets.Dataset.from_file(FILE).to_parquet(NEW).",
    ),
    (b"version https://git-lfs", "is a pointer of git lfs", "Fetch the file that it points to, with git lfs pull."),
    (b"<!doctype", "is an HTML page", "Download the file again: a login or error page came instead."),
    (b"<html", "is an HTML page", "Download the file again: a login or error page came instead."),
)


def foreign_format(path: Path) -> tuple[str, str] | None:
    """Return what a file is, as a clause, and what to do, if its first bytes say that it is no text with rows.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        begin = file.read(32).lstrip()
    for mark, what, hint in _BEGINNINGS:
        if begin[: len(mark)].lower() == mark.lower():
            return what, hint
    return None


def json_hint(line: str) -> str:
    """Return what to do about a line that is no JSON object."""
    text = line.strip()
    if text[:1] == "[":
        return "Write one object on each line, for example with jq -c '.[]'."
    if text == "{":
        return "Write each object on one line, for example with jq -c ."
    if text[:2] == "{'":
        return "Use double quotes: JSON knows no others."
    if text[-2:] == "},":
        return "Remove the comma at its end."
    if "\r" in text:
        return "The lines end as on an old Mac. Convert them, for example with tr '\\r' '\\n'."
    if any(quote in text for quote in "“”„"):
        return 'Use plain double quotes (") in place of typographic ones, as a word processor writes them.'
    return "Fix that line."
