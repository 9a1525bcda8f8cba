"""Says in a user's words that a GPU's memory has run out, whichever library noticed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lorarl_trainer.errors import OutOfMemoryError

_WORDS = "out of memory"


@contextmanager
def gpu_memory_explained(doing: str, table: str | None) -> Iterator[None]:
    """Turn the error of a GPU without memory into ours.

    torch has its own error for it. vLLM's allocator, CUDA and NCCL raise a RuntimeError with these words.

    Args:
        doing: what the worker does meanwhile, for the message.
        table: what was planned for the GPU's memory; None if that is not known.

    Raises:
        OutOfMemoryError: the GPU's memory is used up.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if _WORDS not in str(error).lower():
            raise
        planned = f" The memory was planned as follows.\n{table}" if table else ""
        raise OutOfMemoryError(
            f"the GPU's memory was used up while {doing} ({str(error).partition('. GPU')[0]}). "
            "Lower spec.trainer.tokensPerMicroBatch or spec.rollout.gpuMemoryFraction, or set "
            f"spec.trainer.recompute: selective, or spec.rollout.offload: [kv_cache].{planned}"
        ) from error
