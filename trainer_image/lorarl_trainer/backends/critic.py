"""The critic of PPO: a second adapter on the same frozen base, and a head that makes one number of a hidden state.

There is no second model. While the critic computes, the model's parameters are its adapter's values; otherwise they are
the policy's. So base, layers and layout are the policy's own, on any backend. The value of a token is the return that
the critic expects before it: it is made of the hidden state that predicts the token.

Shape suffixes: N response tokens of a micro-batch, H hidden size.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.backends import state
from lorarl_trainer.backends.layout import AdapterLayout
from lorarl_trainer.backends.micro_batch import MicroBatch
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.optimizer import AdapterOptimizer
from lorarl_trainer.backends.passes import by_sample, passes
from lorarl_trainer.backends.totals import Totals
from lorarl_trainer.devices.base import Device
from lorarl_trainer.devices.transfer import to_device
from lorarl_trainer.losses.value import value_loss
from lorarl_trainer.samples.critic import CriticUpdate
from lorarl_trainer.samples.requests import UpdateRequest, UpdateResult
from lorarl_trainer.samples.sample import Sample

HEAD = "score.weight"
"""What Transformers calls the head of a model that gives a sequence one number (`num_labels=1`)."""
_PREFIX = "critic."
"""Of the critic's tensors in the training state."""


class Critic:
    """Its adapter, its head and their optimizer.

    Attributes:
        head: [1, H], float32. It begins with zeros, so the first values are 0.
        optimizer: of both; its `values` are the adapter.
    """

    def __init__(
        self,
        device: Device,
        model: AdaptedModel,
        layout: AdapterLayout,
        spec: LoRARLJobSpec,
        micro_batch_tokens: int,
        *,
        fused: bool,
    ) -> None:
        """`fused`: see `AdapterOptimizer`. `load` gives it an adapter to start from."""
        self._device, self._model, self._layout, self._tokens = device, model, layout, micro_batch_tokens
        self.head = torch.zeros(1, model.hidden_size, device=model.device, requires_grad=True)
        values = [torch.empty_like(parameter.data) for parameter in model.parameters.values()]
        self.optimizer = AdapterOptimizer(model, spec.trainer, fused=fused, values=values, heads={HEAD: self.head})

    def begin_job(self, spec: LoRARLJobSpec) -> None:
        """Let the critic that is loaded next be of this job, with a head that has learned nothing."""
        self.head.detach().zero_()
        self.optimizer.take_numbers(spec.trainer)

    def load(self, adapter: Mapping[str, torch.Tensor], field: str) -> None:
        """Start from an adapter in Hugging Face names, as the policy does; see `state.load_adapter`."""
        state.load_adapter(self._layout, self.optimizer, adapter, field)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> list[np.ndarray]:
        self._model.module.eval()
        with self._model.holding(self.optimizer.values):
            found = by_sample(self._model, samples, self._tokens, self._values)
        self._model.module.train()
        return found

    def update(self, request: UpdateRequest, critic: CriticUpdate) -> UpdateResult:
        """Make one optimizer update (collective over all workers). It is withheld if a number is not finite.

        critic/loss, critic/clipped_share: see `losses.value`, means over all workers' response tokens.
        critic/grad_norm: before clipping; 0 if the loss is not finite.
        """
        clock = time.perf_counter()
        loss, share = self.forward_backward(request, critic)
        self._device.synchronize()
        forward_backward = time.perf_counter() - clock
        clock = time.perf_counter()
        norm = self.optimizer.step(critic.learning_rate) if math.isfinite(loss) else 0.0
        self._device.synchronize()
        return UpdateResult(
            metrics={"critic/loss": loss, "critic/clipped_share": share, "critic/grad_norm": norm},
            disagreement=None,
            seconds={"forward_backward": forward_backward, "optimizer": time.perf_counter() - clock},
        )

    def forward_backward(self, request: UpdateRequest, critic: CriticUpdate) -> tuple[float, float]:
        """Compute the gradient of the samples' mean loss (collective); return that and the share that is clipped."""
        parallel = self._model.parallel
        torch.manual_seed(request.seed + parallel.copies_rank)
        self.optimizer.zero_grad()
        totals = Totals(self._model.device)
        none_N = torch.zeros(0, device=self._model.device)
        totals.add(value_loss(none_N, none_N, none_N, critic.clip_range)[1])  # the names, where there is no sample
        with self._model.holding(self.optimizer.values):
            for indices, batch in passes(self._model, request.samples, self._tokens):
                values_N = self._values(batch)
                if not indices:
                    (0.0 * values_N.sum()).backward()
                    continue
                samples = [request.samples[index] for index in indices]
                before_N, returns_N = (self._per_token(samples, name) for name in ("values", "returns"))
                loss_N, columns = value_loss(values_N, before_N, returns_N, critic.clip_range)
                (loss_N.sum() / request.total_tokens).backward()
                self.optimizer.require_gradients()
                totals.add(columns)
        if parallel.data_size > 1:
            totals.reduce(parallel.data_group)
        sums = totals.sums()
        return sums["critic/loss"] / request.total_tokens, sums["critic/clipped_share"] / request.total_tokens

    def gather_state(self) -> dict[str, torch.Tensor]:
        """Return its part of the training state; see `state.gather_state` (collective)."""
        return {_PREFIX + name: tensor for name, tensor in state.gather_state(self._layout, self.optimizer).items()}

    def help_gather_state(self) -> None:
        """See `state.help_gather_state`."""
        state.help_gather_state(self._layout, self.optimizer)

    def restore(self, tensors: Mapping[str, torch.Tensor], updates: int) -> None:
        """Resume from a training state, the policy's part of which is left aside."""
        own = {name.removeprefix(_PREFIX): of for name, of in tensors.items() if name.startswith(_PREFIX)}
        state.load_state(self._layout, self.optimizer, own, updates)

    def _values(self, batch: MicroBatch) -> torch.Tensor:
        """Return the values of a micro-batch's response tokens, [N], float32."""
        # Its adapter is another one than the rollout's, so its router chooses by itself.
        hidden_N_H = self._model.hidden_states(replace(batch, routing=None))
        return self._model.of_all_tokens(batch, (hidden_N_H.float() @ self.head.t()).flatten())

    def _per_token(self, samples: Sequence[Sample], name: str) -> torch.Tensor:
        return to_device(np.concatenate([getattr(sample, name) for sample in samples]), self._model.device)
