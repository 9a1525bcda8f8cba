"""Megatron on a CPU, with its local (pure torch) layers.

megatron-core takes a CUDA device for granted: it asks `torch.cuda.current_device()` where to put new tensors, and calls
`.cuda()` on loaded weights. Here both mean the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.machinery
import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import NonCallableMock

import torch


class CpuPlatform:
    """See `platform.Platform`."""

    def prepare(self) -> None:
        with _absent_triton():
            _let_cuda_mean_cpu()
            with warnings.catch_warnings():
                # Apex and Transformer Engine are not installed, and Megatron says so dozens of times.
                warnings.simplefilter("ignore")
                _import_bridge_without_transformer_engine()
        _let_norms_take_shares_of_the_tokens()

    def configure_provider(self, provider: Any) -> None:
        from megatron.bridge.models.gpt_provider import local_layer_spec
        from megatron.bridge.models.olmoe.olmoe_provider import olmoe_layer_spec

        own_attention = provider.transformer_layer_spec is olmoe_layer_spec
        provider.transformer_layer_spec = _local_olmoe_layer_spec if own_attention else local_layer_spec
        provider.transformer_impl = "local"
        provider.use_cpu_initialization = True
        for fusion in (
            "gradient_accumulation_fusion",
            "masked_softmax_fusion",
            "bias_dropout_fusion",
            "bias_activation_fusion",
            "apply_rope_fusion",
            "persist_layer_norm",
        ):
            setattr(provider, fusion, False)
        provider.attention_softmax_in_fp32 = True
        # One expert at a time: what handles all at once needs Transformer Engine.
        provider.moe_grouped_gemm = provider.moe_permute_fusion = False
        provider.moe_token_dispatcher_type = "allgather"

    def attention_mask(self, length: int) -> torch.Tensor:
        """See `Platform.attention_mask`. Megatron's local attention is not causal by itself."""
        return torch.ones(1, 1, length, length, dtype=torch.bool).triu_(1)


def _local_olmoe_layer_spec(config: Any) -> Any:
    """Return OLMoE's layer without Transformer Engine: its attention normalises all heads together."""
    from megatron.bridge.models.gpt_provider import local_layer_spec
    from megatron.bridge.models.olmoe.olmoe_provider import OLMoESelfAttention

    spec = local_layer_spec(config)
    spec.submodules.self_attention.module = OLMoESelfAttention
    return spec


def _let_cuda_mean_cpu() -> None:
    """Redirect to the CPU the calls of torch.cuda by which Megatron places tensors and keeps random states.

    Nothing else of torch is touched, so vLLM and transformers in the same process are unaffected.
    """
    cpu = torch.device("cpu")
    replacements: dict[str, Any] = {
        "current_device": lambda: cpu,
        "set_device": lambda *_, **__: None,
        "synchronize": lambda *_, **__: None,
        "empty_cache": lambda *_, **__: None,
        "current_stream": lambda *_, **__: None,
        "manual_seed": lambda seed: torch.manual_seed(seed),  # noqa: PLW0108 - torch._dynamo refuses an object under two names
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
    }
    for name, replacement in replacements.items():
        setattr(torch.cuda, name, replacement)
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self

    from megatron.core.tensor_parallel import random as megatron_random

    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)


@functools.cache
def _let_norms_take_shares_of_the_tokens() -> None:
    """Let torch's norms work under sequence parallelism, which Megatron refuses.

    The gradient of a norm's weight would have to be summed over the ranks. Here all norms are frozen.
    """
    from megatron.core.transformer.torch_norm import WrappedTorchNorm

    make = WrappedTorchNorm.__new__

    def make_for_shares(cls: type, config: Any, *arguments: Any, **options: Any) -> Any:
        config = copy.copy(config)
        config.sequence_parallel = False
        return make(cls, config, *arguments, **options)

    WrappedTorchNorm.__new__ = make_for_shares


def _import_bridge_without_transformer_engine() -> None:
    """Import megatron.bridge where Transformer Engine, which needs a GPU, is not installed.

    The bridge's LoRA layers import it unconditionally and only ask whether a layer is one of its classes. During the
    import they get classes that no layer is an instance of. Later imports of Transformer Engine find none.
    """
    import megatron.core.extensions.transformer_engine as core_extension

    if core_extension.HAVE_TE:
        raise RuntimeError(
            "Transformer Engine is installed: run this job with cluster.gpusPerNode >= 1, or in a CPU environment"
        )
    # megatron-core replaces the missing classes with mock objects, but isinstance() needs types.
    for name, value in list(vars(core_extension).items()):
        if name != "te" and isinstance(value, NonCallableMock):
            setattr(core_extension, name, type(name, (), {}))
    with _absent_transformer_engine():
        import megatron.bridge  # noqa: F401  (imported for its effect: later imports find it)
    from megatron.bridge.peft import module_matcher, utils

    utils.HAVE_TE = module_matcher.HAVE_TE = False


@contextlib.contextmanager
def _absent_transformer_engine() -> Iterator[None]:
    package, pytorch = types.ModuleType("transformer_engine"), types.ModuleType("transformer_engine.pytorch")
    for module in (package, pytorch):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, loader=None)
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]  # megatron-core asks for it
    for name in ("Linear", "LayerNormLinear", "TransformerLayer", "GroupedLinear"):
        setattr(pytorch, name, type(name, (), {}))
    pytorch.ops = types.SimpleNamespace(Sequential=type("Sequential", (), {}))  # type: ignore[attr-defined]  # used in annotations
    package.pytorch = pytorch  # type: ignore[attr-defined]  # a submodule is an attribute
    with _imported({"transformer_engine": package, "transformer_engine.pytorch": pytorch}):
        yield


@contextlib.contextmanager
def _absent_triton() -> Iterator[None]:
    """Let megatron-core define its Triton kernels where Triton (0.6 GB) is not installed. A CPU runs none of them.

    It imports the package unconditionally. During the import it gets a module whose decorators return what they
    decorate.
    """
    if importlib.util.find_spec("triton") is not None:
        yield
        return
    import torch._dynamo  # noqa: F401  (looks for Triton once, and must not find this module)

    with _imported({name: _Decorators(name) for name in ("triton", "triton.language")}):
        yield


class _Decorators(types.ModuleType):
    """A module in which every name is a decorator, with or without arguments. Given a truth value, it returns that."""

    __version__ = "0.0.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        decorates = len(arguments) == 1 and not options and isinstance(arguments[0], types.FunctionType | bool)
        return arguments[0] if decorates else self


@contextlib.contextmanager
def _imported(modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """Let imports of these names find these modules until the block ends."""
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
