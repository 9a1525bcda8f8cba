"""The nightly run: it continues after a failing tier, and its table says what came of each."""

from __future__ import annotations

import datetime
import re
import sys
from pathlib import Path

import pytest

import nightly
from nightly import Outcome, Tier

ROOT = Path(__file__).parents[3]
TESTS = """
import pytest

def test_good(): pass

def test_bad(): assert False

@pytest.mark.skip(reason="no such machine")
def test_left_out(): pass
"""


NOW = datetime.datetime(2026, 11, 25, 3, 0, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def quick_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plugins would take a second of every pytest that these tests start."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_every_tier_of_the_tests_is_run() -> None:
    folders = {path.relative_to(ROOT).parts[1] for path in ROOT.glob("tests/**/test_*.py")}
    assert folders == {tier.name for tier in nightly.TIERS} - {"lint", "cuda_image", "oldest", "newest"}


def test_the_docs_name_the_versions_that_are_tested() -> None:
    usual = (ROOT / "scripts/tools.sh").read_text()
    modules = ("k8s.io/kubernetes", "github.com/ray-project/kuberay/ray-operator", "sigs.k8s.io/kueue")

    def version(module: str, told: str) -> str | None:
        found = re.findall(rf"{re.escape(module)}@v([0-9.]+)", told)
        return str(found[-1]) if found else None

    docs = (ROOT / "docs/operator.md").read_text()
    for name, versions in (("usual", ()), ("oldest", nightly.OLDEST), ("newest", nightly.NEWEST)):
        row = [version(module, " ".join(versions)) or version(module, usual) for module in modules]
        assert f"| {name} | {' | '.join(map(str, row))} |" in docs


def test_a_tier_is_counted_and_its_failures_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_three.py").write_text(TESTS)
    outcome = nightly.run(Tier("three", ("-c", "/dev/null", str(tmp_path))), tmp_path)

    assert (outcome.verdict, outcome.passed, outcome.failed, outcome.skipped) == ("FAILED", 1, 1, 1)
    assert outcome.seconds > 0
    assert outcome.notes[0].startswith("failed: ") and outcome.notes[0].endswith("test_three::test_bad")
    assert outcome.notes[1] == "skipped 1: no such machine"
    assert "def test_bad" in (tmp_path / "three.log").read_text()


def test_a_tier_without_tests_has_failed(tmp_path: Path) -> None:
    outcome = nightly.run(Tier("none", ("-c", "/dev/null", str(tmp_path))), tmp_path)
    assert (outcome.verdict, outcome.notes) == ("FAILED", ["no tests were found"])


def test_a_tier_of_gpus_is_left_out_without_one(tmp_path: Path) -> None:
    outcome = nightly.run(Tier("gpu", ("tests/gpu",), on_gpu=True), tmp_path, has_gpu=False)
    assert outcome.verdict == "not run"


def test_other_versions_have_their_own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nightly, "CACHE", tmp_path / "cache")
    for file in ("bin/etcd", "bin/etcd.stamp", "share/kueue/config"):
        (tmp_path / "cache" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / file).write_text("usual")
    tier = Tier("other", ("tests/apiserver",), versions=("k8s.io/kubernetes@v1.29.6", "example.com/unknown@v1.0.0"))

    outcome = nightly.run(tier, tmp_path)

    other = tmp_path / "cache/versions/other"
    assert (other / "bin/etcd").samefile(tmp_path / "cache/bin/etcd")
    assert (other / "share/kueue/config").read_text() == "usual"
    assert (outcome.verdict, outcome.notes) == ("FAILED", ["its servers could not be built; see other.log"])
    assert "got example.com/unknown@v1.0.0, which no tool is built from" in (tmp_path / "other.log").read_text()


def test_it_continues_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"bad": 3, "good": 0}
    tiers = [
        Tier(name, (sys.executable, "-c", f"raise SystemExit({code})"), with_pytest=False)
        for name, code in codes.items()
    ]
    monkeypatch.setattr(nightly, "TIERS", tiers)

    assert nightly.main(["--out", str(tmp_path / "out")]) == 1

    printed = capsys.readouterr().out
    assert (tmp_path / "out/table.txt").read_text() in printed
    assert "bad          FAILED" in printed and "good         ok" in printed
    assert "bad: exit status 3; see bad.log" in printed
    assert nightly.main(["good", "--out", str(tmp_path / "out")]) == 0


def test_the_table_adds_up() -> None:
    outcomes = [
        Outcome("unit", "ok", seconds=60.4, passed=1400, skipped=2, notes=["skipped 2: no helm"]),
        Outcome("run", "FAILED", seconds=300.0, passed=10, failed=1, notes=["failed: a::b"]),
    ]
    head, titles, *rows = nightly.table(outcomes, NOW).splitlines()
    assert head.startswith("2026-11-25 03:00 UTC, commit ")
    assert titles.split() == ["tier", "result", "passed", "failed", "skipped", "seconds"]
    assert [row.split() for row in rows[:3]] == [
        ["unit", "ok", "1400", "0", "2", "60"],
        ["run", "FAILED", "10", "1", "0", "300"],
        ["all", "1410", "1", "2", "360"],
    ]
    assert rows[3:] == ["", "unit: skipped 2: no helm", "run: failed: a::b"]
