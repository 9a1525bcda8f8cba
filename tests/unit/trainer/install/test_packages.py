"""`lorarl env add`: with the real installer, and without a package index."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.install import separate
from lorarl_trainer.install.packages import ADDED, add_again, add_packages, installed, record, recorded
from support.cluster.processes import free_ports


def wheel(folder: Path, requirement: str = "", name: str = "a_reward_of_mine", version: str = "1.0") -> str:
    """Write a package that may need another one."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requirement}\n" if requirement else ""
    metadata = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n{needs}"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}.py", "def score(*_): return 1.0\n")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return str(path)


def test_what_is_installed_stays_as_it_is(tmp_path: Path) -> None:
    said = add_packages([wheel(tmp_path, "click>=8")], dry_run=True)
    assert "Would install 1 package" in said
    assert "a-reward-of-mine" in said
    assert "click" not in said, "the installed one is kept"
    assert importlib.util.find_spec("a_reward_of_mine") is None, "a dry run installs nothing"


def test_a_package_that_needs_another_version_of_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="which cannot be installed here") as refused:
        add_packages([wheel(tmp_path, "click<1")], dry_run=True)
    assert "Check the names, name another version, or check the network. The installer said:\n" in refused.value.hint
    assert "click" in refused.value.hint


def test_a_package_that_no_index_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", tmp_path.as_uri())
    with pytest.raises(InputError, match="got reasonin-gym, which cannot be installed here, expected") as refused:
        add_packages(["reasonin-gym"], dry_run=True)
    assert refused.value.hint.startswith("There is no package reasonin-gym: check its name. The installer said:\n")


def test_an_index_that_cannot_be_reached_is_the_cause_and_not_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    (closed,) = free_ports(1)
    for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(variable, f"http://127.0.0.1:{closed}/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(InputError) as refused:
        add_packages(["reasoning-gym"], dry_run=True)
    assert refused.value.hint.startswith("The package index cannot be reached. Check the network and the proxy")
    assert "Check the names" not in refused.value.hint


def test_what_is_added_is_recorded_once_and_with_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_rewards").mkdir()
    assert recorded(tmp_path) == []
    record(tmp_path, ["reasoning-gym==0.1.25", "./my_rewards"])
    record(tmp_path, ["sympy>=1.13", "./my_rewards"])
    assert recorded(tmp_path) == ["reasoning-gym==0.1.25", str(tmp_path / "my_rewards"), "sympy>=1.13"]


def test_a_dry_run_records_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = wheel(tmp_path, "click>=8")
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    add_packages([package], dry_run=True)
    assert not (tmp_path / ADDED).exists()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in place of the package index, and no package in this test's environment."""
    (folder := tmp_path / "index").mkdir()
    for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(variable, (tmp_path / "none").as_uri())
    for variable in ("UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "lorarl"))
    return folder


def has(package: str) -> bool:
    """Whether the environment of verifiers has a module."""
    python = separate.python_of("verifiers")
    return python is not None and subprocess.run([python, "-c", f"import {package}"], check=False).returncode == 0


@pytest.mark.slow
def test_verifiers_and_what_is_named_with_it_have_an_environment_beside(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after `make setup` has replaced lorarl's. Packages that do not fit lorarl's do not matter there."""
    monkeypatch.delenv(separate.variable_of("verifiers"), raising=False)
    wheel(index, "click<1", "verifiers", "0.4.0")
    wheel(index, "", "click", "0.9")
    (folder := tmp_path / "my tasksets").mkdir()
    taskset = wheel(folder, "verifiers", "my_taskset")
    with pytest.raises(InputError, match=r"Name both: lorarl env add verifiers==0\.4\.0 PACKAGE\."):
        add_packages([taskset])
    with pytest.raises(InputError, match=r"Name both: lorarl env add verifiers==0\.4\.0 PACKAGE\."):
        add_packages(["verifiers<0.4", taskset])
    add_packages(["verifiers", taskset], dry_run=True)
    assert not has("verifiers")
    add_packages(["verifiers", taskset])
    assert has("my_taskset") and has("verifiers") and has("click")
    assert importlib.util.find_spec("verifiers") is None, "lorarl's environment is as it was"
    shutil.rmtree(separate.folder_of("verifiers"))
    said: list[str] = []
    add_again(said.append)
    assert has("my_taskset") and "which `lorarl env add` had added" in said[0]


def test_the_installed_packages_are_requirements() -> None:
    assert any(line.startswith("click==") for line in installed())
    assert not any(line.startswith("lorarl==") for line in installed())
