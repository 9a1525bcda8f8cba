"""A taskset of verifiers 0.4 that a model of random weights can learn: vowels are to be written. One task fails."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf


class Vowels(vf.Task):
    @vf.reward
    async def share(self, trace: Any) -> float:
        if self.data.idx == 2:
            raise ValueError("no more")
        return sum(letter in "aeiou" for letter in self.said(trace)) / 8

    @vf.metric
    async def long(self, trace: Any) -> float:
        return float(len(self.said(trace)))

    @staticmethod
    def said(trace: Any) -> str:
        return str(trace.branches[-1].messages[-1].content)


class AllVowels(vf.Taskset[Vowels, vf.TasksetConfig]):
    def load(self) -> Iterator[vf.Task]:
        for number in range(10):
            yield Vowels(vf.TaskData(idx=number, prompt=f"say {number}"), self.config.task)


__all__ = ["AllVowels"]
