"""Adapters in the list of an LLMInferenceService, which others write too, and whose pods say what is served."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_api.v1alpha1 import LoRARLJobStatus
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.served import Fault
from support.published import model
from unit.operator.kserve_world import KSERVE, THEIRS, KserveWorld
from unit.operator.publishing_world import ENTRY


def serving(step: int = 10, value: float = 0.6, world: KserveWorld | None = None) -> KserveWorld:
    world = world or KserveWorld()
    world.reports(step, value)
    world.settle()
    world.roll()
    world.settle()
    assert world.says == ("Serving", "Serving", model(step))
    return world


def test_a_version_is_added_to_the_list_and_serves_when_all_pods_have_it() -> None:
    world = KserveWorld()
    world.edit({"model": {"lora": {"adapters": [THEIRS]}}})
    world.reports(10, 0.6)
    world.settle()
    uri = "s3://team/adapters/sums/iter_0000010/lora_adapter/"
    assert world.adapters() == [THEIRS, {"name": model(10), "uri": uri}]
    world.roll(new=1, old=1)
    world.settle()
    assert world.says == ("Waiting", "Loading", None), "an old pod answers too, and its users would find no model"
    assert "1 of 2 ready pods have it" in world.entry["message"]
    world.roll()
    world.settle()
    assert world.says == ("Serving", "Serving", model(10)) and world.entry["targets"] == ["kserve"]
    assert world.events == ["Loading", "Serving"]
    LoRARLJobStatus.model_validate(world.status)


def test_the_one_before_stays_until_the_pods_have_the_new_one() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    assert world.ours() == {model(10), model(20)}
    world.roll(new=0, old=2)
    world.settle()
    assert world.says == ("Waiting", "Loading", model(10)), (
        "Ready is True meanwhile, of the pods that were there before"
    )
    world.roll()
    world.settle()
    assert world.ours() == {model(20)} and world.says == ("Serving", "Serving", model(20))
    assert model(10) in world.services["qwen"]["metadata"]["annotations"]["lorarl.io/adapters"], "pods still have it"
    world.roll()
    world.settle()
    assert set(records(world)) == {model(20)}


def records(world: KserveWorld) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        world.services["qwen"]["metadata"].get("annotations", {}).get("lorarl.io/adapters", "{}")
    )
    return found


def test_pods_that_crash_say_why_and_the_one_before_answers() -> None:
    world = serving(10, 0.6)
    world.reports(20, 0.8)
    world.settle()
    world.crash("ValueError: LoRA rank 32 is greater than max_lora_rank 16")
    world.settle()
    assert world.says == ("Failed", "LoadFailed", model(10)) and "max_lora_rank 16" in world.entry["message"]
    assert f"{model(10)} answers meanwhile" in world.entry["message"]
    world.reports(30, 0.9)
    world.settle()
    assert world.ours() == {model(10), model(30)}
    world.roll()
    world.settle()
    assert world.ours() == {model(30)}


def test_what_kserve_rejects_is_said() -> None:
    world = KserveWorld()
    world.reports(10, 0.6)
    world.settle()
    said = {"type": "Ready", "status": "False", "reason": "ReconcileSingleNodeWorkloadError", "message": "no s3"}
    world.services["qwen"]["status"] = {"observedGeneration": 2, "conditions": [said]}
    world.settle()
    assert world.says == ("Failed", "LoadFailed", None) and "Error: no s3" in world.entry["message"]
    world.services["qwen"]["status"]["observedGeneration"] = 1
    world.settle()
    assert world.says == ("Waiting", "Loading", None), "what it said of another list does not count"
    assert "KServe has not looked at it yet" in world.entry["message"]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"model": {"uri": "hf://Qwen/Qwen2.5-7B"}}, "trained on hf://Qwen/Qwen2.5-0.5B"),
        ({"model": {"lora": {"maxRank": 16}}}, "spec.model.lora.maxRank is 16. Set it to at least 32"),
        ({"model": {"lora": {"maxRank": None}}}, "maxRank is not set, and vLLM takes ranks up to 16"),
        ({"model": {"lora": {"adapters": [THEIRS], "maxCpuAdapters": 1}}}, "maxCpuAdapters is 1, and with this one"),
        ({"model": {"lora": {"adapters": [THEIRS], "maxAdapters": 1}}}, "Raise it to at least 2"),
        ({"storageInitializer": {"enabled": False}}, "cannot download from s3://"),
    ],
)
def test_what_the_object_says_that_it_cannot_serve_is_not_given_to_it(spec: dict[str, Any], text: str) -> None:
    world = KserveWorld()
    world.edit(spec)
    before = world.services["qwen"]
    world.reports(10, 0.6)
    world.settle()
    assert world.says == ("Failed", "DoesNotFit", None) and text in world.entry["message"]
    assert world.services["qwen"] == before
    world.create()
    world.settle()
    assert world.ours() == {model(10)}


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "s3://team/qwen"}},
        {"model": {"uri": "hf://qwen/Qwen2.5-0.5B:main"}},
        {"model": {"lora": {"maxRank": None}}, "baseRefs": [{"name": "vllm"}]},
        {"model": {"lora": {"maxRank": None}}, "template": {"containers": [{"args": ["--max-lora-rank=64"]}]}},
        {"model": {"lora": {"maxAdapters": 1, "maxCpuAdapters": 2, "adapters": [THEIRS]}}},
        {"model": {"lora": None}},
    ],
)
def test_what_the_object_leaves_open_is_for_its_pods_to_say(spec: dict[str, Any]) -> None:
    world = KserveWorld()
    world.edit(spec)
    if spec == {"model": {"lora": None}}:
        world.edit({"template": {"containers": [{"env": [{"name": "VLLM_ADDITIONAL_ARGS"}]}]}})
    world.reports(10, 0.6)
    world.settle()
    assert model(10) in {one["name"] for one in world.adapters()}


def test_a_service_that_is_missing_or_closed_is_named_with_what_to_do() -> None:
    world = KserveWorld(names=())
    world.reports(10, 0.6)
    world.settle()
    assert world.says == ("Failed", "NoService", None)
    assert "kubectl label llminferenceservices qwen lorarl.io/accepts-adapters=true -n team" in world.entry["message"]
    world.create()
    world.services["qwen"]["metadata"]["labels"] = {}
    world.settle()
    assert world.says == ("Failed", "NoService", None) and not world.ours()
    world.services["qwen"]["metadata"]["labels"] = {"lorarl.io/accepts-adapters": "true"}
    world.settle()
    assert world.ours() == {model(10)}
    world.services["qwen"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.settle()
    assert world.says == ("Waiting", "Loading", None) and "is being deleted" in world.entry["message"]
    world.delete()
    world.settle()
    assert world.says == ("Failed", "NoService", None)
    world.create()
    world.settle()
    world.roll()
    world.settle()
    assert world.says == ("Serving", "Serving", model(10))


def test_a_name_of_someone_else_is_never_taken_over() -> None:
    world = KserveWorld()
    foreign = {"name": model(10), "uri": "s3://others/a"}
    world.edit({"model": {"lora": {"adapters": [foreign]}}})
    world.reports(10, 0.6)
    world.settle()
    assert world.says == ("Failed", "NameTaken", None) and world.adapters() == [foreign]
    world.edit({"model": {"lora": {"adapters": []}}})
    world.settle()
    note = records(world)
    note[model(10)]["lorarl.io/job"] = "other"
    world.services["qwen"]["metadata"]["annotations"]["lorarl.io/adapters"] = json.dumps(note)
    world.settle()
    assert world.says == ("Failed", "NameTaken", None), "also that of another job"


@pytest.mark.parametrize("note", ["", "[]", "no json", '{"theirs": 5}'])
def test_a_record_that_cannot_be_read_makes_nothing_ours(note: str) -> None:
    world = KserveWorld()
    world.edit({"model": {"lora": {"adapters": [THEIRS, "no mapping", {"uri": "hf://no/name"}]}}})
    world.services["qwen"]["metadata"]["annotations"] = {"lorarl.io/adapters": note}
    world.reports(10, 0.6)
    world.settle()
    assert world.adapters()[:3] == [THEIRS, "no mapping", {"uri": "hf://no/name"}] and len(world.adapters()) == 4


def test_an_entry_that_someone_changes_or_removes_is_corrected() -> None:
    world = serving()
    uri = world.adapters()[0]["uri"]
    world.edit({"model": {"lora": {"adapters": [{"name": model(10), "uri": "s3://others/a", "more": 1}]}}})
    world.settle()
    assert world.adapters() == [{"name": model(10), "uri": uri, "more": 1}]
    world.edit({"model": {"lora": {"adapters": None}}})
    world.settle()
    assert world.ours() == {model(10)}


def test_a_rollback_and_a_withdrawal_end_when_no_pod_has_what_is_gone() -> None:
    world = serving(20, 0.8, serving(10, 0.6))
    world.roll()
    world.settle()
    world.entries = [KSERVE | {"step": 10}]
    world.settle()
    assert world.ours() == {model(10), model(20)} and world.says[2] == model(20)
    world.roll()
    world.settle()
    assert world.ours() == {model(10)} and world.says == ("Serving", "Pinned", model(10))
    world.entries = []
    world.settle()
    assert not world.adapters() and world.says[:2] == ("Withdrawing", "Withdrawing"), "pods still answer with it"
    world.roll()
    world.settle()
    assert "published" not in world.status and world.events[-1] == "Withdrawn"
    assert "lorarl.io/adapters" not in world.services["qwen"]["metadata"]["annotations"]


def test_a_job_that_is_applied_again_learns_from_the_service_what_serves() -> None:
    world = serving(30, 0.8)
    world.status = {"phase": "Running"}
    world.reports(10, 0.6)
    world.settle()
    assert world.ours() == {model(30)} and world.says == ("Serving", "Serving", model(30))


def test_two_entries_change_a_service_in_one_write() -> None:
    world = KserveWorld(KSERVE, KSERVE | {"name": "more"})
    world.reports(10, 0.6)
    decision = world.step()
    (step,) = decision.steps
    assert step.entries == ("sums", "more") and world.ours() == {model(10), model(10, "more")}
    world.faults = {"more": Fault(Publishing.REFUSED, "no")}
    world.edit({"model": {"lora": {"adapters": None}}})
    world.step()
    assert [one["reason"] for one in world.status["published"]] == ["Loading", "Refused"]


def test_two_targets_of_one_job_do_not_wait_for_each_other() -> None:
    world = KserveWorld(KSERVE, ENTRY | {"name": "also"}, names=())
    world.reports(10, 0.6)
    world.settle()
    world.loads(model(10, "also"))
    world.settle()
    assert [(one["state"], one["targets"]) for one in world.status["published"]] == [
        ("Failed", ["kserve"]),
        ("Serving", ["aibrix"]),
    ]
    world.create()
    world.settle()
    assert world.ours() == {model(10)}


@pytest.mark.parametrize("moved", [KSERVE | {"kserve": {"service": "other"}}, ENTRY])
def test_an_entry_that_moves_stays_where_it_was_until_it_answers(moved: dict[str, Any]) -> None:
    world = serving(10, 0.6, KserveWorld(names=("qwen", "other")))
    world.entries = [moved]
    world.settle()
    assert world.says == ("Waiting", "Loading", model(10)) and world.ours() == {model(10)}
    assert f"{model(10)} answers meanwhile" in world.entry["message"]
    if moved is ENTRY:
        assert world.entry["targets"] == ["aibrix", "kserve"]
        world.loads(model(10))
    else:
        world.roll("other")
    world.settle()
    assert not world.adapters() and world.says == ("Serving", "Serving", model(10))
    world.roll()
    world.settle()
    assert world.entry["targets"] == (["aibrix"] if moved is ENTRY else ["kserve"]) and not records(world)


def test_a_target_that_cannot_be_asked_keeps_what_was_known() -> None:
    world = serving()
    world.unlisted = Fault(Publishing.FORBIDDEN, "The operator may not list.")
    world.settle()
    assert world.says == ("Failed", "Forbidden", model(10))
    world.entries = []
    world.settle()
    assert world.says[:2] == ("Failed", "Forbidden"), "it is not withdrawn while what is left is unknown"
    world.unlisted = Fault(Publishing.NOT_INSTALLED, "KServe is gone.")
    world.settle()
    assert "published" not in world.status


OTHERS = ("roll", "add_theirs", "remove_theirs", "apply_theirs", "recreate", "conflict")
MOVES = st.one_of(
    st.tuples(st.just("report"), st.integers(0, 20).map(lambda value: value / 20)),
    st.tuples(st.sampled_from([*OTHERS, "half", "crash", "step"]), st.just(0)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
)


def played(moves: list[tuple[str, Any]]) -> tuple[KserveWorld, dict[str, float]]:
    """A history, with the value of each version that was reported."""
    world, reported = KserveWorld(), dict[str, float]()
    for move, value in moves:
        match move:
            case "report":
                step = len(reported) + 1
                world.reports(step, value)
                reported[model(step)] = value
            case "half":
                world.roll(new=1, old=1)
            case "crash":
                world.crash("it does not fit")
            case "kill":
                world.step(killed_after=value)
            case one if one in OTHERS:
                getattr(world, one)()
        answered = world.answering()
        world.step()
        assert world.answering() or not answered, "what answers stays until another one does"
        assert [one for one in world.adapters() if one["name"] == "theirs"] == world.theirs
        assert all(reported[one] >= 0.5 for one in world.ours()), "what is below the gate never gets into the list"
    return world, reported


@settings(max_examples=300, deadline=None)
@given(st.lists(MOVES, max_size=25))
def test_no_history_passes_the_gate_or_touches_what_others_wrote(moves: list[tuple[str, Any]]) -> None:
    world, reported = played(moves)
    world.conflicts = 0
    for _ in range(4):  # At last, the pods follow the list.
        world.settle()
        world.roll()
    world.settle()
    version = world.entry.get("version")
    assert world.ours() == ({version["model"]} if version else set()) and set(records(world)) == world.ours()
    if version:
        assert world.says == ("Serving", "Serving", version["model"])
    assert bool(version) == any(value >= 0.5 for value in reported.values())
