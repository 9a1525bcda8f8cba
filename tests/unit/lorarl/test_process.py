"""A command that Python started ends with Ctrl-C, and with its parent; `lorarl open` stands for any command."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from lorarl.process import Command, printed_by
from lorarl_api.v1alpha1 import TrackingSpec
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.progress import open_progress
from support.cluster.processes import until
from unit.trainer.progress.runs import run_started

PATIENCE_SECONDS = 60.0
PARENT = """
import sys
from pathlib import Path
from lorarl.process import Command

print(Command(["open", sys.argv[1], "--port", "0"], Path(sys.argv[2])).pid, flush=True)
input()
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run to open."""
    with (
        (tmp_path / "console").open("w") as console,
        open_progress(tmp_path / "r", TrackingSpec(), {}, stream=console) as p,
    ):
        p.emit(run_started(tmp_path / "r"))
    return tmp_path / "r"


def test_ctrl_c_reaches_it_once_and_is_raised_after_its_end(run: Path, tmp_path: Path) -> None:
    command, output = Command(["open", str(run), "--port", "0"], tmp_path / "printed"), ""

    def look() -> None:
        nonlocal output
        output += command.new_output()
        if "Ctrl-C ends" in output and not pressed.is_set():
            pressed.set()
            signal.raise_signal(signal.SIGINT)

    pressed = threading.Event()
    assert command.wait(look) == 0, "it ended as after its own Ctrl-C"


def test_it_ends_with_the_process_that_started_it(run: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(run), str(printed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    until(PATIENCE_SECONDS, "it serves", lambda: "Ctrl-C ends" in printed.read_text())
    parent.kill()
    parent.wait()
    until(PATIENCE_SECONDS, "it is gone", lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)


def test_the_message_of_a_failed_command_is_raised() -> None:
    with pytest.raises(LorarlError, match=r"^ADAPTER: got nowhere") as raised:
        printed_by(["evaluate", "nowhere"])
    assert "lorarl: " not in str(raised.value)
    with pytest.raises(LorarlError, match="No such option"):
        printed_by(["evaluate", "nowhere", "--fast"])
