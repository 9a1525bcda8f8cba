"""Parameters of one shape that are used as one tensor, whose gradient is added to an optimizer's sums as one.

Otherwise autograd would hand each parameter its part in a separate step, and the optimizer would add each by a
separate kernel. A layer of 128 experts has 768 such parameters: that took the host 11 ms of each backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch


class Taker(NamedTuple):
    """Who adds up gradients.

    Attributes:
        is_theirs: whether the parameters hold the values whose gradients these are.
    """

    is_theirs: Callable[[], bool]
    add: Callable[[torch.Tensor], None]


class Stacked:
    """Some tensors of one shape, parameters or not."""

    def __init__(self, parts: Sequence[torch.Tensor]) -> None:
        self.parts, self.takers = list(parts), list[Taker]()
        # Autograd calls a parameter's hooks also if it has no gradient, so none is an input of what is taken.
        self._anchor = torch.empty(0, requires_grad=True)

    def stack(self) -> torch.Tensor:
        """Return the tensors as one, [E, ...], differentiable. Without a taker, each gets its own gradient."""
        taker = next((taker for taker in self.takers if taker.is_theirs()), None)
        if taker is None:
            return torch.stack(self.parts)
        stacked: torch.Tensor = _Taken.apply(self._anchor, self.parts, taker)
        return stacked


class _Taken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, parts: Sequence[torch.Tensor], taker: Taker) -> torch.Tensor:
        ctx.taker = taker
        return torch.stack(list(parts))

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.taker.add(gradient)
        return None, None, None
