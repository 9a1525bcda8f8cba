"""The names of `engine/vllm/names.py` against the installed wheel: all are there, and none has changed."""

from __future__ import annotations

import ast
import difflib
import re
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pytest
import torch

import lorarl_trainer
from lorarl_trainer.engine.vllm import binding, slices
from support import vllm_names

RECORD = Path(__file__).with_name("names.txt")
PRODUCT = Path(lorarl_trainer.__file__).parent
VLLM = PRODUCT / "engine/vllm"
OF_TORCH = (torch.Tensor, torch.nn.Module, torch.Generator, torch.cuda.Stream, np.ndarray)
OF_PYTHON = (ContextVar, ExitStack, Path, re.Pattern, str, list, dict, set, type, deque)
LIBRARIES = {name for kind in OF_TORCH + OF_PYTHON for name in dir(kind)}
LIBRARIES |= {"architectures", "batch_decode", "from_pretrained", "get_text_config", "layer_types"}  # of Transformers
LIBRARIES |= {"max_position_embeddings", "vision_config", "vocab_size"}
LIBRARIES |= {"configs", "fn"}  # of Triton
LIBRARIES |= {"__annotations__", "__code__", "__version__", "co_names", "element_ty"}


def test_the_installed_version_is_the_one_that_was_read() -> None:
    assert vllm_names.version(vllm_names.installed()) == binding.VERSION


def test_every_name_is_there_and_as_recorded() -> None:
    """docs/upgrading.md says what to do with a difference."""
    recorded, found = RECORD.read_text().splitlines(), vllm_names.record(vllm_names.installed())
    changes = "\n".join(difflib.unified_diff(recorded, found, "recorded", "installed", n=0, lineterm=""))
    assert not changes, changes
    assert not [line for line in found if line.endswith(vllm_names.MISSING)]


def test_a_name_that_is_gone_is_reported_as_missing() -> None:
    source = vllm_names.Source(vllm_names.installed())
    for path in ("vllm.gone:Name", "vllm.v1.request:Gone", "vllm.v1.request:Request.gone", "vllm.envs:Gone.name"):
        assert source.line(path, hashed=True) == f"{path}  MISSING"


def test_the_hash_sees_code_and_nothing_else(tmp_path: Path) -> None:
    lines = []
    for body in ('"""One."""\n    return 1', "# A comment.\n    return  1", "return 2"):
        folder = tmp_path / str(len(lines))
        (folder / "vllm").mkdir(parents=True)
        (folder / "vllm/module.py").write_text(f"def function(a: int) -> int:\n    {body}\n")
        lines.append(vllm_names.Source(folder).line("vllm.module:function", hashed=True))
    assert lines[0] == lines[1] != lines[2]
    assert lines[0].startswith("vllm.module:function  def (a: int) -> int  ")


def test_no_other_module_imports_from_inside_vllm() -> None:
    """Beside what it documents, and the functions of flash attention, which are that package's own."""
    documented = {("vllm", name) for name in ("EngineArgs", "LLMEngine", "SamplingParams")}
    documented |= {("vllm.vllm_flash_attn", name) for name in ("flash_attn_varlen_func", "is_fa_version_supported")}
    inside = []
    for path in PRODUCT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
                inside += [(path.name, node.module, one.name) for one in node.names]
    assert {(module, name) for _, module, name in inside} == documented


def test_every_attribute_of_an_object_of_vllm_is_recorded() -> None:
    """What our files read, call or set that is neither recorded, nor lorarl's, nor of a library that they import."""
    known = vllm_names.recorded_names() | defined_names(PRODUCT) | LIBRARIES
    unknown = sorted(used for path in VLLM.rglob("*.py") for used in attributes(path) if used[0] not in known)
    assert not unknown, "add it to slices.py, or to the names of another library here"


@pytest.mark.parametrize(
    "line", ["model.new_of_vllms()", "x = getattr(model, 'new_of_vllms', None)", "runner.new_of_vllms = 1"]
)
def test_a_new_attribute_is_noticed(tmp_path: Path, line: str) -> None:
    (tmp_path / "new.py").write_text(f"import torch\ndef use(model, runner):\n    torch.sum(model)\n    {line}\n")
    assert attributes(tmp_path / "new.py") == {("new_of_vllms", "new.py", 4)}


def attributes(path: Path) -> set[tuple[str, str, int]]:
    """The attributes that a file uses, but for those of imported modules: name, file and line."""
    tree, found = ast.parse(path.read_text()), set()
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    modules = {(one.asname or one.name).split(".")[0] for node in imports for one in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node).split(".")[0] not in modules:
            found.add((node.attr, path.name, node.lineno))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            found |= {
                (str(one.value), path.name, node.lineno) for one in node.args[1:2] if isinstance(one, ast.Constant)
            }
    return found


def defined_names(folder: Path) -> set[str]:
    """What our classes, functions and assignments define."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and ast.unparse(node.value) == "self"
            ):
                names.add(node.attr)
    return names


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("arguments, batching, config, gpu_slices, imports, model_slices, names, running, slices", "vllm, torch"),
        pytest.param("adapter_slots, engine, memory, shared_base", "vllm", marks=pytest.mark.slow),
    ],
)
def test_importing_ours_imports_nothing_of_vllm(modules: str, absent: str) -> None:
    found = f"set({absent.split(', ')}) & sys.modules.keys()"
    code = f"import sys; from lorarl_trainer.engine.vllm import {modules}; print({found})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_every_protocol_lists_something() -> None:
    assert slices.SLICES and all(slices.members(protocol) for _, protocol in slices.SLICES)
