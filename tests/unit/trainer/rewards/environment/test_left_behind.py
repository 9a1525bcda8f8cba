"""What an episode has started ends with it, in other sessions too, however the episode or the run ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.rewards.environment.environment import Environment, EpisodeFailedError
from lorarl_trainer.rewards.process import CodeFolders
from unit.trainer.rewards.test_pool_end import wait_for

pytestmark = pytest.mark.slow

LEAVES = """
import os, subprocess, time
from pathlib import Path

here = Path(__file__).parent
with_the_module = subprocess.Popen(["sleep", "1000"], start_new_session=True)
(here / "module.pid").write_text(str(with_the_module.pid))


class Leaves:
    def reset(self, row):
        beside = subprocess.Popen(["sleep", "1000"])
        apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        alone = "setsid sleep 1000 >/dev/null & echo $!"
        orphan = subprocess.run(["sh", "-c", alone], stdout=subprocess.PIPE, text=True)
        within = subprocess.Popen(["sh", "-c", "sleep 1000 & wait"], start_new_session=True)
        subprocess.run(["sh", "-c", "true & true & sleep 1000 &"])
        (here / "parent.pid").write_text(str(os.getppid()))
        pids = [os.getpid(), beside.pid, apart.pid, int(orphan.stdout), within.pid]
        (here / "pids").write_text(" ".join(map(str, pids)))
        os.rename(here / "pids", here / "pids.done")
        return "go"

    def step(self, text):
        if text == "die": os.kill(os.getpid(), 9)
        if text == "leave": os._exit(3)
        if text == "hang": time.sleep(1e6)
        return {"text": "", "reward": 1.0, "done": True}
"""
DRIVER = """
import asyncio, sys
from lorarl_api.v1alpha1 import EnvironmentSpec
from lorarl_trainer.rewards.environment.environment import Environment
from lorarl_trainer.rewards.process import CodeFolders

async def play():
    environment = Environment(EnvironmentSpec(function="leaves:Leaves"), CodeFolders((sys.argv[1],)))
    async with environment.episode(0) as episode:
        await episode.reset({})
        await asyncio.sleep(1e6)

asyncio.run(play())
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    (tmp_path / "leaves.py").write_text(LEAVES)
    made = Environment(EnvironmentSpec(function="leaves:Leaves", timeout_seconds=15.0), CodeFolders((str(tmp_path),)))
    try:
        yield made
    finally:
        made.close()
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((tmp_path / "module.pid").read_text()), signal.SIGKILL)


def gone(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.parametrize("ends", ["done", "die", "leave", "hang"])
def test_an_episode_leaves_nothing_however_it_ends(environment: Environment, tmp_path: Path, ends: str) -> None:
    async def play() -> None:
        async with environment.episode(0) as episode:
            await episode.reset({})
            await episode.step(ends)

    with contextlib.nullcontext() if ends == "done" else pytest.raises(EpisodeFailedError):
        asyncio.run(play())
    assert_all_gone(tmp_path)
    module, parent = (int((tmp_path / f"{name}.pid").read_text()) for name in ("module", "parent"))
    assert not gone(module), "it is the module's, for all episodes"
    wait_for(lambda: [child.pid for child in psutil.Process(parent).children()] == [module], 60.0)


def test_a_run_that_is_killed_with_9_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(LEAVES)
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)]) as driver:
        try:
            wait_for((tmp_path / "pids.done").exists, 60.0)
        finally:
            os.kill(driver.pid, signal.SIGKILL)
    assert_all_gone(tmp_path)
    wait_for(lambda: gone(int((tmp_path / "module.pid").read_text())), 60.0)


def assert_all_gone(folder: Path) -> None:
    pids = [int(pid) for pid in (folder / "pids.done").read_text().split()]
    wait_for(lambda: all(map(gone, pids)), 60.0)
