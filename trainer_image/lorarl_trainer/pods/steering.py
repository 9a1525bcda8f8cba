"""What may change for a job while it runs in a cluster: how many steps it makes, and that a pod of it is to be taken away."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.faults import ManifestError
from lorarl_api.load import load_job
from lorarl_trainer.progress import Warned
from lorarl_trainer.session import Session


class Steering:
    """Looks at the mounted manifest and at the pods, once a step."""

    def __init__(self, manifest: Path) -> None:
        """`manifest` lies on a mounted ConfigMap, which Kubernetes brings up to date within a minute or so."""
        self._manifest = manifest
        self._seen: bytes | None = None

    async def __call__(self, session: Session) -> None:
        """Bring the session up to date."""
        self._read_steps(session)
        if not session.stop.is_set() and await session.workers.drain_asked():
            session.progress.emit(Warned("a pod of this job is being taken away: publishing a checkpoint, then ending"))
            session.stop.set()

    def _read_steps(self, session: Session) -> None:
        text = self._manifest.read_bytes()
        if text == self._seen:
            return
        self._seen = text
        try:
            steps = load_job(self._manifest).spec.trainer.steps
        except ManifestError as error:
            session.warn_once(
                "manifest",
                f"{self._manifest} has changed and cannot be read, so the steps stay {session.total_steps}: {error}",
            )
            return
        if steps != session.total_steps:
            session.progress.emit(Warned(f"spec.trainer.steps is {steps} now, not {session.total_steps}"))
            session.total_steps = steps
