"""vLLM's own LoRA layers in place of ours, to compare with."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from lorarl_trainer.engine.vllm import binding, names
from lorarl_trainer.samples.sample import Completion

from .in_process import Colocated


@contextlib.contextmanager
def vllm_lora_layers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Engines that are started within have vLLM's own layers."""
    with monkeypatch.context() as patch:
        without_a_name(patch, names.AdapterLayers)
        yield


def without_a_name(patch: pytest.MonkeyPatch, feature: type[binding.Feature]) -> None:
    """Let the feature need a name that vLLM does not have, as if a later version had renamed one."""
    patch.setitem(feature.names, "gone", binding.used("vllm:gone"))


def layer_kinds(worker: Colocated) -> Counter[str]:
    """How many layers with an adapter there are, by class."""
    modules = worker.engine.llm_engine.collective_rpc(lambda w: w.model_runner.lora_manager._adapter_manager.modules)[0]
    return Counter(type(module).__name__ for module in modules.values())


def in_common(left: Sequence[Completion], right: Sequence[Completion]) -> tuple[float, np.ndarray]:
    """The share of tokens before any pair's first difference, and how far their log-probabilities are apart."""
    apart, total = [], 0
    for a, b in zip(left, right, strict=True):
        length = min(len(a.tokens), len(b.tokens))
        same = int(np.cumprod(a.tokens[:length] == b.tokens[:length]).sum())
        apart.append(np.abs(a.logprobs[:same] - b.logprobs[:same]))
        total += max(len(a.tokens), len(b.tokens))
    differences = np.concatenate(apart)
    return len(differences) / total, differences
