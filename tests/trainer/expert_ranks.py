"""Ranks that share a mixture of experts, each in its own process, started by test_expert_parallel.py.

python expert_ranks.py FOLDER RANKS: for each case of so many ranks, write what each rank finds to FOLDER. The model is
there under its architecture's name, and each case's adapter under the case's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lorarl_trainer.devices.cpu import CpuDevice

os.environ.update(CpuDevice().environment(threads=1))

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from safetensors.torch import load_file

from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.expert_rows import Trip
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.lora.grouped_experts import Adapter, compute_mixture
from lorarl_trainer.samples.requests import LossChoice
from lorarl_trainer.samples.sample import Sample
from support.cluster.processes import free_ports
from support.routers import with_any_routing
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples

ARCHITECTURE = "qwen3_moe"
FEW_TOKENS = 100
"""Of a micro-batch, so that each rank has several."""
CROSS_ENTROPY = LossChoice("cross_entropy")


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        rollouts: there would be an engine, which wants all experts.
        ranks: how many there are.
        expert_parallel, tensor_parallel: how many share a layer's experts, and its other weights.
    """

    targets: tuple[str, ...] = ("all-linear",)
    recompute: str = "none"
    loss: LossChoice = CROSS_ENTROPY
    adapter_type: str = "canonical_lora"
    experts: str = "perExpert"
    rollouts: bool = True
    ranks: int = 2
    expert_parallel: int = 2
    tensor_parallel: int = 1

    def share(self, rank: int) -> slice:
        """The samples of a rank: the last ones have few, and so fewer micro-batches."""
        number, last = rank // self.tensor_parallel, self.ranks // self.tensor_parallel - 1
        ends = [None, *range(-3 * last, 0, 3), None]
        return slice(ends[number], ends[number + 1])

    def trainer(self, models: Path, *, alone: bool) -> BareTrainer:
        """A trainer on one of the ranks, or alone."""
        return BareTrainer(
            CpuDevice(),
            models / ARCHITECTURE,
            "fp32",
            self.adapter_type,
            self.recompute,
            FEW_TOKENS,
            targets=self.targets,
            packed=True,
            tensor_parallel=1 if alone else self.tensor_parallel,
            expert_parallel=1 if alone else self.expert_parallel,
            rollouts=self.rollouts,
            experts=self.experts,
        )

    def found(
        self, trainer: BareTrainer, adapter: dict[str, torch.Tensor], samples: Sequence[Sample]
    ) -> dict[str, Any]:
        """What a rank finds of its samples, and the gradients of all, in Hugging Face names."""
        model, layout, optimizer = trainer.model, AdapterLayout(trainer.model), trainer.optimizer
        with torch.no_grad():
            torch._foreach_copy_(list(model.parameters.values()), layout.scatter(adapter))
        total = sum(sample.response_length for sample in all_samples())
        more = {"loss": self.loss, "total_tokens": total, "temperature": 1.0}
        exchanges, loss = exchanges_of(lambda: trainer.loss_and_gradients(samples, **more)[0])
        other, known = model.routing_differences() or (0.0, 0.0)
        found = {
            "loss": loss,
            "exchanges of rows, of sizes": exchanges,
            "norm": optimizer._norm(),
            "gradients": {name: tensor.clone() for name, tensor in layout.gather(optimizer.gradients).items()},
            "counts": model.counts(),
            "base": sum(parameter.numel() for _, parameter in model.base_parameters()),
            "held": sum(tensor.numel() for tensor in model._of_experts),
            "replayed": (other, known),
            "logprobs": trainer.trainer.log_probabilities(samples, 1.0),
        }
        # Samples without a signal would have no backward pass at all.
        LossChoice.has_gradient, kept = lambda choice, sample: True, LossChoice.has_gradient
        signal = [replace(sample, advantage=0.0) for sample in samples]
        trainer.loss_and_gradients(signal, **more | {"loss": LossChoice("policy_gradient", 0.2)})
        LossChoice.has_gradient = kept
        found |= {"without advantages": max(float(gradient.abs().max()) for gradient in optimizer.gradients)}
        partly = without_routing_of_last_prompt(samples)
        return found | {"partly known": exchanges_of(lambda: trainer.loss_and_gradients(partly, **more)[0])}


CASES = {
    "everything": Case(),
    "experts alone, selective": Case(("*.experts.*",), "selective", rollouts=False),
    "lora, KL, full": Case(recompute="full", adapter_type="lora", loss=LossChoice("policy_gradient", 0.2, 0.1)),
    "one rank's experts, and what comes later": Case(("*.layers.0.*.experts.3.up_proj", "*.layers.1.*.q_proj")),
    "tensor parallel": Case(expert_parallel=1, tensor_parallel=2, rollouts=False),
    "both": Case(tensor_parallel=2, recompute="selective", rollouts=False),
    "two copies": Case(ranks=4),
    "two copies, split": Case(ranks=4, tensor_parallel=2, rollouts=False),
    "shared matrices": Case(recompute="selective", experts="sharedOuter"),
    "shared matrices, lora, KL, selective": Case(
        recompute="selective", adapter_type="lora", loss=LossChoice("policy_gradient", 0.2, 0.1), experts="sharedOuter"
    ),
    "shared matrices, tensor parallel": Case(
        expert_parallel=1, tensor_parallel=2, rollouts=False, experts="sharedOuter"
    ),
    "shared matrices, two copies, split": Case(ranks=4, tensor_parallel=2, rollouts=False, experts="sharedOuter"),
    "experts of two copies": Case(ranks=4, expert_parallel=4, tensor_parallel=2, rollouts=False),
}


def all_samples() -> list[Sample]:
    """Samples of all ranks, which a rollout has sent to any experts."""
    return with_any_routing([replace(one, advantage=1.0) for one in grouped_samples(VOCABULARY, prompts=8)])


def without_routing_of_last_prompt(samples: Sequence[Sample]) -> list[Sample]:
    """These of all samples: of the last ones, a rollout's experts are not known."""
    last = all_samples()[-1]
    prompt = last.tokens[: last.prompt_length].tolist()
    return [replace(s, routing=None) if s.tokens[: s.prompt_length].tolist() == prompt else s for s in samples]


def exchanges_of[Result](compute: Callable[[], Result]) -> tuple[tuple[int, int], Result]:
    """How many exchanges of rows and of their sizes something makes, and its result."""
    with patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as exchange:
        result = compute()
    of_rows = [call.args[1].is_floating_point() for call in exchange.call_args_list]
    return (sum(of_rows), len(of_rows) - sum(of_rows)), result


def all_to_the_first_two_experts(ranks: Ranks | None = None) -> tuple[list[torch.Tensor], list[int]]:
    """A mixture's output of tokens of two experts, and the gradients of tokens, weights and adapters.

    Alone without `ranks`. Also how many rows a rank sends in each exchange.
    """
    stream = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=stream)

    x, gate_up, down = draw(5, 16).requires_grad_(), draw(4, 24, 16), draw(4, 16, 12)
    a, b, weights = (draw(*shape).requires_grad_() for shape in ((4, 8, 16), (4, 24, 8), (5, 2)))
    here = slice(None) if ranks is None else slice(4 // ranks.size * ranks.rank, 4 // ranks.size * (ranks.rank + 1))
    chosen, adapters = torch.tensor([[1, 0]] * 5), (Adapter(a[here], b[here]), None)
    with patch.object(dist, "all_to_all_single", wraps=dist.all_to_all_single) as exchange:
        others = None if ranks is None else Trip(ranks, chosen, 4 // ranks.size)
        y = compute_mixture(x, weights, chosen, gate_up[here], down[here], adapters, others)
        y.sum().backward()
    rows = [len(call.args[1]) for call in exchange.call_args_list if call.args[1].is_floating_point()]
    return [tensor.detach() for tensor in (y, x.grad, weights.grad, a.grad[here], b.grad[here])], rows


def run_rank(rank: int, port: int, folder: Path, ranks: int) -> None:
    from megatron.core import parallel_state

    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for name in sorted(path.stem for path in folder.glob("*.safetensors")):
        case = CASES[name]
        if case.ranks == ranks:
            trainer, adapter = case.trainer(folder, alone=False), load_file(folder / f"{name}.safetensors")
            found = case.found(trainer, adapter, all_samples()[case.share(rank)])
            two_experts = all_to_the_first_two_experts(Ranks.of(trainer.model.parallel.expert_group))
            torch.save(found | {"two experts": two_experts}, folder / f"{name}-{rank}.pt")
            parallel_state.destroy_model_parallel()  # the next case may have other groups
    dist.destroy_process_group()


if __name__ == "__main__":
    get_backend("megatron").import_libraries(CpuDevice())  # once for all, which takes longest
    arguments = (free_ports(1)[0], Path(sys.argv[1]), int(sys.argv[2]))
    multiprocessing.start_processes(run_rank, arguments, nprocs=int(sys.argv[2]), start_method="fork")
