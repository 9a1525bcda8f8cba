"""A taskset of verifiers 0.4: a number is to be repeated."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Repeat(vf.Task):
    @vf.reward(weight=0.5)
    async def right(self, trace: Any) -> float:
        return float(str(self.data.idx) in str(trace.branches[-1].messages[-1].content))

    @vf.metric
    async def length(self, trace: Any) -> float:
        return float(len(str(trace.branches[-1].messages[-1].content)))


class Repeats(vf.Taskset[Repeat, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        for number in range(5):
            yield Repeat(vf.TaskData(idx=number, prompt=f"Write {number}."), self.config.task)


__all__ = ["Repeats"]
