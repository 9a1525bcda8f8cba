"""How an unexpected exception is reported: all of it, in one line."""

from __future__ import annotations

import errno
import os
import traceback
from pathlib import Path

import pytest

from lorarl_trainer.errors import (
    InputError,
    StorageError,
    in_one_line,
    last_exception,
    unreadable,
    without_colours,
)

CYAN, RESET = "\x1b[36m", "\x1b[39m"
FROM_RAY = f"""{CYAN}ray::fetch_base_model(){RESET} (pid=137, ip=10.244.0.8)
  File "/app/prepare.py", line 85, in fetch_base_model
    return BaseModel(folder, fingerprint(folder))
                             ^^^^^^^^^^^^^^^^^^^
"""


def test_an_exception_of_several_lines_is_told_in_one() -> None:
    assert in_one_line(ValueError("got:\n    a\n  and b")) == "ValueError: got: a and b"
    assert in_one_line(ValueError(f"{CYAN}blue{RESET}")) == "ValueError: blue"
    assert len(in_one_line(ValueError("long " * 1000))) < 600


def test_the_last_exception_is_reported_without_its_traceback() -> None:
    assert (
        last_exception(f"{FROM_RAY}PermissionError: [Errno 13] Permission denied: '/m'")
        == "PermissionError: [Errno 13] Permission denied: '/m'"
    )
    assert (
        last_exception(f"{FROM_RAY}hub.StrictError: config:\n    ValueError: 80 is not 12\n")
        == "hub.StrictError: config: ValueError: 80 is not 12"
    )
    assert last_exception(f"{CYAN}ray::f(){RESET} (pid=1, ip=::1)\nKeyError: 'x'") == "KeyError: 'x'"
    assert last_exception("KeyError: 'x'") == "KeyError: 'x'"


def test_of_exceptions_that_follow_from_each_other_the_last_is_told() -> None:
    try:
        try:
            _ = {}["level"]
        except KeyError as error:
            raise RuntimeError("no level\nhere") from error
    except RuntimeError:
        assert last_exception(traceback.format_exc()) == "RuntimeError: no level here"


def test_colours_are_left_out_and_nothing_else() -> None:
    assert without_colours(FROM_RAY) == FROM_RAY.replace(CYAN, "").replace(RESET, "")


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EISDIR])
def test_a_file_that_no_one_made_readable_is_bad_input(number: int) -> None:
    found = unreadable("spec.model.uri", "file:base", Path("/base"), OSError(number, os.strerror(number), "/base/a"))
    assert isinstance(found, InputError)
    assert (found.field, found.got.split(" on ")[0]) == ("spec.model.uri", "file:base, but /base/a cannot be read")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_volume_that_fails_may_work_for_another_attempt(number: int) -> None:
    found = unreadable("spec.model.uri", "file:base", Path("/base"), OSError(number, os.strerror(number), "/base/a"))
    assert isinstance(found, StorageError)
    assert "spec.model.uri: got file:base, but /base/a cannot be read" in str(found)
    assert "Check the disk or volume" in str(found)
