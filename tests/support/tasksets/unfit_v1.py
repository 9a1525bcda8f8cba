"""A taskset of verifiers 0.4 whose tasks need a container."""

from collections.abc import Iterator

import verifiers.v1 as vf


class Boxed(vf.Task):
    NEEDS_CONTAINER = True


class Boxes(vf.Taskset[Boxed, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        yield Boxed(vf.TaskData(idx=0, prompt="Work."), self.config.task)


__all__ = ["Boxes"]
