"""A folder of the environment that cannot be written is named before Ray, vLLM or torch meet it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.places import require_places
from lorarl_trainer.launch.ray_cluster import _not_started

NAMES = ("HOME", "TMPDIR", "RAY_TMPDIR", "XDG_CACHE_HOME", "HF_HOME", "VLLM_CACHE_ROOT", "LORARL_CACHE")


@pytest.mark.parametrize("variable", NAMES)
def test_a_folder_that_cannot_be_written_is_named_by_its_variable(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, str(tmp_path))
    require_places()
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere", "/proc", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        monkeypatch.setenv(variable, place)
        with pytest.raises(InputError) as refused:
            require_places()
        assert refused.value.field == variable
        assert refused.value.got.startswith(f"{place}, in which nothing can be written (")
        assert refused.value.hint == f"Set {variable} to such a folder."
    monkeypatch.setenv(variable, str(tmp_path))
    require_places()
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_a_cache_that_is_not_there_yet_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "new" / "cache"))
    require_places()


@pytest.mark.parametrize(
    ("error", "busy"),
    [
        (Exception("The current node timed out during startup."), True),
        (FileNotFoundError(2, "No such file or directory", "/proc/nohome"), False),
        (PermissionError(13, "Permission denied", "/.ray"), False),
        (RuntimeError("auth token"), False),
        (ValueError("object_store_memory"), False),
    ],
)
def test_only_a_start_that_is_late_is_blamed_on_a_busy_machine(error: Exception, busy: bool) -> None:
    said = str(_not_started(error))
    assert ("less busy" in said) is busy
    assert str(error) in said
