"""What imports leave out, and bring in later. A function that stands in for torch.compile counts what is compiled."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lorarl_trainer.devices.imports import (
    compile_at_first_call,
    packages_distributions,
    quick_imports,
    stand_ins,
    without,
)


class Compiler:
    """Stands in for `torch.compile`, and keeps what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, dict[str, Any]]] = []

    def __call__(self, model: Any, **options: Any) -> Any:
        self.seen.append((model, options))
        return model


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler()
    monkeypatch.setattr(torch, "compile", compiler)
    return compiler


def decorate(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    with compile_at_first_call():
        return torch.compile(**options)(function) if options else torch.compile(function)


@pytest.mark.parametrize("options", [{}, {"dynamic": True}], ids=["plain", "with options"])
def test_a_function_is_compiled_once_by_its_first_call(compiler: Compiler, options: dict[str, bool]) -> None:
    def double(x: int, *, plus: int = 0) -> int:
        return 2 * x + plus

    later = decorate(double, **options)
    assert later.__name__ == "double" and not compiler.seen
    assert [later(2), later(3, plus=1)] == [4, 7]
    assert compiler.seen == [(double, options)]
    assert torch.compile is compiler


def test_a_module_is_compiled_at_once(compiler: Compiler) -> None:
    module = torch.nn.Linear(1, 1)
    with compile_at_first_call():
        assert torch.compile(module) is module
    assert compiler.seen == [(module, {})]


def test_a_function_within_a_compiled_one_is_not_compiled_by_itself(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = decorate(lambda x: x + 1)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert inner(1) == 2
    assert not compiler.seen


def test_torch_compile_is_itself_again_after_a_failure(compiler: Compiler) -> None:
    with pytest.raises(ImportError), compile_at_first_call():
        raise ImportError("a library is missing")
    assert torch.compile is compiler


def test_a_stand_in_takes_the_place_of_what_is_not_loaded() -> None:
    loaded = sys.modules["json.decoder"]
    with stand_ins("json.tool", "json.decoder"):
        import json.tool as stand_in
        from json.decoder import JSONDecoder
        from json.tool import JSONEncoder, main  # type: ignore[attr-defined]

        stand_in.main = print  # type: ignore[assignment]
    assert main is None and JSONDecoder is not None
    assert JSONEncoder | None, "a class stands in annotations"
    assert sys.modules["json.decoder"] is loaded
    import json.tool

    assert json.tool.main is not print and callable(json.tool.main)


def test_a_package_is_not_found_within_the_block_unless_it_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    with without("json.tool", "json.decoder"):
        import json.decoder

        with pytest.raises(ImportError):
            import json.tool
    import json.tool

    assert json.decoder.JSONDecoder and json.tool.main


IMPORTS = """
import sys
from lorarl_trainer.backends.registry import get_backend
from lorarl_trainer.devices.registry import get_device
from lorarl_trainer.engine.vllm import binding, names
from lorarl_trainer.devices.imports import stand_ins
from lorarl_trainer.engine.vllm.imports import _WARMUP, for_rollouts, import_vllm
get_backend("megatron").import_libraries(get_device(0))
import_vllm()
with for_rollouts(), stand_ins(_WARMUP):
    binding.bind(*names.ALWAYS, *names.ON_CPU)
unused = (
    "torch._inductor.lowering", "torch._inductor.compile_fx", "megatron.bridge.models.gemma_vl",
    "transformers.loss.loss_d_fine", "scipy", "cv2", "openai",
)
print([name for name in unused if name in sys.modules])
"""


def test_a_worker_loads_no_compiler_no_images_and_no_server() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_packages_are_found_as_the_standard_library_finds_them() -> None:
    expected = {name: sorted(found) for name, found in importlib.metadata.packages_distributions().items()}
    assert {name: sorted(found) for name, found in packages_distributions().items()} == expected
    assert expected["yaml"] == ["PyYAML"]


def test_quick_imports_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    before = importlib.metadata.packages_distributions
    with quick_imports():
        assert importlib.metadata.packages_distributions is packages_distributions
        assert importlib.util.find_spec("sklearn") is None
    assert importlib.metadata.packages_distributions is before
    assert "sklearn" not in sys.modules
