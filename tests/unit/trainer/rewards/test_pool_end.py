"""The processes of a pool end with their driver, however it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from unit.trainer.rewards.scoring import samples


def test_closing_while_a_function_hangs_leaves_nothing_behind(scorer, tmp_path):
    hanging = scorer("my_rewards:with_child", timeout_seconds=600, processes=1)
    file = tmp_path / "pids"

    async def close_while_scoring() -> None:
        task = asyncio.create_task(hanging.score(samples("a", row={"file": str(file)})))
        await asyncio.to_thread(wait_for, lambda: Path(f"{file}.done").exists())
        await asyncio.to_thread(hanging.close)
        with pytest.raises(Exception, match="ended while completions were being scored"):
            await task

    asyncio.run(close_while_scoring())
    assert_gone(Path(f"{file}.done"))


@pytest.mark.parametrize("busy", ["with_child", "idle"])
def test_a_driver_killed_with_9_leaves_nothing_behind(scorer, tmp_path, busy):
    file = tmp_path / "pids"
    function = "my_rewards:with_child" if busy == "with_child" else "my_rewards:length"
    scorer(function)  # writes my_rewards.py
    program = f"""
import asyncio, os, sys
from pathlib import Path
from lorarl_api.v1alpha1 import RewardSpec
from lorarl_trainer.rewards.scorer import make_scorer
from lorarl_trainer.rewards.scores import ToScore
scorer = make_scorer(RewardSpec(function="{function}"), Path({str(tmp_path)!r}), processes=1)
asyncio.run(scorer.score([ToScore("p", "c", "a", {{"file": {str(file)!r}}})]))
import psutil
assert "torch" not in sys.modules
Path({str(file)!r}).write_text(str(psutil.Process().children()[0].pid))
os.rename({str(file)!r}, {str(file)!r} + ".done")
input()
"""
    driver = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wait_for(lambda: Path(f"{file}.done").exists())
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert driver.stdin is not None
    driver.stdin.close()
    assert_gone(Path(f"{file}.done"))


def wait_for(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def assert_gone(pids: Path) -> None:
    wait_for(lambda: not any(is_running(int(pid)) for pid in pids.read_text().split()))


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
