"""The names of `engine/vllm/names.py` against the installed wheel: all are there, and none has changed."""

from __future__ import annotations

import ast
import difflib
import subprocess
import sys
from pathlib import Path

import pytest

import lorarl_trainer
from lorarl_trainer.engine.vllm import binding, slices
from support import vllm_names

RECORD = Path(__file__).with_name("names.txt")
PRODUCT = Path(lorarl_trainer.__file__).parent


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


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("arguments, batching, gpu_slices, imports, names, running, slices", "vllm, torch"),
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
