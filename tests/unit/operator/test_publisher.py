"""The publisher asks and writes no more than it must, and is patient with an API server that is not."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from lorarl_api.v1alpha1 import PublishedVersion, PublishSpec
from lorarl_operator.control.cache import Cache
from lorarl_operator.control.publisher import MANAGER, Publisher
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.decide import parse
from lorarl_operator.decide.publishing import decide_publishing, targets_of
from lorarl_operator.decide.served import Remove, Serve
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LLM_SERVICES, LORARLJOBS, LORARLSCHEDULES
from lorarl_operator.manifests.llm_inference_service import LlmInferenceServices
from lorarl_operator.manifests.model_adapter import ModelAdapters, model_adapter, selector
from support.published import best, model
from unit.contract.publish_cases import PUBLISHES
from unit.operator.kserve_world import KSERVE
from unit.operator.observed_world import START, raw_job
from unit.operator.publishing_world import ENTRY, merged

VERSION = {"step": 1, "uri": "s3://a", "sha256": "a" * 64, "metric": "eval_score", "value": 0.5}
SPEC = {path.removeprefix("spec."): value for path, value in PUBLISHES.items()}


def publishing(**metadata: Any) -> dict[str, Any]:
    raw = raw_job(status={"phase": "Running", "best": best(10, 0.9)}, **metadata)
    raw["spec"] |= {"publish": SPEC["publish"], "data": raw["spec"]["data"] | {"eval": SPEC["data.eval"]}}
    raw["spec"]["checkpoint"] = {"uri": "s3://team/adapters", "keepBest": {}, "keepAll": True}
    return raw


class Server:
    """The API server's part: one job, and the ModelAdapters that were created."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw, self.made, self.asked = copy.deepcopy(raw), [], []
        self.error: ApiError | None = None
        self.cache = Cache()
        self.cache.put(LORARLJOBS, raw)

    def now(self):
        return START

    async def pages(self, resource, namespace, *, labels):
        self.asked.append("list")
        if self.error:
            raise self.error
        yield self.made, "1"

    async def serves(self, resource):
        return True

    async def apply(self, manifest, *, subresource, manager):
        assert (subresource, manager) == ("status", MANAGER)
        self.asked.append("status")
        meta = self.raw["metadata"]
        assert manifest["metadata"]["resourceVersion"] == meta["resourceVersion"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        self.raw["status"] = {**self.raw["status"], **manifest["status"]}
        return copy.deepcopy(self.raw)

    async def create(self, manifest):
        self.asked.append("create")
        made = copy.deepcopy(manifest)
        made["metadata"]["uid"] = "uid"
        self.made.append(made)
        return made


class Events:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record(self, job, event):
        self.reasons.append(str(event.reason))


def run(server: Server, looks: int, clock: list[float]) -> Events:
    """Notice the job so often, and work until nothing is due."""
    events = Events()
    publisher = Publisher(server, server.cache, events, served=ServedSchema(server), clock=lambda: clock[0])

    async def work() -> None:
        worker = asyncio.create_task(publisher.work())
        for _ in range(looks):
            observed = server.cache.observe((server.raw["metadata"]["namespace"], server.raw["metadata"]["name"]))
            assert observed is not None
            publisher.notice((observed.job.namespace, observed.job.name), observed.job)
            for _ in range(20):
                await asyncio.sleep(0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    asyncio.run(work())
    return events


def test_reports_of_the_training_cost_no_request():
    server = Server(publishing())
    events = run(server, looks=50, clock=[0.0])
    # A look follows from each status that the one before it wrote: it is created, and not loaded yet.
    assert server.asked == ["list", "status", "create", "list", "status", "list"]
    assert [one["metadata"]["name"] for one in server.made] == [model(10)]
    assert events.reasons == ["Loading"]


def test_a_job_that_publishes_nothing_is_never_looked_at():
    server = Server(raw_job())
    run(server, looks=5, clock=[0.0])
    assert server.asked == []


def test_a_job_that_is_being_deleted_leaves_everything():
    server = Server(publishing(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["other/stays"]))
    run(server, looks=5, clock=[0.0])
    assert server.asked == []


def of_schedule(name: str, minute: int) -> dict[str, Any]:
    owner = {"kind": "LoRARLSchedule", "name": "nightly", "uid": "schedule-uid", "controller": True}
    created = f"2026-01-01T03:{minute:02}:00Z"
    return publishing(name=name, uid=name, creationTimestamp=created, ownerReferences=[owner])


def test_of_a_schedule_only_the_newest_job_publishes():
    about = {"namespace": "team", "name": "nightly", "uid": "schedule-uid", "resourceVersion": "1"}
    schedule = {"metadata": about | {"creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    earlier, newest = of_schedule("nightly-r0000009", 1), of_schedule("nightly-r0000001", 2)
    unreadable = {"spec": {"publish": []}}  # so that only one of the two is decided about
    server = Server(earlier)
    server.cache.put(LORARLSCHEDULES, schedule)
    server.cache.put(LORARLJOBS, newest | unreadable)
    events = run(server, looks=5, clock=[0.0])
    assert server.asked == ["status"] and events.reasons == ["Superseded"]
    [entry] = parse.job(server.raw).read_status()["published"]
    assert (entry["state"], entry["reason"]) == ("Waiting", "Superseded")
    assert "Job nightly-r0000001 of the same schedule" in entry["message"]
    server.cache.remove(LORARLJOBS, ("team", "nightly-r0000001"), "nightly-r0000001", "nightly-r0000001")
    assert run(server, looks=5, clock=[0.0]).reasons == [] and server.asked == ["status"], "it takes nothing back"
    later = Server(newest)
    later.cache.put(LORARLSCHEDULES, schedule)
    later.cache.put(LORARLJOBS, earlier | unreadable)
    run(later, looks=5, clock=[0.0])
    assert later.asked.count("create") == 1
    [made] = later.made
    labels = [one.split("=") for one in selector(parse.job(earlier)).split(",")]
    assert all(made["metadata"]["labels"].get(key) == (value[0] if value else "sums") for key, *value in labels)


@pytest.mark.parametrize("scheduled", [True, False])
def test_an_entry_that_left_the_template_is_withdrawn_by_the_next_job(scheduled: bool):
    job = parse.job(of_schedule("nightly-r0000002", 2) if scheduled else publishing())
    entries = [PublishSpec.model_validate(ENTRY)]
    old = model_adapter(
        job, entries[0].model_copy(update={"name": "old"}), PublishedVersion(**VERSION, model="old-1-a")
    )
    old["metadata"]["uid"] = "uid"
    decision = decide_publishing(job, entries, {"aibrix": ModelAdapters(job, [old])}, {}, START)
    removed = [one.name for one in decision.steps if isinstance(one, Remove)]
    assert removed == (["old-1-a"] if scheduled else []), "a job leaves what an earlier one of its name has served"


def test_all_targets_are_asked_that_a_job_of_the_schedule_has_used():
    earlier, newest = of_schedule("nightly-r0000001", 1), of_schedule("nightly-r0000002", 2)
    assert targets_of([parse.job(newest)]) == ["aibrix"]
    earlier["spec"]["publish"] = [KSERVE]
    assert targets_of([parse.job(newest), parse.job(earlier)]) == ["aibrix", "kserve"]
    earlier["spec"].pop("publish")
    assert targets_of([parse.job(earlier)]) == []
    stored = {"name": "old", "state": "Serving", "reason": "Serving", "message": "", "since": "2026-01-01T00:00:00Z"}
    earlier["status"]["published"] = [stored]
    assert targets_of([parse.job(earlier)]) == ["aibrix"], "as operators wrote it that had one target"
    earlier["status"]["published"] = [stored | {"targets": ["kserve"]}]
    assert targets_of([parse.job(earlier)]) == ["kserve"]


def test_what_a_schedules_job_added_is_withdrawn_by_the_next_one():
    first, second = (parse.job(of_schedule(f"nightly-r000000{number}", number)) for number in (1, 2))
    about = {"name": "qwen", "uid": "uid", "resourceVersion": "1", "generation": 1}
    service = {"metadata": about, "spec": {"model": {"uri": "s3://team/qwen", "lora": {"maxRank": 64}}}}
    entry = PublishSpec.model_validate(KSERVE)
    version = PublishedVersion(**VERSION, model="sums-1-a")
    (added,) = LlmInferenceServices(first, checked_spec(first), [service], []).steps([Serve(entry, version)])
    made = merged(service, added.patch)
    servers = LlmInferenceServices(second, checked_spec(second), [made], [])
    (removed,) = decide_publishing(second, [], {"kserve": servers}, {}, START).steps
    assert removed.patch["spec"] == {"model": {"lora": {"adapters": None}}}
    other = parse.job(publishing())
    assert LlmInferenceServices(other, checked_spec(other), [made], []).items == []


def test_a_write_that_comes_too_late_is_made_again():
    raw = publishing()
    raw["spec"]["publish"] = [KSERVE]
    server = Service(raw)
    run(server, looks=10, clock=[0.0])
    assert server.asked[:5] == ["list", "list", "status", "merge", "list"], "the second list is that of the pods"
    assert server.asked.count("merge") == 10 and server.asked.count("status") == 1


class Service(Server):
    """The API server with a service that others change all the time."""

    async def pages(self, resource, namespace, *, labels):
        self.asked.append("list")
        about = {"name": "qwen", "uid": "uid", "resourceVersion": "1", "generation": 1}
        spec = {"model": {"uri": "s3://team/qwen", "lora": {"maxRank": 64}}}
        yield [{"metadata": about, "spec": spec}] if resource is LLM_SERVICES else [], "1"

    async def merge(self, resource, namespace, name, patch):
        self.asked.append("merge")
        raise ApiError("PATCH", 409, "Conflict", "the object has been modified")


def test_versions_of_a_schedule_are_found_by_its_name():
    assert selector(parse.job(of_schedule("a", 1))) == selector(parse.job(of_schedule("b", 2)))
    assert "lorarl.io/job=demo" in selector(parse.job(publishing()))


@pytest.mark.parametrize("status", [0, 429, 500, 503])
def test_a_server_that_does_not_answer_changes_no_status(status):
    server = Server(publishing())
    server.error = ApiError("GET", status, "Unknown", "not now")
    events = run(server, looks=3, clock=[0.0])
    assert set(server.asked) == {"list"} and events.reasons == []


def test_a_fault_of_the_publisher_is_an_event_of_the_job():
    server = Server(publishing())
    server.error = ValueError("no")
    events = run(server, looks=1, clock=[0.0])
    assert server.asked == ["list"] and events.reasons == ["OperatorFault"]


def test_a_refusal_is_written_once():
    server = Server(publishing())
    server.error = ApiError("GET", 403, "Forbidden", 'modeladapters is forbidden: User "operator" cannot list')
    events = run(server, looks=20, clock=[0.0])
    assert server.asked.count("status") == 1 and events.reasons == ["Forbidden"]
    assert parse.job(server.raw).read_status()["published"][0]["state"] == "Failed"


def test_a_default_of_a_newer_definition_stops_no_publishing():
    server = Server(publishing())
    server.raw["spec"]["extra"] = 1
    server.raw["metadata"]["resourceVersion"] = "7"
    server.cache.put(LORARLJOBS, copy.deepcopy(server.raw))
    served = {"properties": {"spec": {"properties": {"extra": {"default": 1}}}}}
    kind = {"group": "lorarl.io", "version": "v1alpha1", "kind": "LoRARLJob"}
    document = {"components": {"schemas": {"one": served | {"x-kubernetes-group-version-kind": [kind]}}}}

    async def open_api(group, version):
        return document

    server.open_api = open_api
    run(server, looks=5, clock=[0.0])
    assert [one["metadata"]["name"] for one in server.made] == [model(10)]


def test_a_job_applied_again_begins_without_the_faults_of_the_one_before():
    server, events = Server(publishing()), Events()
    publisher = Publisher(server, server.cache, events, served=ServedSchema(server), clock=lambda: 0.0)
    create, key = server.create, ("team", server.raw["metadata"]["name"])

    async def refuses(manifest):
        raise ApiError("create", 403, "Forbidden", "exceeded quota")

    async def look():
        worker = asyncio.create_task(publisher.work())
        observed = server.cache.observe(key)
        assert observed is not None
        publisher.notice(key, observed.job)
        for _ in range(50):
            await asyncio.sleep(0)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)

    async def both():
        server.create = refuses
        await look()
        await look()
        server.create = create
        again = publishing(uid="another", resourceVersion="100")
        server.raw = copy.deepcopy(again)
        server.cache.put(LORARLJOBS, again)
        events.reasons.clear()
        await look()

    asyncio.run(both())
    assert events.reasons == ["Loading"] and len(server.made) == 1
