"""What may change while a job runs in a cluster: how many steps it makes, and whether one of its pods must end."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_trainer.protocols.steering import Steering
from lorarl_trainer.protocols.workers import Workers


class PodSteering:
    """Looks at the mounted manifest and at the workers' pods, once per step."""

    def __init__(self, manifest: Path, workers: Workers) -> None:
        """`manifest` is in a mounted ConfigMap, which Kubernetes updates within about a minute."""
        self._manifest, self._workers = manifest, workers
        self._seen: bytes | None = None

    async def __call__(self, total_steps: int, stopping: bool) -> Steering:
        """Return what the run should do from now on. Today it makes `total_steps` steps, or is already stopping."""
        steps, warnings = self._steps(total_steps)
        draining = not stopping and await self._workers.drain_asked()
        if draining:
            warnings.append("a worker's pod is about to be removed: publishing a checkpoint")
        return Steering(steps, draining, tuple(warnings))

    def _steps(self, total_steps: int) -> tuple[int, list[str]]:
        text = self._manifest.read_bytes()
        if text == self._seen:
            return total_steps, []
        self._seen = text
        try:
            steps = load_job(self._manifest).spec.trainer.steps
        except ManifestError as error:
            return total_steps, [
                f"{self._manifest} has changed and cannot be read, so the job keeps its {total_steps} steps: {error}"
            ]
        changed = [f"spec.trainer.steps is now {steps}, was {total_steps}"] if steps != total_steps else []
        return steps, changed
