"""Jobs that cannot run, and how soon `kubectl describe lrj` says why."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from support.cluster.client import Object
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.real_cluster import example

SECONDS = 30.0
"""From the moment when it stands still, or has failed, until the user can read why."""
TRAINER_SECONDS = 180.0
"""From a manifest to the trainer's own words: pods, imports of torch and vLLM."""
AT_FIRST_FAILURE = {"backoffLimit": 0, "cluster.terminationGracePeriodSeconds": 30}
NO_IMAGE = "registry.invalid/nobody/nothing:1"


@dataclass(frozen=True)
class Mistake:
    """A job that cannot run.

    Attributes:
        name: Of the job.
        told: All of it must be read in `kubectl describe lrj`.
        changes: Of the example's spec.
    """

    name: str
    told: tuple[str, ...]
    changes: Object = field(default_factory=dict)


def note(out: Path, mistake: Mistake, seconds: float) -> None:
    """Add it to what is known of the others."""
    example.note(out, explained={**example.noted(out).get("explained", {}), mistake.name: round(seconds, 1)})


def remove(cluster: RealCluster, team: str, mistake: Mistake) -> None:
    """Delete the job, and wait until its pods do not take the place of the next one's."""
    cluster.must("delete", "lorarljob", mistake.name, "-n", team, "--wait")
    until(TRAINER_SECONDS, f"the pods of {mistake.name} are gone", lambda: not cluster.api.list("Pod", team))


def read_in_describe(cluster: RealCluster, team: str, mistake: Mistake, out: Path) -> float:
    """Seconds until `kubectl describe` has all that it should show; fails where it takes longer than it may."""
    started, text = time.monotonic(), ""

    def told() -> bool:
        nonlocal text
        text = cluster.must("describe", "lrj", mistake.name, "-n", team)
        return all(each in text for each in mistake.told)

    try:
        until(SECONDS, f"{mistake.name} is explained by {mistake.told}", told, patience=1)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{text}") from None
    finally:
        (out / f"explained-{mistake.name}.txt").write_text(text)
    return time.monotonic() - started
