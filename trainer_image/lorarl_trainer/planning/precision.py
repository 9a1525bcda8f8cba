"""The numbers that `spec.precision` can name, in the words of everyone who asks.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """A floating-point format.

    Attributes:
        dtype: the name that PyTorch and vLLM use.
    """

    name: str
    dtype: str
    bytes: int


PRECISIONS = {one.name: one for one in (Precision("fp32", "float32", 4), Precision("bf16", "bfloat16", 2))}
