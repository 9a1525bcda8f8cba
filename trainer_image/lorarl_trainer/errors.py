"""The errors a user meets. Each names what was wrong, what was got, what was expected and what to do."""

from __future__ import annotations


class LorarlError(Exception):
    """An expected failure: shown as one message without a traceback, exit code 1."""


class InputError(LorarlError):
    """Something in the manifest, or something it names, cannot be used."""

    def __init__(self, field: str, got: str, expected: str, mend: str) -> None:
        """Name the manifest's `field` (as `spec.data.train.uri`), what it was, what it should be, and the mend."""
        self.field, self.got, self.expected, self.mend = field, got, expected, mend
        super().__init__(f"{field}: got {got}, expected {expected}. {mend}")

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, str, str]]:
        """Travel between processes whole."""
        return type(self), (self.field, self.got, self.expected, self.mend)


class StorageError(LorarlError):
    """Object storage refused, or could not be reached within the time for retries."""


class FencedError(LorarlError):
    """A newer start of the same job has taken over the checkpoint prefix."""


class PolicyDriftError(LorarlError):
    """vLLM's and the trainer's log-probabilities of the same tokens differ by more than the tolerance."""


class WorkerError(LorarlError):
    """A worker process failed or ended: out of memory, a device error, a defect."""


class StaleAdapterError(LorarlError):
    """vLLM answered with another adapter version than the newest."""
