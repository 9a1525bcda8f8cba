"""Transformers' model, loaded from its folder and frozen, with PEFT's adapters attached."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.backends.fsdp.adapters import adapter_name, attach, linear_names, names_like_linears, row_lengths
from lorarl_trainer.backends.fsdp.attention import PACKED, Current, let_find
from lorarl_trainer.backends.fsdp.base_weights import fuse_neighbours, hf_name
from lorarl_trainer.backends.fsdp.loading import decoder_layers, language_model, leave_out_what_sees, load_base
from lorarl_trainer.backends.fsdp.output_head import OutputHead
from lorarl_trainer.backends.fsdp.recompute import recompute
from lorarl_trainer.backends.fsdp.recurrent import let_see_sequences
from lorarl_trainer.backends.fsdp.sharding import own_share, shard_layers
from lorarl_trainer.backends.micro_batch import MicroBatch, grouped, packed_batch, padded_batch
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.parallel import Parallel
from lorarl_trainer.devices.base import Device
from lorarl_trainer.kernels.formats import HELD_NAMES, WEIGHT
from lorarl_trainer.kernels.logprobs import rows_of_chunk, token_log_probabilities
from lorarl_trainer.kernels.quantized_linear import QuantizedLinear
from lorarl_trainer.lora.targets import Target, excluded_names, megatron_linears, resolve_targets
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.timing import StartClock

_ROUNDING = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.2}
"""How far log-probabilities of the same sequence may be apart, in nats, before packed sequences are given up."""
_TRIED = ([5, 6, 7, 8], [5, 6, 9, 10, 11])
"""Two sequences with one prompt, of two tokens, which are tried before training begins."""


class FsdpModel(AdaptedModel):
    """See `AdaptedModel`. `module` is PEFT's model, which holds Transformers'."""

    qkv_by_group = False

    def __init__(
        self,
        device: Device,
        model_path: Path,
        adapter: AdapterSpec,
        plan: ExecutionPlan,
        clock: StartClock | None = None,
    ) -> None:
        """Load the model (collective over all workers). torch.distributed comes first.

        `clock` takes the time that loading the weights takes.

        Raises:
            InputError: Transformers does not know the model's architecture, its logits are made in an unknown way, or
                `adapter.targetModules` does not fit it.
        """
        self._plan, self.parallel = plan, _data_parallel()
        self.device = torch.device(device.name, None if device.name == "cpu" else torch.cuda.current_device())
        began = time.time()
        self.lockstep = plan.layout.base_shards > 1
        # Only the rank's share has to fit on its device.
        place = torch.device("cpu") if self.lockstep else self.device
        dtype = getattr(torch, plan.compute.dtype)
        base = load_base(model_path, dtype, packed=plan.trainer.packed, quantization=plan.quantization)
        self.linear_names = names_like_linears(base)
        leave_out_what_sees(base)
        base.to(place)
        if clock is not None:
            clock.add_first("trainer/load", began, time.time())
        self._fused: Mapping[frozenset[str], torch.Tensor] = fuse_neighbours(base) if plan.layout.shared_base else {}
        found, chosen = megatron_linears(linear_names(base)), (adapter.type, adapter.target_modules)
        self.targets: Sequence[Target] = resolve_targets(found, *chosen, adapter.exclude_modules)
        self.excluded_names = excluded_names(found, *chosen, adapter.exclude_modules)
        self.module: Any = attach(base, adapter, self.targets)
        self.row_lengths = row_lengths(self.module)
        self._base, self._decoder, self._head = base, language_model(base), OutputHead.of(base)
        self._layers = decoder_layers(self._decoder)
        self.hidden_size: int = self._head.weight.shape[1]
        recompute(self._layers, plan.trainer.recompute)
        if self.lockstep:
            shard_layers(self._decoder, self._layers, self.device, plan.layout.base_shards)
            self.module.to(self.device)
        self.parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        self.require_finite_base(model_path)
        self._packing: Current | None = None
        self.unpackable = self._try(model_path)
        self.module.train()

    def micro_batches(self, samples: Sequence[Sample], token_budget: int) -> Iterator[tuple[list[int], MicroBatch]]:
        keys = self._plan.trainer.key_budget
        for indices in grouped(samples, token_budget, keys, packed=self._packing is not None):
            yield indices, self._batch([samples[index] for index in indices])

    def log_probabilities(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        head = self._head
        hidden = self._predicting(batch)
        # A truncation sorts the logits, which takes three times their memory.
        logits = self._plan.trainer.logits_chunk if batch.kept is None else self._plan.trainer.logits_chunk // 4
        logprobs = token_log_probabilities(
            hidden * head.scale if head.scale != 1.0 else hidden,
            head.weight,
            batch.targets,
            temperature,
            len(head.weight),
            self.parallel.tensor_group,
            rows_of_chunk(logits, head.weight),
            batch.kept,
            None if head.bias is None else head.bias * head.scale,
            head.soft_cap,
        )
        return logprobs[: batch.count]

    def hidden_states(self, batch: MicroBatch) -> torch.Tensor:
        return self._predicting(batch)[: batch.count]

    def base_only(self) -> AbstractContextManager[None]:
        disabled: AbstractContextManager[None] = self.module.disable_adapter()
        return disabled

    def exported(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((adapter_name(name), parameter.detach()) for name, parameter in self.parameters.items())

    def base_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, own_share(parameter)) for name, parameter in super().base_parameters())

    def hf_names(self, name: str) -> list[str]:
        layer, _, kind = hf_name(name).rpartition(".")
        return [f"{layer}.{WEIGHT if kind in HELD_NAMES else kind}"]

    def stands_for(self, name: str, parameter: torch.Tensor) -> int:
        layer, _, kind = name.rpartition(".")
        module = self.module.get_submodule(layer)
        if isinstance(module, QuantizedLinear) and kind in HELD_NAMES:
            return module.in_features * module.out_features if kind == WEIGHT else 0
        return super().stands_for(name, parameter)

    def base_in_hf_names(self) -> dict[frozenset[str], torch.Tensor]:
        saved, buffers = self.module.state_dict().keys(), self.module.named_buffers()
        named = (*self.base_parameters(), *((name, buffer) for name, buffer in buffers if name in saved))
        return {frozenset([hf_name(name)]): tensor for name, tensor in named} | dict(self._fused)

    def _batch(self, samples: Sequence[Sample]) -> MicroBatch:
        if self._packing is None:
            return padded_batch(samples, self.device)
        return packed_batch(samples, self.device, multiple=16)

    def _predicting(self, batch: MicroBatch) -> torch.Tensor:
        """Return the hidden states that predict the response tokens, padded at the end."""
        return batch.predictors(self._decoded(batch).transpose(0, 1).flatten(0, 1))

    def _decoded(self, batch: MicroBatch) -> torch.Tensor:
        """Return the decoder's output, [B, S, H]."""
        hidden: torch.Tensor = self._decoder(**self._inputs(batch)).last_hidden_state
        return hidden

    def _inputs(self, batch: MicroBatch) -> dict[str, Any]:
        """Return what Transformers' model is called with."""
        inputs = {"input_ids": batch.tokens, "use_cache": False}
        if self._packing is None:
            return inputs
        self._packing.segments = batch.segments
        return inputs | {"position_ids": batch.positions}

    @torch.no_grad()
    def _try(self, model_path: Path) -> list[str]:
        """Try the model, since Transformers knows many; return what keeps it from packed sequences.

        Its logits have to be what `OutputHead` makes of its hidden states. Sequences that share a prompt have to be
        worth what each is alone.

        Raises:
            InputError: its logits are made in an unknown way.
        """
        self.module.eval()
        one, other = (Sample(np.array(tokens), prompt_length=2) for tokens in _TRIED)
        if self._decoder.config._attn_implementation == PACKED:
            self._packing = let_find(self._base)
            let_see_sequences(self._layers, self._packing)
        batch = self._batch([one])
        states = self._decoded(batch)
        logits = self._base(**self._inputs(batch)).logits
        self._head.require_same(states, logits, str(model_path))
        if not self._plan.trainer.packed:
            return []
        if self._packing is not None and self._packing.calls == 2 * len(self._layers):
            alone = torch.cat([self.log_probabilities(self._batch([sample]), 1.0) for sample in (one, other)])
            together = self.log_probabilities(self._batch([one, other]), 1.0)
            if torch.allclose(alone, together, rtol=0.0, atol=_ROUNDING[states.dtype]):
                return []
        if self._packing is not None:
            self._base.set_attn_implementation("eager")
            self._packing.segments = None
            self._packing = None
        return ["attention that takes no packed sequences"]


def _data_parallel() -> Parallel:
    """Return the ranks: each holds a whole copy of the model for itself, and all share a batch."""
    size, rank = dist.get_world_size(), dist.get_rank()
    alone = [dist.new_group([one]) for one in range(size)]
    return Parallel(
        tensor_group=alone[rank],
        tensor_size=1,
        data_group=dist.group.WORLD,
        data_size=size,
        data_rank=rank,
        copies_group=dist.group.WORLD,
        copies_size=size,
        copies_rank=rank,
    )
