"""docs/dashboard.md: its commands serve a page, and the file names that it gives are those that are looked for."""

from __future__ import annotations

import re
import shlex
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from lorarl_trainer.cli import main
from lorarl_trainer.dashboard.found import NAMES
from lorarl_trainer.dashboard.reports import FEWEST, MOST
from lorarl_trainer.dashboard.serve import KEY

PAGE = (Path(__file__).parents[3] / "docs/dashboard.md").read_text()
LINES = [line.partition("  #")[0].strip() for line in PAGE.splitlines()]
COMMANDS = [line for line in LINES if re.match(r"(env \S+=\S+ \S+ )?lorarl dashboard", line)]


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_serves(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a folder is in the place of the bucket: tests/storage/test_dashboard.py has one."""
    monkeypatch.chdir(tmp_path)
    for folder in ("out", "other/runs", "adapters"):
        Path(folder).mkdir(parents=True)

    def end(_: ThreadingHTTPServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", end)
    setting, _, command = line.rpartition("lorarl dashboard")
    keys = {KEY: "a long text"} if setting.startswith(f"env {KEY}=") else {}
    command = command.replace("s3://team/adapters", f"file://{tmp_path}/adapters")
    done = CliRunner().invoke(main, ["dashboard", *shlex.split(command), "--port", "0"], env=keys)
    assert done.exit_code == 0, done.output
    assert re.search(r": http://(127\.0\.0\.1|0\.0\.0\.0):\d+/  \(Ctrl-C ends\)$", done.output.splitlines()[0])


def test_the_page_says_what_the_code_does() -> None:
    assert len(COMMANDS) == 4
    assert f"Choose {FEWEST} to {MOST} runs" in PAGE
    assert all(f"`{name}`" in PAGE for name in ("run_summary.json", "events.jsonl")) and len(NAMES) >= 2
