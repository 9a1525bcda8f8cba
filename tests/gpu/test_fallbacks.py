"""Every fast path of a GPU, switched off: GPUs other than Hopper take other ones, and must get the same results.

vLLM's FlashAttention 3 alone is Hopper's own. All others work from compute capability 8.0 on, and have a plain twin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lorarl_trainer.backends.megatron import fused_steps
from lorarl_trainer.backends.megatron.platform_cuda import CudaPlatform
from lorarl_trainer.devices.cuda import CudaDevice
from lorarl_trainer.engine.sync import copy_plan
from lorarl_trainer.engine.vllm import arguments, names
from lorarl_trainer.kernels import logprobs
from lorarl_trainer.planning import usual
from support.in_process import Colocated, prompts, samples_of
from support.own_layers import without_a_name
from support.tiny_models import VOCABULARY
from support.training import BareTrainer, grouped_samples, relative_difference

ARCHITECTURES = ("qwen3-gpu", "qwen2-gpu", "llama-gpu", "mistral-gpu")
LAYER_KERNELS = ("rms_norm", "rms_norm_backward", "swiglu", "swiglu_backward", "take_heads", "put_heads")
SOFTMAX_KERNELS = ("softmax_statistics", "target_minus_softmax")
MEAN_DIFFERENCE = 0.02
"""Between trainer and engine, in bf16, as in `test_colocated`."""

Switch = Callable[[pytest.MonkeyPatch], list[str]]
"""Switches a fast path off; returns a list to which each use of its plain twin adds a name."""


def plain(module: Any, *names: str) -> Switch:
    """Let functions that have a kernel compute without it."""

    def switch(patch: pytest.MonkeyPatch) -> list[str]:
        used: list[str] = []

        def twin_of(name: str) -> Callable[..., Any]:
            original = getattr(module, name).__wrapped__

            def twin(*arguments: Any, **options: Any) -> Any:
                used.append(name)
                return original(*arguments, **options)

            return twin

        for name in names:
            patch.setattr(module, name, twin_of(name))
        return used

    return switch


def no_megatron_fusions(patch: pytest.MonkeyPatch) -> list[str]:
    """Let Megatron's own layers compute in separate steps."""
    used: list[str] = []
    configure = CudaPlatform.configure_provider

    def configured(platform: CudaPlatform, provider: Any) -> None:
        configure(platform, provider)
        provider.bias_dropout_fusion = provider.bias_activation_fusion = False
        provider.apply_rope_fusion = provider.fused_single_qkv_rope = False
        used.append("configure_provider")

    patch.setattr(CudaPlatform, "configure_provider", configured)
    return used


KERNELS: dict[str, tuple[Switch, dict[str, bool]]] = {
    "Triton kernels of a layer": (plain(fused_steps, *LAYER_KERNELS), {"packed": True}),
    "Triton kernels of the softmax": (plain(logprobs, *SOFTMAX_KERNELS), {"packed": True}),
    "flash attention": (plain(fused_steps, "attend", "attend_backward"), {"packed": True}),
    "Megatron's fusions": (no_megatron_fusions, {"packed": True, "fused": False}),
}
LAYOUTS = {"fused layers": {"packed": True, "fused": False}, "packed sequences": {"packed": False}}


class Reference:
    """What fp32 computes on padded rows by Megatron's own layers, and how far the fast paths are from that in bf16."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.samples = folder, grouped_samples(VOCABULARY, prompts=8, longest=60)
        self.loss, self.gradients = self.run("fp32")
        fast_loss, fast_gradients = self.run("bf16", packed=True)
        self.noise = relative_difference(fast_gradients, self.gradients)
        self.loss_noise = abs(fast_loss - self.loss)

    def run(self, precision: str, **layout: bool) -> tuple[float, dict[str, Any]]:
        return BareTrainer(CudaDevice(), self.folder, precision, **layout).loss_and_gradients(self.samples)  # type: ignore[arg-type]

    def require_equal(self, what: str, **layout: bool) -> None:
        """Compare with what fp32 gives: no further off than twice what the fast paths are."""
        in_fp32 = relative_difference(self.run("fp32", **layout)[1], self.gradients)
        loss, gradients = self.run("bf16", **layout)
        found = relative_difference(gradients, self.gradients)
        print(f"\nwithout {what}: {found:.2e} from fp32, with it {self.noise:.2e}; in fp32 {in_fp32:.2e}")
        assert in_fp32 < 5e-3  # fp32 products on tensor cores have 10 bits
        assert found < 2 * self.noise
        assert loss == pytest.approx(self.loss, abs=max(2 * self.loss_noise, 2e-3))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def reference(request: pytest.FixtureRequest, model_folder: Callable[[str], Any]) -> Reference:
    return Reference(model_folder(request.param))


@pytest.mark.parametrize("what", KERNELS)
def test_gradients_without_a_kernel_are_as_good(
    reference: Reference, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    switch, layout = KERNELS[what]
    used = switch(monkeypatch)
    reference.require_equal(what, **layout)
    assert used, "the plain twin computed"


@pytest.mark.parametrize("what", LAYOUTS)
def test_gradients_in_another_layout_are_as_good(reference: Reference, what: str) -> None:
    reference.require_equal(what, **LAYOUTS[what])


def with_arguments(**changes: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Start vLLM with other arguments; None leaves one out."""

    def switch(patch: pytest.MonkeyPatch) -> None:
        usual = arguments.device_arguments

        def changed(*of: Any) -> dict[str, Any]:
            return {name: value for name, value in (usual(*of) | changes).items() if value is not None}

        patch.setattr(arguments, "device_arguments", changed)

    return switch


def own_base(patch: pytest.MonkeyPatch) -> None:
    """Plan two copies of the base model."""
    patch.setattr(usual, "why_not_shared", lambda *_: "the test wants two")


def plain_copies(patch: pytest.MonkeyPatch) -> None:
    """Copy the adapter's tensors to vLLM one by one."""
    patch.setattr(copy_plan, "_on_gpu", copy_plan._plainly)


ENGINES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "FlashAttention 3": with_arguments(attention_config={"flash_attn_version": 2}),
    "flash attention": with_arguments(attention_config={"backend": "TRITON_ATTN"}),
    "CUDA graphs": with_arguments(enforce_eager=True, compilation_config={"mode": 0}),
    "our sampler": lambda patch: without_a_name(patch, names.Sampling),
    "our decoding attention": lambda patch: without_a_name(patch, names.Attention),
    "the lean start": lambda patch: without_a_name(patch, names.LeanStart),
    "our CUDA graphs": lambda patch: without_a_name(patch, names.AdapterGraphs),
    "a shared base": own_base,
    "the copy kernel": plain_copies,
}


@pytest.mark.parametrize("what", ENGINES)
def test_an_engine_without_a_fast_path_agrees_with_the_trainer(
    on_gpu: Callable[..., Colocated], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its greedy answers are mostly the usual engine's. `test_generation` has vLLM's own layers and scheduler."""
    if what == "FlashAttention 3":
        require_flash_attention_2()
    usual = started(on_gpu)
    with monkeypatch.context() as patch:
        ENGINES[what](patch)
        slower = started(on_gpu)
    require_agreement(what, usual, slower)
    if what == "FlashAttention 3":
        attention = slower.engine.llm_engine.vllm_config.attention_config
        assert attention.flash_attn_version == 2
    elif what == "a shared base":
        assert slower.rollouts.base is None and usual.rollouts.base is not None


def require_flash_attention_2() -> None:
    """Skip where vLLM was built without it; the import itself fails on a machine without a GPU."""
    from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported

    if not is_fa_version_supported(2):
        pytest.skip("this build of vLLM has no FlashAttention 2")


def started(on_gpu: Callable[..., Colocated]) -> Colocated:
    """A worker with an adapter that matters, in vLLM too."""
    worker = on_gpu("qwen3-gpu", rollout__promptsPerStep=16, rollout__maxResponseTokens=32)
    worker.randomise(scale=0.02)
    worker.sync()
    return worker


def require_agreement(what: str, usual: Colocated, slower: Colocated) -> None:
    """Compare the engine with the trainer in its process, and its greedy answers with the usual engine's."""
    rollouts = slower.generate(prompts(64))
    trainer = slower.trainer_logprobs(samples_of(prompts(64), rollouts))
    apart = np.mean([np.abs(t - c.logprobs).mean() for t, c in zip(trainer, rollouts, strict=True)])
    share = same_tokens(usual.greedy(prompts(64)), slower.greedy(prompts(64)))
    print(f"\nwithout {what}: {apart:.4f} nats from the trainer; {100 * share:.0f}% of the tokens in common")
    assert apart < MEAN_DIFFERENCE
    assert share > 0.5


def same_tokens(left: list[list[int]], right: list[list[int]]) -> float:
    """The share of tokens before any pair's first difference."""
    same = sum(
        next((index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        for one, other in zip(left, right, strict=True)
    )
    return same / sum(max(len(one), len(other)) for one, other in zip(left, right, strict=True))
