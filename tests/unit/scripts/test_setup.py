"""scripts/setup.sh and scripts/tools.sh: which folder they work in, and which names they accept."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# The hundreds of packages of a lock take minutes: the lock is empty here. This uv notes what it was asked for.
UV = """#!/bin/sh
echo "$@" >> asked
[ "$1" != venv ] || "$PYTHON" -m venv --clear --without-pip .venv
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What setup reads, and a cache with that uv."""
    trainer = Path("trainer_image/lorarl_trainer")
    installer = [trainer / "__init__.py", trainer / "errors.py"]
    installer += [path.relative_to(ROOT) for path in (ROOT / trainer / "install").glob("*.py")]
    for name in ("scripts/setup.sh", "scripts/python.sh", "scripts/uv.sh", "pyproject.toml", *installer):
        (tmp_path / "one" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "one" / name)
    (tmp_path / "one/requirements").mkdir()
    (tmp_path / "one/requirements/cpu.lock").write_text("")
    uv = tmp_path / "cache/uv/bin/uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path / "one"


def setup(checkout: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "GPU"}
    environment |= {"LORARL_CACHE": str(checkout.parent / "cache"), "PYTHON": python}
    return subprocess.run(["scripts/setup.sh"], cwd=checkout, env=environment, capture_output=True, text=True)


def test_what_was_added_by_hand_is_installed_again(checkout: Path) -> None:
    assert setup(checkout).returncode == 0
    (checkout / ".venv/lorarl-added.txt").write_text("reasoning-gym\n/my rewards\n")
    (checkout / "requirements/cpu.lock").write_text("# another one\n")
    done = setup(checkout)
    assert done.returncode == 0, done.stderr
    assert (checkout / ".venv/lorarl-added.txt").read_text() == "reasoning-gym\n/my rewards\n"
    installed = [line for line in (checkout / "asked").read_text().splitlines() if "--constraint" in line]
    assert all(line.endswith(name) for line, name in zip(installed, ("reasoning-gym", "/my rewards"), strict=True))
    assert "installed reasoning-gym again, which `lorarl env add` had added" in done.stderr


def test_what_was_added_and_no_longer_fits_is_named(checkout: Path) -> None:
    assert setup(checkout).returncode == 0
    (checkout / ".venv/lorarl-added.txt").write_text("reasoning-gym\n")
    (checkout / "requirements/cpu.lock").write_text("# another one\n")
    uv = checkout.parent / "cache/uv/bin/uv"
    uv.write_text(uv.read_text() + 'case "$*" in *--constraint*) echo "no solution found" >&2; exit 1;; esac\n')
    done = setup(checkout)
    assert done.returncode == 0, "lorarl itself is set up"
    assert "reasoning-gym, which `lorarl env add` had added, is not there any more: PACKAGE: got" in done.stderr
    assert "no solution found" in done.stderr
    assert (checkout / ".venv/lorarl-added.txt").read_text() == "reasoning-gym\n", "the next setup tries again"


def asked(checkout: Path) -> int:
    """How often a .venv was made."""
    return (checkout / "asked").read_text().count("venv -q --clear")


def test_a_checkout_that_was_moved_is_set_up_anew(checkout: Path) -> None:
    for _ in range(2):
        assert setup(checkout).returncode == 0
        assert asked(checkout) == 1, "nothing to do where it is up to date"
    moved = checkout.rename(checkout.with_name("two"))
    assert setup(moved).returncode == 0
    assert asked(moved) == 2, "its lorarl would be that of the old folder"


@pytest.mark.parametrize("python", ["/no/such/python", "false"])
def test_a_python_that_is_named_and_does_not_serve_is_refused_by_name(checkout: Path, python: str) -> None:
    done = setup(checkout, python)
    assert done.returncode == 1
    assert (
        done.stderr == f"PYTHON: got {python}, expected a Python 3.12. Name one, or unset PYTHON to search for one.\n"
    )
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize(
    ("tier", "tools"),
    [("unit", "helm promtool gitops-health"), ("storage", "versitygw"), ("run", "etcd kube-apiserver versitygw")],
)
def test_a_build_names_what_a_tier_needs_and_its_time_before_it_begins(tmp_path: Path, tier: str, tools: str) -> None:
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\nexit 1\n")
    go.chmod(0o755)
    environment = os.environ | {"LORARL_CACHE": str(tmp_path / "cache"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / "scripts/tools.sh", tier], env=environment, capture_output=True, text=True)
    first, second, *_ = done.stderr.splitlines()
    assert re.fullmatch(rf"tools: building once, in about \d+ min on two idle cores: {tools}", first)
    assert second.startswith(f"tools: building {tools.split()[0]} from ") and done.returncode == 1


def test_a_cache_may_be_named_from_where_one_stands(tmp_path: Path) -> None:
    if not shutil.which("go"):
        pytest.skip("Go is not installed (https://go.dev/doc/install)")
    done = subprocess.run(
        [ROOT / "scripts/tools.sh", "pause"],
        cwd=tmp_path,
        env=os.environ | {"LORARL_CACHE": "cache"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache/bin/pause").exists()
