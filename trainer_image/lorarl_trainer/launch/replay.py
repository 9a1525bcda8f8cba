"""`lorarl run --dump-rollouts` and `--replay`: what of a job changes for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.rollout.dump import REPLAY, Dump
from lorarl_trainer.rollout.replay import require_steps

DUMP = "--dump-rollouts"


@dataclass(frozen=True)
class Rehearsal:
    """Folders that the command line names.

    Attributes:
        dump: where each step's rollouts are written; None for nowhere.
        replay: whose rollouts are trained on; None to generate them.
    """

    dump: Path | None = None
    replay: Path | None = None

    def of(self, job: LoRARLJob) -> LoRARLJob:
        """Return the job as it is run: a replay generates nothing, and so it makes no evaluation.

        Raises:
            InputError: the job has no rollouts, or the folder lacks what it replays.
        """
        option = DUMP if self.dump else REPLAY if self.replay else None
        if option and job.spec.algorithm.about.from_data:
            kind = job.spec.algorithm.type
            raise InputError(option, f"a job of the type {kind}", "one that generates", f"Remove {option}.")
        if self.replay is None:
            return job
        spec = job.spec
        require_steps(self.replay, job.name, spec.checkpoint.uri, spec.trainer.steps)
        data = spec.data.model_copy(update={"eval": None, "evals": []})
        checkpoint = spec.checkpoint.model_copy(update={"keep_best": None})
        spec = spec.model_copy(update={"data": data, "checkpoint": checkpoint}).without_engine()
        return job.model_copy(update={"spec": spec})

    def dumping(self, job: LoRARLJob) -> Dump | None:
        """Return what writes the job's rollouts, if they are wanted."""
        return Dump(self.dump, job.name, job.spec.checkpoint.uri) if self.dump else None
