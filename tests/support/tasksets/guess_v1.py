"""A taskset of verifiers 0.4: a number is to be repeated."""

import verifiers.v1 as vf


class Repeat(vf.Task):
    @vf.reward(weight=0.5)
    async def right(self, trace) -> float:
        return float(str(self.data.idx) in str(trace.branches[-1].messages[-1].content))

    @vf.metric
    async def length(self, trace) -> float:
        return float(len(str(trace.branches[-1].messages[-1].content)))


class Repeats(vf.Taskset[Repeat, vf.TasksetConfig]):
    def load(self):
        for number in range(5):
            yield Repeat(vf.TaskData(idx=number, prompt=f"Write {number}."), self.config.task)


__all__ = ["Repeats"]
