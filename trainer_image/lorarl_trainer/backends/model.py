"""The base model with its adapters, as everything shared by the backends sees it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.backends.parallel import Parallel, Part
from lorarl_trainer.backends.stacked import Stacked
from lorarl_trainer.errors import InputError
from lorarl_trainer.lora.targets import Target
from lorarl_trainer.samples.sample import Sample


@dataclass(frozen=True)
class ParameterCounts:
    """Parameters over all ranks that share the model."""

    trainable: int
    total: int


class AdaptedModel(ABC):
    """One rank's share of the base model with its adapters. Each backend has a subclass.

    Attributes:
        targets: the adapters, in the model's order.
        linear_names: Hugging Face names of all linear layers but the output layer, in use or not, and of other modules
            that PEFT takes for one of them.
        excluded_names: those that only `adapter.excludeModules` keeps from having an adapter.
        parameters: the trainable parameters of this rank by the module's names. Nothing else has a gradient.
        parallel: the ranks that share the model, and those that share a batch.
        unpackable: what keeps the model from packed sequences, where those are planned.
    """

    module: torch.nn.Module
    targets: Sequence[Target]
    linear_names: Sequence[str]
    excluded_names: Sequence[str]
    parameters: dict[str, torch.nn.Parameter]
    parallel: Parallel
    device: torch.device
    unpackable: Sequence[str]
    hidden_size: int
    qkv_by_group: bool
    """See `SharesBase.qkv_by_group`."""
    row_lengths: Mapping[str, torch.Tensor] = {}
    """The lengths of the rows of the base's adapted weights, by Hugging Face name, if DoRA trains them."""
    lockstep: bool = False
    """Every pass is collective over the data-parallel ranks, so that all of them make equally many."""
    outer: int = 0
    """How many of the parameters, which come first, are `Part.OUTER`."""
    split_experts: int = 0
    """How many of the parameters, which come next, are `Part.EXPERTS`."""
    stacked: Sequence[Stacked] = ()
    """Parameters that are computed with as one tensor."""

    @abstractmethod
    def micro_batches(self, samples: Sequence[Sample], token_budget: int) -> Iterator[tuple[list[int], MicroBatch]]:
        """Yield the micro-batches of some samples, and which of the samples each holds, in its order."""

    @abstractmethod
    def log_probabilities(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        """Return log p(response token | all before it) at the given temperature, [N], float32, sample by sample.

        They are of all response tokens, also where ranks share the tokens (then it is collective). Tokens that were not
        possible in the rollout are not in the distribution.

        The backward pass has to come before another forward pass that has gradients.
        """

    @abstractmethod
    def hidden_states(self, batch: MicroBatch) -> torch.Tensor:
        """Return what the output layer makes the response tokens' log-probabilities of, [N, H], sample by sample.

        Its gradient is whole on every rank that shares the model. What `log_probabilities` says of the backward pass
        holds here too. Where ranks share the tokens, these are this rank's.
        """

    def of_all_tokens(self, batch: MicroBatch, own_N: torch.Tensor) -> torch.Tensor:
        """Return a number of each response token, given those of this rank's (collective where ranks share them).

        All ranks make the same of them.
        """
        del batch
        return own_N

    def routing_differences(self) -> tuple[float, float] | None:
        """Return how many tokens of how many, over all layers, the rollout sent to other experts than this router does.

        It is about all passes since the last call. None: the job records no routing.
        """
        return None

    def continue_routing(self, differences: tuple[float, float]) -> None:
        """Let the passes from now on add to what `routing_differences` returned, in the place of those before."""
        raise NotImplementedError("this model records no routing")

    @abstractmethod
    def base_only(self) -> AbstractContextManager[None]:
        """Switch the adapters off: the model is the frozen base, the reference policy of a KL penalty."""

    @abstractmethod
    def exported(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the whole adapter's tensors by Hugging Face name, on every rank (collective).

        The tensors may be the parameters' own storage.
        """

    @abstractmethod
    def base_in_hf_names(self) -> Mapping[frozenset[str], torch.Tensor]:
        """See `SharesBase.base_in_hf_names` (collective)."""

    def export(self) -> dict[str, torch.Tensor]:
        """Return the adapter in Hugging Face names, whole on every rank (collective); see `exported`."""
        return dict(self.exported())

    def help_export(self) -> None:
        """Take part in the `export` of a rank that shares this one's model, and keep nothing of it (collective)."""
        for _ in self.exported():
            pass

    @contextmanager
    def holding(self, values: list[torch.Tensor]) -> Iterator[None]:
        """Let the trainable parameters be `values` within the block, so that `export` sends those instead."""
        kept = [parameter.data for parameter in self.parameters.values()]
        for parameter, value in zip(self.parameters.values(), values, strict=True):
            parameter.data = value
        try:
            yield
        finally:
            for parameter, data in zip(self.parameters.values(), kept, strict=True):
                parameter.data = data

    def base_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the frozen parameters of this rank."""
        yield from ((name, p.detach()) for name, p in self.module.named_parameters() if not p.requires_grad)

    @abstractmethod
    def hf_names(self, name: str) -> Sequence[str]:
        """Return the Hugging Face parameters that one of `base_parameters` is made of."""

    def require_finite_base(self, model_path: Path) -> None:
        """Require that every weight of the base on this rank is a number.

        Otherwise all that is computed is NaN, and a start fails at whatever is first wrong by that. Of a quantized
        weight, the scales say it.

        Raises:
            InputError: naming the first weight with one that is not, or those that are in one parameter with it.
        """
        base = {name: p for name, p in self.base_parameters() if p.numel() and p.dtype.itemsize > 1}
        extremes = torch.stack([torch.stack(torch.aminmax(parameter)).float() for parameter in base.values()])
        broken = [name for name, finite in zip(base, extremes.isfinite().all(1).tolist(), strict=True) if not finite]
        if broken:
            raise InputError(
                "spec.model.uri",
                f"{model_path}, whose {' or '.join(self.hf_names(broken[0]))} has values that are not finite "
                f"({len(broken)} such weights)",
                "numbers in all weights",
                "Copy or download the model again. If it was converted to fp16, convert it to bf16 instead.",
            )

    def stands_for(self, name: str, parameter: torch.Tensor) -> int:
        """Return how many of the model's numbers a parameter of this rank is."""
        return parameter.numel()

    def part(self, name: str) -> Part:
        """Return which ranks have other elements of a parameter, by the module's name."""
        return Part.REST

    def norm(self, values: Sequence[torch.Tensor]) -> float:
        """Return the norm of one tensor per trainable parameter, over all ranks that share the model (collective)."""
        squares = torch.stack(torch._foreach_norm(values)).square()
        counts = self.outer, self.split_experts, len(squares) - self.outer - self.split_experts
        return math.sqrt(self._sum_of_parts(torch.stack([part.sum() for part in squares.split(counts)])).item())

    def counts(self) -> ParameterCounts:
        """Count parameters over the ranks that share the model (collective).

        Norms, which all tensor-parallel ranks hold, count for each.
        """
        local = [[0, 0] for _ in Part]
        for name, parameter in self.module.named_parameters():
            counted = local[self.part(name)]
            counted[0] += parameter.numel() if name in self.parameters else 0
            counted[1] += self.stands_for(name, parameter)
        trainable, total = (int(n) for n in self._sum_of_parts(torch.tensor(local, device=self.device)).tolist())
        return ParameterCounts(trainable, total)

    def _sum_of_parts(self, by_part: torch.Tensor) -> torch.Tensor:
        """Return the sum over the parts and over all ranks that share the model, given this rank's (collective)."""
        dist.all_reduce(by_part[Part.REST], group=self.parallel.tensor_group)
        if self.parallel.expert_size > 1:
            dist.all_reduce(by_part[Part.EXPERTS], group=self.parallel.expert_group)
        return by_part.sum(0)
