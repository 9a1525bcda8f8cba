"""What sources of samples from the data share: the next rows, and evaluations of held-out ones."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lorarl_trainer.data.encoding import EncodedRow
from lorarl_trainer.data.stream import RowStream
from lorarl_trainer.progress import EvalDone
from lorarl_trainer.protocols.rollouts import Evaluates
from lorarl_trainer.protocols.workers import Workers


@dataclass
class DataRows(ABC):
    """The next rows of the data.

    Attributes:
        held_out: rows by the evaluation's name.
        generated: the evaluations of completions, which need an engine; None for none.
    """

    rows: RowStream
    held_out: Mapping[str, Sequence[EncodedRow]]
    rows_per_step: int
    workers: Workers
    generated: Evaluates | None = field(default=None, kw_only=True)

    @property
    def position(self) -> int:
        """Rows taken so far."""
        return self.rows.position

    @property
    def unfinished(self) -> Sequence[int]:
        return ()

    def probe_prompts(self, count: int) -> list[list[int]]:
        """Return the first prompts of the data; none without an engine to check."""
        return [row.prompt_ids for row in self.rows.first(count)] if self.generated else []

    async def evaluate(self, name: str, step: int, adapter_version: int) -> EvalDone:
        """Evaluate completions where the evaluation is of those, and held-out rows otherwise."""
        if self.generated and name in self.generated.evaluations:
            return await self.generated.evaluate(name, step, adapter_version)
        start = time.perf_counter()
        done = await self._evaluate(self.held_out[name], step)
        return replace(done, name=name, seconds=time.perf_counter() - start)

    @abstractmethod
    async def _evaluate(self, rows: Sequence[EncodedRow], step: int) -> EvalDone:
        """Return what the newest adapter makes of held-out rows."""
