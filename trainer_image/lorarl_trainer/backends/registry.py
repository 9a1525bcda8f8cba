"""The training backends. There is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lorarl_trainer.backends.megatron.backend import MegatronBackend


def get_backend() -> type[MegatronBackend]:
    """Return the backend's class. Importing it imports torch."""
    from lorarl_trainer.backends.megatron.backend import MegatronBackend

    return MegatronBackend
