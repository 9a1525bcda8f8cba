"""How an unexpected exception is reported: all of it, in one line."""

from __future__ import annotations

import traceback

from lorarl_trainer.errors import in_one_line, last_exception, without_colours

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
