"""The shell of KubeRay's submitter, in the head's pod: it ends at SIGTERM, when the command ends that it waits for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BASH_ENV = ROOT / "trainer_image/submitter.bash"
WAITS = "until false; do echo waits; sleep 0.1; done; ray job submit"
FOLLOWS = "if false; then ray job submit; fi; sh -c 'echo waits; trap : TERM; sleep 0.5; echo followed; exit 7'"
OF_ANOTHER = "until false; do echo waits; sleep 0.1; done; ray start"


def end(script: str) -> tuple[int, str]:
    """Start a script as KubeRay does, ask it to end when it waits, and return its exit code and what it then said."""
    whole = {**os.environ, "BASH_ENV": str(BASH_ENV)}
    with subprocess.Popen(["/bin/bash", "-ce", "--", script], env=whole, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == "waits\n"
        shell.send_signal(signal.SIGTERM)
        return shell.wait(timeout=30), shell.stdout.read()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        pytest.param(WAITS, {0, 1}, id="it waits for the dashboard"),
        pytest.param(FOLLOWS, {7}, id="it follows the output of a training"),
        pytest.param(OF_ANOTHER, {-signal.SIGTERM}, id="a shell of another container has no trap"),
    ],
)
def test_at_sigterm_the_submitter_ends_with_what_it_waits_for(script: str, code: set[int]) -> None:
    """Without a trap the first process of a PID namespace ignores SIGTERM, and any other one ends by it."""
    ended, said = end(script)
    assert ended in code
    assert script != FOLLOWS or said == "followed\n"


def test_the_image_has_it_and_names_it() -> None:
    """KubeRay's submitter gets the image, and no variable of the pod's template."""
    dockerfile = (ROOT / "Dockerfile").read_text()
    (place,) = re.findall(r"^COPY trainer_image/submitter\.bash (\S+)$", dockerfile, re.MULTILINE)
    assert re.findall(r"^ENV BASH_ENV=(\S+)$", dockerfile, re.MULTILINE) == [place]
    assert "!trainer_image/submitter.bash" in (ROOT / ".dockerignore").read_text().splitlines()
