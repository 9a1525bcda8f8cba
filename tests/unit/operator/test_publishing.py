"""Which version of an adapter is served, and why another one is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import LoRARLJobStatus
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.served import Fault
from lorarl_operator.decide.versions import stored_entries
from lorarl_operator.manifests.model_adapter import item_of
from support.published import model
from unit.operator.publishing_world import ENTRY, World


def serving(step: int = 10, value: float = 0.6, *entries: dict[str, Any]) -> World:
    world = World(*entries)
    world.reports(step, value)
    world.settle()
    world.loads(model(step))
    world.settle()
    return world


def test_a_version_is_accepted_loads_and_serves() -> None:
    world = World()
    world.settle()
    assert world.says == ("Waiting", "NoResult", None)
    world.reports(10, 0.6)
    assert world.step().steps, "it is accepted and created"
    assert world.says == ("Waiting", "Loading", None)
    assert world.condition["status"] == "False"
    (made,) = world.created
    assert made["spec"] == {
        "artifactURL": "s3://team/adapters/sums/iter_0000010/lora_adapter/",
        "podSelector": {"matchLabels": {"app": "vllm"}},
    }
    assert "ownerReferences" not in made["metadata"]
    world.loads(model(10), ready=1, desired=2)
    world.settle()
    assert world.says[:2] == ("Waiting", "Loading"), "all servers must have it first"
    world.loads(model(10))
    world.settle()
    assert world.says == ("Serving", "Serving", model(10))
    assert world.condition["status"] == "True" and world.condition["reason"] == "Serving"
    assert world.events == ["NoResult", "Loading", "Serving"]
    LoRARLJobStatus.model_validate(world.status)


@pytest.mark.parametrize(
    ("entry", "value", "text"),
    [
        (ENTRY, 0.4999, "eval_score 0.4999 < 0.5"),
        (ENTRY, float("nan"), "eval_score nan < 0.5"),
        ({**ENTRY, "minimum": None, "maximum": 1.2}, 1.3, "eval_score 1.3 > 1.2"),
    ],
)
def test_what_is_below_the_gate_is_held_back(entry: dict[str, Any], value: float, text: str) -> None:
    world = World({key: one for key, one in entry.items() if one is not None})
    world.reports(10, value)
    world.settle()
    assert world.says == ("HeldBack", "BelowGate", None) and not world.objects
    assert text in world.entry["message"] and world.events == ["BelowGate"]


def test_a_better_one_takes_over_only_when_it_answers() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    assert set(world.objects) == {model(10), model(20)}
    assert world.says == ("Waiting", "Loading", model(10))
    assert f"{model(10)} answers meanwhile" in world.entry["message"]
    world.loads(model(20))
    world.settle()
    assert set(world.objects) == {model(20)} and world.says == ("Serving", "Serving", model(20))
    assert [one["step"] for one in world.entry["versions"]] == [10, 20]


def test_one_that_cannot_be_loaded_leaves_the_one_before_and_recovers() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    world.fails(model(20), "LoRA rank 32 is greater than max_lora_rank 16")
    world.settle()
    assert world.says == ("Failed", "LoadFailed", model(10)) and "max_lora_rank 16" in world.entry["message"]
    assert world.condition["status"] == "False"
    world.reports(30, 0.9)
    world.settle()
    assert set(world.objects) == {model(10), model(30)}, "a version that never served is not kept"
    world.loads(model(30))
    world.settle()
    assert set(world.objects) == {model(30)}


def test_a_best_that_is_not_better_changes_nothing() -> None:
    """The training forgets its best one when the rows of the evaluation change."""
    world = serving(10, 0.6)
    world.reports(20, 0.55)
    world.settle()
    assert world.says == ("Serving", "Serving", model(10)) and "Step 20 is held back" in world.entry["message"]
    world.reports(30, 0.5, metric="eval_new/score")
    world.settle()
    assert model(30) in world.objects, "values of two metrics are not compared"


def test_a_lower_loss_is_better() -> None:
    world = serving(10, 0.9, {"name": "sums", "maximum": 1.2, "aibrix": ENTRY["aibrix"]})
    world.reports(20, 1.0)
    world.settle()
    assert set(world.objects) == {model(10)} and "is not better than 0.9" in world.entry["message"]
    world.reports(30, 0.8)
    world.settle()
    assert model(30) in world.objects


def test_while_a_version_loads_only_a_better_one_takes_its_place() -> None:
    """Otherwise it could begin to answer, and a worse one would follow it."""
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    world.reports(30, 0.7)
    world.settle()
    assert set(world.objects) == {model(10), model(20)}
    world.fails(model(20), "it does not fit")
    world.settle()
    assert set(world.objects) == {model(10), model(30)}


def test_a_version_that_someone_deletes_is_made_again() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    world.loads(model(20))
    world.objects[model(20)]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.settle()
    assert world.says == ("Waiting", "Loading", model(10)), "one that is going does not take over"
    assert set(world.objects) == {model(10), model(20)}, "its name is free only when it has gone"
    del world.objects[model(20)]
    world.settle()
    assert set(world.objects) == {model(10), model(20)}


def test_a_rollback_pins_a_version_and_its_end_returns_to_the_best() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    world.loads(model(20))
    world.settle()
    world.entries = [ENTRY | {"step": 10}]
    world.settle()
    assert set(world.objects) == {model(10), model(20)} and world.says[2] == model(20)
    world.loads(model(10))
    world.settle()
    assert set(world.objects) == {model(10)} and world.says == ("Serving", "Pinned", model(10))
    world.reports(30, 0.9)
    world.settle()
    assert set(world.objects) == {model(10)}
    world.entries = [ENTRY]
    world.settle()
    world.loads(model(30))
    world.settle()
    assert set(world.objects) == {model(30)}


def test_a_step_that_was_never_served_cannot_be_pinned() -> None:
    world = serving(20, 0.8)
    world.entries = [ENTRY | {"step": 15}]
    world.settle()
    assert world.says == ("HeldBack", "NeverServed", model(20)) and set(world.objects) == {model(20)}
    assert "Steps that were: 20." in world.entry["message"]


def test_only_the_end_of_the_training_publishes_if_so_asked() -> None:
    world = World(ENTRY | {"when": "End"})
    world.reports(10, 0.6)
    world.settle()
    assert world.says == ("Waiting", "TrainingRuns", None) and not world.objects
    world.status["phase"] = "Failed"
    world.settle()
    assert not world.objects
    world.status["phase"] = "Succeeded"
    world.settle()
    assert set(world.objects) == {model(10)}


def test_an_entry_that_is_removed_is_withdrawn() -> None:
    world = serving()
    world.entries = []
    world.step()
    assert world.says[:2] == ("Withdrawing", "Withdrawing")
    world.settle()
    assert not world.objects and "published" not in world.status and world.events[-1] == "Withdrawn"
    assert "conditions" not in world.status


def test_a_job_that_is_applied_again_knows_what_its_predecessor_left() -> None:
    """Its status is empty, and what serves is not replaced by something worse."""
    world = serving(30, 0.8)
    world.status = {"phase": "Running"}
    world.settle()
    assert world.says == ("Serving", "Serving", model(30))
    world.status = {"phase": "Running"}
    world.reports(10, 0.6)
    world.settle()
    assert set(world.objects) == {model(30)} and world.says == ("Serving", "Serving", model(30))


def test_a_version_whose_record_is_lost_still_answers_until_another_does() -> None:
    world = serving(10, 0.6)
    world.status, world.objects[model(10)]["metadata"]["annotations"] = {"phase": "Running"}, {}
    world.reports(20, 0.8)
    world.settle()
    assert set(world.objects) == {model(10), model(20)}
    world.loads(model(20))
    world.settle()
    assert set(world.objects) == {model(20)}


def test_a_training_that_reports_no_digest_is_held_back() -> None:
    world = World()
    world.reports(10, 0.6, sha256=None)
    world.settle()
    assert world.says == ("HeldBack", "NoDigest", None)


def test_a_fault_is_a_state_until_it_is_gone_and_nothing_is_lost() -> None:
    world = serving(10, 0.6)
    world.unlisted = Fault(Publishing.FORBIDDEN, "The operator may not list ModelAdapters.")
    world.settle()
    assert world.says == ("Failed", "Forbidden", model(10)) and len(world.entry["versions"]) == 1
    world.unlisted = None
    world.settle()
    assert world.says == ("Serving", "Serving", model(10))
    world.reports(20, 0.8)
    world.faults = {"sums": Fault(Publishing.NAME_TAKEN, "It exists.")}
    decision = world.step(killed_after=1)
    assert decision.steps, "it is tried again"
    assert world.says == ("Failed", "NameTaken", model(10))
    world.step()
    world.loads(model(20))
    world.settle()
    assert world.says == ("Serving", "Serving", model(20)), "an earlier fault counts only while there is a step to do"


def test_a_changed_target_changes_the_objects_in_place() -> None:
    entry = ENTRY | {"aibrix": {"podSelector": {"app": "vllm"}, "baseModel": "qwen", "credentialsSecret": "keys"}}
    world = serving(10, 0.6, entry)
    assert world.objects[model(10)]["spec"]["credentialsSecretRef"] == {"name": "keys"}
    world.entries = [ENTRY | {"aibrix": {"podSelector": {"pool": "b"}}}]
    world.settle()
    assert world.objects[model(10)]["spec"] == {
        "artifactURL": "s3://team/adapters/sums/iter_0000010/lora_adapter/",
        "podSelector": {"matchLabels": {"pool": "b"}},
    }
    assert len(world.created) == 1


def test_what_a_later_operator_wrote_beside_is_not_in_the_way() -> None:
    """After a downgrade, what it does not know in full is still known by the rest."""
    world = serving(10, 0.6)
    entry, notes = world.entry, world.objects[model(10)]["metadata"]["annotations"]
    known, of_object = stored_entries(world.status), item_of(world.objects[model(10)]).version
    assert known and of_object is not None
    entry["later"] = entry["version"]["later"] = {"a": 1}
    notes["lorarl.io/version"] = json.dumps(json.loads(notes["lorarl.io/version"]) | {"later": 1})
    assert stored_entries({"published": [entry]}) == known
    assert item_of(world.objects[model(10)]).version == of_object


def test_a_server_that_restarts_changes_no_version() -> None:
    world = serving()
    world.loads(model(10), ready=1, desired=3)
    world.settle()
    assert world.says == ("Serving", "Serving", model(10))
    world.loads(model(10), ready=0, desired=0)
    world.settle()
    assert world.says == ("Waiting", "Loading", None) and set(world.objects) == {model(10)}
    assert "no ready pod has the labels of podSelector" in world.entry["message"]


def test_servers_that_are_no_longer_installed_keep_no_removed_entry() -> None:
    world = serving()
    world.unlisted = Fault(Publishing.NOT_INSTALLED, "The cluster has no ModelAdapters.")
    world.settle()
    assert world.says == ("Failed", "NotInstalled", model(10))
    world.entries = []
    world.settle()
    assert "published" not in world.status and world.events[-1] == "Withdrawn"


MOVES = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 20).map(lambda value: value / 20)),
    st.tuples(st.just("load"), st.integers(0, 3)),
    st.tuples(st.just("fail"), st.integers(0, 3)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("step"), st.just(0)),
)


def played(moves: list[tuple[str, Any]], *, killed: bool) -> World:
    """A history, in which the publisher is killed within some of its decisions, or never."""
    world, step = World(), 0
    for move, value in moves:
        names = sorted(world.objects)
        match move:
            case "report":
                step += 1
                world.reports(step, value)
            case "load" if names:
                world.loads(names[value % len(names)])
            case "fail" if names:
                world.fails(names[value % len(names)], "it does not fit")
            case "kill":
                world.step(killed_after=value if killed else None)
        answered = answering(world)
        if move != "kill":
            world.step()
        judged(world)
        assert answering(world) or not answered, "what answers stays until another one does"
    return world


def answering(world: World) -> list[str]:
    return [name for name, one in world.objects.items() if one.get("status", {}).get("phase") == "Running"]


def judged(world: World) -> None:
    for one in world.created:
        version = world_version(one)
        assert version["value"] >= 0.5, "what is below the gate is never even created"
    values = [one["value"] for one in (world.status.get("published") or [{}])[0].get("versions", ())]
    assert values == sorted(set(values)), "each that serves is better than the one before"


def world_version(raw: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(raw["metadata"]["annotations"]["lorarl.io/version"])
    return found


@settings(max_examples=300, deadline=None)
@given(st.lists(MOVES, max_size=25))
def test_no_history_serves_what_the_gate_refuses_or_ends_with_two(moves: list[tuple[str, Any]]) -> None:
    world = played(moves, killed=True)
    for _ in range(3):  # At last, all servers load what they have.
        world.settle()
        for name in world.objects:
            world.loads(name)
    world.settle()
    version = world.entry.get("version")
    assert set(world.objects) == ({version["model"]} if version else set())
    if version:
        assert world.says == ("Serving", "Serving", version["model"])
    values = [value for move, value in moves if move == "report" and value >= 0.5]
    assert bool(version) == bool(values)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.just("report"), st.integers(0, 20).map(lambda value: value / 20)), max_size=6), st.data())
def test_a_publisher_that_is_killed_anywhere_ends_as_one_that_is_not(
    reports: list[tuple[str, float]], data: st.DataObject
) -> None:
    def end(kills: list[int]) -> tuple[Any, ...]:
        world = World()
        for step, (_, value) in enumerate(reports, 1):
            world.reports(step, value)
            for after in kills:
                world.step(killed_after=after)
            world.settle()
            for name in world.objects:
                world.loads(name)
            for after in kills:
                world.step(killed_after=after)
            world.settle()
        entry = {key: value for key, value in (world.status.get("published") or [{}])[0].items() if key != "since"}
        return entry, {name: one["spec"] for name, one in world.objects.items()}

    assert end(data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))) == end([])
