"""The training backends by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lorarl_trainer.models.families import BackendName

if TYPE_CHECKING:
    from lorarl_trainer.backends.backend import Backend


def get_backend(name: BackendName) -> type[Backend]:
    """Return a backend's class. Importing it imports torch."""
    if name == "fsdp":
        from lorarl_trainer.backends.fsdp.backend import FsdpBackend

        return FsdpBackend
    from lorarl_trainer.backends.megatron.backend import MegatronBackend

    return MegatronBackend
