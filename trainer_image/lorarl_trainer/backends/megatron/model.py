"""The Megatron model: loaded from a Hugging Face folder by Megatron-Bridge, frozen, with LoRA adapters attached."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lorarl_api.v1alpha1 import AdapterSpec
from lorarl_trainer.backends.megatron.adapter_export import AdapterExport
from lorarl_trainer.backends.megatron.bridge_lora import decoder_linears, hf_parts, make_lora
from lorarl_trainer.backends.megatron.collectives import Ranks
from lorarl_trainer.backends.megatron.context import of_all_ranks, sharing_keys
from lorarl_trainer.backends.megatron.fused_experts import Compared
from lorarl_trainer.backends.megatron.fused_layer import fuse_layers
from lorarl_trainer.backends.megatron.loaded_weights import needed_weights, require_all_weights
from lorarl_trainer.backends.megatron.local_experts import LocalExperts, by_all_names, is_local, is_outer, share_outer
from lorarl_trainer.backends.megatron.own_bridges import register_own_bridges
from lorarl_trainer.backends.megatron.own_heads import WHOLE, OwnHeads
from lorarl_trainer.backends.megatron.packed_attention import Current, pack_attention, unpackable
from lorarl_trainer.backends.megatron.parallel import open_groups
from lorarl_trainer.backends.megatron.platform import Platform, platform_of
from lorarl_trainer.backends.megatron.recompute import let_recomputed_layers_learn
from lorarl_trainer.backends.megatron.rows_ahead import RowsAhead
from lorarl_trainer.backends.megatron.weight_files import open_files
from lorarl_trainer.backends.micro_batch import MicroBatch, grouped, packed_batch, padded_batch
from lorarl_trainer.backends.model import AdaptedModel
from lorarl_trainer.backends.parallel import Part
from lorarl_trainer.devices.base import Device
from lorarl_trainer.errors import InputError
from lorarl_trainer.kernels.logprobs import rows_of_chunk, token_log_probabilities
from lorarl_trainer.lora.targets import (
    Target,
    excluded_names,
    require_vocabulary_to_split,
    resolve_targets,
)
from lorarl_trainer.planning.execution import ExecutionPlan
from lorarl_trainer.samples.sample import Sample
from lorarl_trainer.timing import StartClock


class LoraModel(AdaptedModel):
    """See `AdaptedModel`. `module` is the Megatron GPT model of this rank."""

    qkv_by_group = True

    def __init__(
        self,
        device: Device,
        model_path: Path,
        adapter: AdapterSpec,
        plan: ExecutionPlan,
        clock: StartClock | None = None,
    ) -> None:
        """Load the model (collective over all workers). `Platform.prepare` and torch.distributed come first.

        `clock` takes the time that loading the weights takes.

        Raises:
            InputError: Megatron-Bridge does not know the model's architecture, its logits are more than a product with
                the output layer's weight, one of its weights is no number, `adapter.targetModules` does not fit it, or
                it cannot be split over so many ranks.
            PlanError: its layers are not what was planned.
        """
        self._platform, self._plan = platform_of(device), plan
        self._bridge = _open_bridge(model_path, plan)
        provider = self._bridge.to_megatron_provider(load_weights=True)
        _configure(provider, self._platform, plan)
        self.parallel = open_groups(provider, plan.layout.context_ranks)
        self.lockstep = self.parallel.expert_size > self.parallel.tensor_size
        self._experts = LocalExperts(Ranks.of(self.parallel.expert_group), provider.num_moe_experts or 0)
        self._context: Ranks | None = None
        if self.parallel.context_size > 1:
            self._context = Ranks.of(self.parallel.context_group)
        self._lora: Any = None
        self._shares_outer = adapter.shares_outer
        self._load(provider, adapter, model_path, clock)
        self.require_finite_base(model_path)
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        parts = [self.part(name) for name in trained]
        self.outer, self.split_experts = parts.count(Part.OUTER), parts.count(Part.EXPERTS)
        self.parameters: dict[str, torch.nn.Parameter] = {
            name: trained[name] for name in sorted(trained, key=self.part)
        }
        self.device = next(self.module.parameters()).device
        self._sequence_parallel, self._vocabulary = provider.sequence_parallel, provider.vocab_size
        self.hidden_size: int = provider.hidden_size
        self._pack(model_path)

    def _load(self, provider: Any, adapter: AdapterSpec, model_path: Path, clock: StartClock | None) -> None:
        """Make the model, load its weights and attach the adapters."""
        loading_began = 0.0

        def before_loading(chunks: list[Any]) -> list[Any]:
            nonlocal loading_began
            loading_began = time.time()
            needed = needed_weights(chunks[0], self._bridge, self._experts)
            require_all_weights(needed, self._bridge, model_path)
            # The bridge reads for all ranks of a tensor-parallel group on the first. A CPU reads files where they are.
            device = next(chunks[0].parameters()).device
            if device.type == "cuda" and dist.get_rank(self.parallel.tensor_group) == 0:
                files.bring_ahead(list(needed), device)
            return chunks

        def attach(chunks: list[Any]) -> list[Any]:
            if clock is not None:
                clock.add_first("trainer/load", loading_began, time.time())
            linears = decoder_linears(chunks[0], self._bridge, self._experts)
            self.linear_names = [name for linear in linears for name in linear.hf.values()]
            self.targets: list[Target] = resolve_targets(
                linears, adapter.type, adapter.target_modules, adapter.exclude_modules
            )
            self._experts.require_adapters(self.targets)
            self.excluded_names = excluded_names(linears, adapter.type, adapter.target_modules, adapter.exclude_modules)
            self._lora = make_lora(adapter, self.targets, self._plan.expert_rank, self._experts)
            adapted = list(self._lora(chunks, training=True))
            if self._shares_outer:
                share_outer(adapted[0])
            if self._plan.trainer.recompute != "none" and not self._plan.trainer.fused_layers:
                let_recomputed_layers_learn(adapted[0].decoder)
            return adapted

        # Between the two the bridge loads the weights.
        provider.register_pre_wrap_hook(before_loading, prepend=True)
        provider.register_pre_wrap_hook(attach)
        with open_files(self._bridge) as files:
            self._chunks: list[Any] = provider.provide_distributed_model(
                wrap_with_ddp=False,
                use_cpu_initialization=provider.use_cpu_initialization,
                init_model_with_meta_device=False,
            )
        self.module, self._export = self._chunks[0], AdapterExport(self._bridge, self._chunks)

    def _pack(self, model_path: Path) -> None:
        """Let the model take packed sequences, and compute its layers in a few steps, as planned."""
        model, plan = self._unwrapped(), self._plan
        _check_output_layer(model, model_path)
        self.unpackable: list[str] = unpackable(model) if plan.trainer.packed else []
        self._packing: Current | None = pack_attention(model) if plan.trainer.packed and not self.unpackable else None
        if self._packing is None and self._context is not None:
            raise _without_packings(self._context.size, self.unpackable)
        # Tensor cores like multiples of 16, and with sequence parallelism each rank holds an equal part of the tokens.
        self._tokens_multiple = 16 * self.parallel.tensor_size
        self._of_experts: list[torch.Tensor] = []
        self._compared, self._ahead = Compared(), self._rows_ahead()
        if plan.trainer.fused_layers:
            how = {"replay": plan.router_replay is True, "whole": plan.whole_experts}
            fused = [] if self._packing is None else fuse_layers(model, self._packing, self._compared, **how)
            plan.trainer.require("fused_layers", len(fused) == len(model.decoder.layers))
            self._of_experts = [tensor for layer in fused for tensor in layer.of_experts()]
            self.stacked = [stacked for layer in fused for stacked in layer.stacked()]

    def _rows_ahead(self) -> RowsAhead | None:
        """Return what finds the way of rows to experts before a pass, if ranks share them and follow a rollout's."""
        parallel, plan = self.parallel, self._plan
        if parallel.expert_size == 1 or plan.router_replay is not True or not plan.trainer.fused_layers:
            return None
        ranks, share = Ranks.of(parallel.expert_group), Ranks.of(parallel.tensor_group)
        return RowsAhead(ranks, parallel.expert_hosts, share, self._unwrapped().config, self.device)

    def _unwrapped(self) -> Any:
        """Return the model without the wrapper that mixed precision puts around it."""
        from megatron.core.utils import unwrap_model

        return unwrap_model(self.module)

    def micro_batches(self, samples: Sequence[Sample], token_budget: int) -> Iterator[tuple[list[int], MicroBatch]]:
        keys = self._plan.trainer.key_budget
        for indices in grouped(samples, token_budget, keys, packed=self._packing is not None):
            chosen = [samples[index] for index in indices]
            if self._packing is None:
                yield indices, padded_batch(chosen, self.device)
            elif self._context is None:
                yield indices, packed_batch(chosen, self.device, self._tokens_multiple)
            else:
                place = self._context.rank, self._context.size
                batch = packed_batch(chosen, self.device, self._tokens_multiple, *place)
                assert batch.segments is not None, "it is packed"
                yield indices, replace(batch, segments=sharing_keys(batch.segments, self._context))

    def log_probabilities(self, batch: MicroBatch, temperature: float) -> torch.Tensor:
        def predict(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            # A truncation sorts the logits, which takes three times their memory.
            logits = self._plan.trainer.logits_chunk if batch.kept is None else self._plan.trainer.logits_chunk // 4
            rows = rows_of_chunk(logits, weight)
            group = self.parallel.tensor_group
            return token_log_probabilities(
                hidden, weight, batch.targets, temperature, self._vocabulary, group, rows, batch.kept
            )

        return self.of_all_tokens(batch, self._forward(batch, predict))

    def of_all_tokens(self, batch: MicroBatch, own_N: torch.Tensor) -> torch.Tensor:
        return own_N if self._context is None else of_all_ranks(own_N, batch, self._context)

    def hidden_states(self, batch: MicroBatch) -> torch.Tensor:
        return self._forward(batch, lambda hidden, _: hidden)

    def _forward(
        self, batch: MicroBatch, predict: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        """Return what `predict` makes of the hidden states before response tokens and the output layer's weight."""
        from megatron.core.tensor_parallel import gather_from_sequence_parallel_region

        def process(
            hidden_states: torch.Tensor, output_layer: Any, output_weight: torch.Tensor | None, **_: Any
        ) -> torch.Tensor:
            if self._sequence_parallel:
                # The gradient comes whole to every rank, so that each takes its part of it.
                hidden_states = gather_from_sequence_parallel_region(
                    hidden_states, False, group=self.parallel.tensor_group
                )
            weight = output_layer.weight if output_weight is None else output_weight
            return predict(batch.predictors(hidden_states.flatten(0, 1)), weight)

        mask: torch.Tensor | None = None
        current: AbstractContextManager[None] = nullcontext()
        if self._packing is None:
            mask = self._platform.attention_mask(batch.tokens.shape[1])
        else:
            current = self._packing.being(batch, None if self._ahead is None else self._ahead.find(batch))
        with current:
            found: torch.Tensor = self.module(batch.tokens, batch.positions, mask, output_processor=process)
        if (
            self._packing is not None and self._plan.trainer.recompute != "full"
        ):  # a layer that comes again takes it again
            self._packing.trips = None
        return found[: batch.count]

    def routing_differences(self) -> tuple[float, float] | None:
        return None if self._plan.router_replay is None else self._compared.take()

    def continue_routing(self, differences: tuple[float, float]) -> None:
        self._compared.put(differences)

    @contextmanager
    def base_only(self) -> Iterator[None]:
        with self._lora.disable_adapter(self._chunks):
            yield

    def exported(self) -> Iterator[tuple[str, torch.Tensor]]:
        with by_all_names(self.module):
            own = self._export.run()
            if self.parallel.expert_size == 1:
                yield from own
            else:
                yield from self._experts.gather(own, like=next(iter(self.parameters.values())).data)

    def part(self, name: str) -> Part:
        if self._shares_outer and is_outer(name):
            return Part.OUTER
        return Part.EXPERTS if self.parallel.splits_experts and is_local(name) else Part.REST

    def hf_names(self, name: str) -> list[str]:
        plain = self._experts.in_model(_without_wrappers(name))
        mapping = self._bridge._model_bridge.mapping_registry().megatron_to_hf_lookup(plain)
        return [name] if mapping is None else list(hf_parts(mapping).values())

    def base_in_hf_names(self) -> dict[frozenset[str], torch.Tensor]:
        """Return this rank's frozen parameters, by the Hugging Face parameters that each is made of (collective).

        Of q, k and v these are the rank's own heads, see `own_heads`. Of experts it is what all of a layer share. Those
        that the bridge does not know are left out.
        """
        registry = self._bridge._model_bridge.mapping_registry()
        ranks = Ranks.of(self.parallel.tensor_group)
        own = OwnHeads.of(self._unwrapped().config, ranks)
        whole = {share.data_ptr(): number for number, tensor in enumerate(self._of_experts) for share in tensor}
        of_experts: list[set[str]] = [set() for _ in self._of_experts]
        found = {}
        for name, parameter in self.base_parameters():
            plain = _without_wrappers(name)
            if (number := whole.get(parameter.data_ptr())) is not None:
                for one in self._experts.whole_names([plain]):
                    of_experts[number].update(hf_parts(registry.megatron_to_hf_lookup(one)).values())
                continue
            mapping = registry.megatron_to_hf_lookup(plain)
            if mapping is None:
                continue
            parts = hf_parts(mapping)
            if own is None or "q" not in parts:
                found[frozenset(parts.values())] = parameter
            else:
                found[frozenset(parts.values())] = own.take(WHOLE, ranks.gather(parameter))
        return found | dict(zip(map(frozenset, of_experts), self._of_experts, strict=True))


def _without_wrappers(name: str) -> str:
    """Return Megatron's own name of a parameter. Wrappers for adapters and for mixed precision add to it."""
    return name.replace(".to_wrap", "").removeprefix("module.")


def _open_bridge(model_path: Path, plan: ExecutionPlan) -> Any:
    from megatron.bridge import AutoBridge

    register_own_bridges()
    try:
        return AutoBridge.from_hf_pretrained(str(model_path), dtype=getattr(torch, plan.compute.dtype))
    except ValueError as error:
        raise InputError(
            "spec.model.uri",
            str(model_path),
            "an architecture that Megatron-Bridge supports",
            f"It says: {_first_line(error)}",
        ) from error


def _configure(provider: Any, platform: Platform, plan: ExecutionPlan) -> None:
    """Set the model provider up as planned."""
    provider.tensor_model_parallel_size = plan.layout.trainer_ranks
    platform.configure_provider(provider)
    dtype = getattr(torch, plan.compute.dtype)
    provider.expert_model_parallel_size, provider.expert_tensor_parallel_size = plan.layout.expert_ranks, 1
    provider.params_dtype = provider.pipeline_dtype = provider.autocast_dtype = dtype
    provider.bf16, provider.fp16 = plan.compute.name == "bf16", False
    # A base model's config.json may ask for dropout. vLLM has none, and only the adapter is trained.
    provider.attention_dropout = provider.hidden_dropout = 0.0
    # `planning.supported_models` has refused windows that cut a sequence off. Without one, samples can be packed.
    provider.window_size = None
    # A router's own losses would train the adapter without any reward.
    provider.moe_router_load_balancing_type, provider.moe_aux_loss_coeff, provider.moe_z_loss_coeff = "none", 0.0, None
    # Transformers and vLLM multiply by a router of the families that are taken in the model's precision.
    provider.moe_router_dtype = None
    # Between split layers, each tensor-parallel rank has only its share of the tokens.
    provider.sequence_parallel = plan.trainer.packed and plan.layout.trainer_ranks > 1
    if plan.trainer.recompute == "selective":
        modules = ["moe"] if provider.num_moe_experts else ["mlp"]
        provider.recompute_granularity, provider.recompute_modules = "selective", modules
    elif plan.trainer.recompute == "full":
        provider.recompute_granularity, provider.recompute_method, provider.recompute_num_layers = "full", "uniform", 1
    else:
        provider.recompute_granularity = None
    provider.finalize()
    require_vocabulary_to_split(provider.vocab_size, plan.layout.trainer_ranks)


def _check_output_layer(model: Any, model_path: Path) -> None:
    """Refuse a model whose log-probabilities `token_log_probabilities` would get wrong."""
    layer = model.output_layer
    kind = type(layer).__name__
    if kind != "ColumnParallelLinear" or layer.bias is not None or model.config.use_mup:
        raise InputError(
            "spec.model.uri",
            f"{model_path}, which changes its logits ({kind}: a soft cap, a bias or a scale)",
            "a model whose logits are the output layer's weight times the hidden state",
            "Choose another model, of the Qwen2, Qwen3 or Llama family for instance.",
        )


def _without_packings(ranks: int, unpackable: Sequence[str]) -> InputError:
    return InputError(
        "spec.trainer.contextParallelSize",
        f"{ranks} for a model with {' and '.join(unpackable) or 'padded sequences'}",
        "1: only packed sequences can be shared",
        "Remove it, or choose another model.",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
