"""A taskset of verifiers 0.4 with a tool, whose server is a process beside the episode."""

import os
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Adder(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return f"{a + b}, by {os.getpid()}"


class Sum(vf.Task):
    @classmethod
    def toolsets(cls, config: Any) -> list[vf.Toolset]:
        return [Adder(vf.ToolsetConfig())]

    @vf.reward
    async def right(self, trace: Any) -> float:
        return float("5" in str(trace.branches[-1].messages[-1].content))


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield Sum(vf.TaskData(idx=0, prompt=[vf.UserMessage(content="What is 2 + 3?")]), self.config.task)


__all__ = ["Sums"]

if __name__ == "__main__":
    Adder.run()
