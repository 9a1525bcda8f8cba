"""The game of examples/guess-cpu.yaml: find a digit in four turns, told each time whether it is higher or lower."""

from __future__ import annotations

from typing import Any


class Guess:
    async def reset(self, row: dict[str, Any]) -> str:
        self.secret = int(row["answer"])
        return str(row["prompt"])

    async def step(self, text: str) -> dict[str, Any]:
        if not text.isdecimal():
            return {"text": "a digit", "reward": -0.1}
        if int(text) == self.secret:
            return {"done": True, "reward": 1.0}
        return {"text": "higher" if self.secret > int(text) else "lower", "reward": 0.0}
