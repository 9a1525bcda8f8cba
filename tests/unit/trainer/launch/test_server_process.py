"""A server that ended says why: by what it said of an exception, not by what a warning mentions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lorarl_trainer.launch.server_process import ServerProcess

LIMIT = "WARNING 11-30 19:38:53 [system_utils.py:299] A low ulimit can cause errors like `OSError: [Errno 24]`"


@pytest.mark.parametrize(
    "last", ["OSError: Can't load image processor", "ERROR 11-30 19:38:54 [core.py:1] ValueError: no room for a cache"]
)
def test_a_warning_that_names_an_exception_is_not_why_a_server_ended(tmp_path: Path, last: str) -> None:
    said = f"(APIServer pid=1) {LIMIT}\n(APIServer pid=1) {last}\nbye"
    server = ServerProcess([sys.executable, "-c", f"print({said!r}); raise SystemExit(1)"], tmp_path / "log", {})
    server._process.wait(60)
    why = server.why_ended
    server.end()
    assert why == f"ended with code 1; it said: (APIServer pid=1) {last}. All of it: {tmp_path / 'log'}"
