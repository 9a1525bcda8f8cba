"""A run on this machine: its state, its metrics as a table, its curves, and what its adapter reaches."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from lorarl.evaluation import Evaluation
from lorarl.job import INPUTS, Rows, file_uri
from lorarl.process import Command, printed_by
from lorarl.reward_code import name_of
from lorarl.rows import json_lines
from lorarl_trainer.errors import LorarlError
from lorarl_trainer.progress import METRICS, SUMMARY, read_rows, read_summary
from lorarl_trainer.progress.metrics_file import UnreadableSummaryError
from lorarl_trainer.progress.runs import RunLine, find_run, run_line

if TYPE_CHECKING:
    import pandas as pd

    from lorarl.display import Plot

OUTPUT = Path("logs", "console.log")
"""What `lorarl run` printed, in the run's folder."""


def load(run: str | Path) -> Run:
    """Return a run by its folder, or by its job's name under out/. It may still train, also elsewhere.

    Raises:
        InputError: there is no such run.
    """
    return Run(find_run(str(run)))


class Run:
    """A run's folder. All that it shows is read from its files, so it is of this moment."""

    def __init__(self, folder: Path, command: Command | None = None) -> None:
        """`command`: what trains it, if that was started here."""
        self.folder, self._command = folder, command

    @property
    def line(self) -> RunLine:
        """The run in one line, as in `lorarl list`."""
        return run_line(self.folder)

    @property
    def state(self) -> str:
        """One of starting, running, succeeded, interrupted, failed, and stopped for one that ended without a word."""
        if self._command is not None and (code := self._command.code) is not None:
            return _state_after(code)
        try:
            state = self.line.state
        except UnreadableSummaryError:
            raise
        except (OSError, ValueError, KeyError):
            return "starting"
        # The files may still be those of the start before.
        return state if self._command is None or state in ("starting", "running") else "starting"

    @property
    def summary(self) -> dict[str, Any]:
        """What run_summary.json has; empty before the model is loaded."""
        return read_summary(self.folder) if (self.folder / SUMMARY).exists() else {}

    @property
    def adapter(self) -> str | None:
        """The URI of the newest adapter, a PEFT folder; None before the first checkpoint."""
        found: str | None = self.summary.get("adapter_uri")
        return found

    @property
    def metrics(self) -> pd.DataFrame:
        """A row for each step, with the columns of metrics.jsonl; seconds/PHASE has the times of a step's phases."""
        import pandas as pd

        rows = read_rows(self.folder / METRICS)
        return pd.json_normalize(rows, sep="/").set_index("step") if rows else pd.DataFrame()

    def plot(self, *columns: str) -> Plot:
        """Return curves over the steps: of these columns of `metrics`, or else of what says whether the run works.

        Raises:
            InputError: there is no such column.
        """
        from lorarl.display import plot

        return plot(self.folder, columns)

    def evaluate(
        self,
        *,
        data: Rows | str | Path | None = None,
        reward: str | Callable[..., Any] | None = None,
        eval: str | None = None,
        rows: int | None = None,
        samples: int | None = None,
        checkpoint: Literal["best", "newest"] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        passing: float | None = None,
        seed: int | None = None,
    ) -> Evaluation:
        """Score the adapter and its base model on the same rows, as `lorarl evaluate` does, in another process.

        Args:
            data: other rows than the job's: themselves, or their file.
            reward: a type of reward, package.module:function, or such a function, in place of the job's.
            eval: an evaluation of `data.evals`.
            rows: use the first ones alone.
            samples: completions per row, for pass@k.
            checkpoint: None for the best one if the run chose one, otherwise the newest.
            temperature: 0 is greedy.
            max_tokens: longest completion; None for the job's.
            passing: the score with which a completion passes.
            seed: of the samples.

        Raises:
            LorarlError: adapter, rows or reward cannot be used.
        """
        file = data if isinstance(data, str | Path) or data is None else self._file_of(data)
        options = {
            "--data": file,
            "--reward": None if reward is None else name_of(reward, "reward"),
            "--eval": eval,
            "--rows": rows,
            "--samples": samples,
            "--checkpoint": checkpoint,
            "--temperature": temperature,
            "--max-tokens": max_tokens,
            "--passing": passing,
            "--seed": seed,
        }
        given = [str(part) for option in options.items() if option[1] is not None for part in option]
        return Evaluation(json.loads(printed_by(["evaluate", str(self.folder), "--json", *given])))

    def interrupt(self) -> None:
        """Have a run that was started here publish a checkpoint and end."""
        if self._command is not None:
            self._command.interrupt()

    def wait(self) -> Self:
        """Show a run that was started here until it has ended: in a notebook as a picture, elsewhere by its lines.

        Raises:
            LorarlError: it failed. The message is its own.
            KeyboardInterrupt: someone pressed Ctrl-C, and the run has ended because of that.
        """
        if (command := self._command) is None or command.code is not None:
            return self
        from lorarl.display import watcher

        show = watcher(self.folder, lambda: self.state)
        code = command.wait(lambda: show(command.new_output()))
        if _state_after(code) == "failed":
            raise LorarlError(command.message())
        return self

    def _file_of(self, rows: Rows) -> str:
        path = self.folder / INPUTS / "evaluate.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json_lines(rows, "data"), encoding="utf-8")
        return file_uri(path)

    def __repr__(self) -> str:
        """Return folder and state."""
        return f"<lorarl.Run {self.folder}: {self.state}>"

    def _repr_html_(self) -> str:
        from lorarl.display import html

        return html(self.folder, self.state)


def _state_after(code: int) -> str:
    """Return how `lorarl run` ended, by its exit code."""
    from lorarl_trainer.launch.run import EXIT_ABORTED, EXIT_INTERRUPTED  # not at the top: it imports the trainer

    return {0: "succeeded", EXIT_INTERRUPTED: "interrupted", EXIT_ABORTED: "interrupted"}.get(code, "failed")
