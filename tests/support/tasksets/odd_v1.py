"""Tasks of verifiers 0.4 that fail by their number, or leave a process behind in another session."""

import subprocess
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Odd(vf.Task):
    async def setup(self, trace: Any, runtime: Any) -> None:
        left = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self.left = left.pid

    @vf.reward
    async def right(self, trace: Any) -> float:
        if self.data.idx == 0:
            raise ValueError("no more")
        return float("nan") if self.data.idx == 1 else float(self.left)


class Odds(vf.Taskset[Odd, vf.TasksetConfig]):
    INFINITE = True

    def load(self) -> Iterator[vf.Task]:
        number = 0
        while True:
            yield Odd(vf.TaskData(idx=number, prompt=f"Task {number}."), self.config.task)
            number += 1


__all__ = ["Odds"]
