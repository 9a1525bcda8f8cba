"""What stays, what differs, what is whole: decisions without a store."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorarl_trainer.checkpoint import Latest, Manifest, Owner, differences
from lorarl_trainer.checkpoint.contents import folder_name, step_of
from lorarl_trainer.checkpoint.latest import Best, BestBy, retention
from lorarl_trainer.checkpoint.runs import RunOf
from support.checkpoints import checkpoint

STEPS = st.lists(st.integers(0, 60), unique=True, max_size=8)


@given(STEPS, STEPS, STEPS, st.integers(0, 60), st.integers(1, 5), st.booleans())
def test_retention_keeps_the_newest_and_never_deletes_what_stays(
    published: list[int], leftovers: list[int], held_up: list[int], step: int, keep: int, anew: bool
) -> None:
    kept = () if anew else tuple(folder_name(old) for old in sorted(published) if old < step)
    there = [folder_name(old, "0123abcd") for old in leftovers] + [folder_name(old) for old in {*published, step}]
    deleting = tuple(folder_name(old, "4567cdef") for old in held_up)
    stay, gone = retention(kept, folder_name(step), keep, there, deleting, anew)
    assert stay[-1] == folder_name(step)
    assert list(stay) == [*kept, folder_name(step)][-keep:]
    assert not set(stay) & set(gone)
    assert set(deleting) <= set(gone), "a deletion once begun is brought to its end"
    for folder in there:
        later = (step_of(folder) or 0) > step
        assert (folder in gone) == (folder not in stay and (anew or not later))


@pytest.mark.parametrize("name", ["notes", "iter_100", "iter_0000100-xyz", "iter_0000100.partial", "latest.json"])
def test_only_our_own_folders_are_taken_for_checkpoints(name: str) -> None:
    assert step_of(name) is None


@given(st.integers(0, 10**9))
def test_a_folders_name_gives_back_its_step(step: int) -> None:
    assert step_of(folder_name(step)) == step_of(folder_name(step, "0123abcd")) == step


def test_differences_name_what_was_and_what_is() -> None:
    assert differences({"adapter.rank": 8, "seed": 0}, {"adapter.rank": 16, "seed": 0}) == ["adapter.rank was 8, is 16"]
    assert differences({"data": ["a"]}, {"data": ["a"], "new": None}) == [], "a key that one side lacks counts as null"
    assert differences({"seed": 0}, {"seed": False}) == ["seed was 0, is false"]


@pytest.mark.parametrize("largest", [True, False])
def test_a_better_value_is_the_best_and_a_tie_leaves_the_earlier_one(largest: bool) -> None:
    by, better, worse = BestBy("eval_score", largest), 0.5 + largest, 1.5 - largest
    best = Best(folder_name(10), 10, "eval_score", 1.0)
    assert by.is_better(worse, None) and by.is_better(better, best)
    assert not any(by.is_better(value, best) for value in (1.0, worse, math.nan, math.inf, -math.inf))


def test_a_manifest_finds_a_missing_a_short_and_a_changed_file() -> None:
    made = checkpoint(10)
    manifest = Manifest.of(made, "job", 1, "2026-01-01T00:00:00Z", {})
    path, data = "trainer_state/state.json", made.files["trainer_state/state.json"]
    assert manifest.fault(path, data) is None
    assert manifest.fault(path, None) == "trainer_state/state.json is missing"
    assert (
        manifest.fault(path, data[:-1]) == f"trainer_state/state.json has {len(data) - 1} bytes instead of {len(data)}"
    )
    assert (
        manifest.fault(path, b"x" * len(data))
        == "trainer_state/state.json has a sha256 other than the one in checkpoint.json"
    )


def test_what_is_written_is_read_back() -> None:
    manifest = Manifest.of(
        checkpoint(10), "job", 3, "2026-01-01T00:00:00Z", {"adapter.rank": 8, "modules": ["all-linear"]}
    )
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest
    kept = (folder_name(5), folder_name(10))
    latest = Latest(3, "writer", "host", "then").publishing(folder_name(10), manifest, "now", kept, ("iter_0000001",))
    assert Latest.from_bytes(latest.to_bytes()) == latest


def test_what_a_later_version_writes_beside_is_not_in_the_way() -> None:
    """Versions that differ by one read each other's checkpoints: keys may be added, at any depth."""
    manifest = replace(Manifest.of(checkpoint(10), "job", 3, "2026-01-01T00:00:00Z", {}), kept_from=5)
    kept, best = (folder_name(5), folder_name(10)), Best(folder_name(5), 5, "eval_score", 1.0, "digest")
    before = replace(Latest(3, "writer", "host", "then"), best=best, checkpoints=kept[:1])
    latest = before.publishing(folder_name(10), manifest, "now", kept, (), best)
    of_run = RunOf(Owner("job", "uid"), 2, "writer", "host", "now")
    for record in (manifest, latest, of_run):
        later = _with_more(json.loads(record.to_bytes()))
        assert type(record).from_bytes(json.dumps(later).encode()) == record


def _with_more(value: Any) -> Any:
    """JSON with a further key in each object, but for those whose keys are names of files and settings."""
    if not isinstance(value, dict):
        return value
    free = ("files", "identity")
    return {key: inner if key in free else _with_more(inner) for key, inner in value.items()} | {"later": {"a": 1}}


def test_the_best_checkpoint_is_one_that_is_kept() -> None:
    manifest = Manifest.of(checkpoint(20), "job", 3, "2026-01-01T00:00:00Z", {})
    best = Best(folder_name(10), 10, "eval_score", 1.0)
    before = replace(Latest(3, "writer", "host", "then"), best=best, checkpoints=(folder_name(10),))
    both = before.publishing(folder_name(20), manifest, "now", (folder_name(10), folder_name(20)), (), best)
    alone = before.publishing(folder_name(20), manifest, "now", (folder_name(20),), (), best)
    assert (both.best, alone.best) == (best, None)
    assert Latest.from_bytes(alone.to_bytes()) == alone, "what is written can be read"


def test_a_new_start_is_not_finished() -> None:
    finished = replace(Latest(3, "writer", "host", "then"), finished_at="2026-01-01T00:00:00Z")
    assert finished.claimed_by(4, "other", "host", "now", Owner("job")).finished_at is None


@pytest.mark.parametrize("field", ["checkpoints", "deleting"])
@pytest.mark.parametrize("name", ["", "notes", "../other-job", None])
def test_a_latest_json_that_names_other_folders_is_refused(field: str, name: str | None) -> None:
    """What is listed there is deleted in the end."""
    written = json.loads(Latest(3, "writer", "host", "then").to_bytes()) | {field: [name]}
    with pytest.raises(ValueError, match="is not a checkpoint's folder"):
        Latest.from_bytes(json.dumps(written).encode())


def test_a_folder_under_deletion_that_is_published_again_stays() -> None:
    kept, gone = retention((), folder_name(10), 1, [folder_name(10)], (folder_name(10),), from_scratch=False)
    assert (kept, gone) == ((folder_name(10),), ())


def test_the_same_state_gives_the_same_bytes() -> None:
    assert checkpoint(10).files == checkpoint(10).files
    assert checkpoint(10).files != checkpoint(20).files
