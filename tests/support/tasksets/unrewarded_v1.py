"""A taskset of verifiers 0.4 that rewards nothing."""

from collections.abc import Iterator

import verifiers.v1 as vf


class Plain(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield vf.Task(vf.TaskData(idx=0, prompt="Write."), self.config.task)


__all__ = ["Plain"]
