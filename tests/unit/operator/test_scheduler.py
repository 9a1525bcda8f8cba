"""The scheduler writes no more than it must, waits for the next time with one timer, and makes no job twice."""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest

from lorarl_operator.control.cache import Cache
from lorarl_operator.control.scheduler import Scheduler
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, LORARLSCHEDULES
from unit.operator.observed_world import START
from unit.operator.schedule_world import hour, schedule_spec

KEY = ("team", "nightly")


class Server:
    """The API server's part: a schedule, its jobs and the time. `errors` are answers to requests, by verb and name."""

    def __init__(self, **parts: Any) -> None:
        about = {"namespace": "team", "name": "nightly", "uid": "schedule-uid", "resourceVersion": "1", "generation": 1}
        about |= {"creationTimestamp": START.isoformat()}
        self.raw: dict[str, Any] = {"metadata": about, "spec": schedule_spec(**parts), "status": {}}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.errors: dict[tuple[str, str], ApiError] = {}
        self.version, self.seconds = 1, 0.0
        self.loop = asyncio.Runner()  # The queue belongs to one loop.
        self.cache, self.queue, self.events = Cache(), WorkQueue[tuple[str, str]](), []
        self.cache.put(LORARLSCHEDULES, copy.deepcopy(self.raw))
        self.begins()

    def begins(self, *, synced: bool = True) -> None:
        """An operator that remembers nothing begins to lead."""
        has_synced = (lambda _: True) if synced else (lambda _: False)
        served = ServedSchema(self, lambda: self.seconds)
        self.scheduler = Scheduler(
            self, self.cache, self.queue, self, served=served, has_synced=has_synced, clock=lambda: self.seconds
        )

    def now(self):
        return START + timedelta(seconds=self.seconds)

    def record(self, schedule, event):
        self.events.append(str(event.reason))

    def answers(self, verb: str, name: str, raw: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(f"{verb} {name}")
        if error := self.errors.get((verb, name)):
            raise error
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(raw)

    async def apply(self, manifest, *, subresource):
        assert manifest["metadata"]["resourceVersion"] == self.raw["metadata"]["resourceVersion"]
        answer = self.answers("status", "nightly", copy.deepcopy(self.raw) | {"status": manifest["status"]})
        self.raw = copy.deepcopy(answer)
        return answer

    async def create(self, manifest):
        job, made = manifest["metadata"]["name"], copy.deepcopy(manifest)
        if job in self.jobs:
            self.asked.append(f"create {job}")
            raise ApiError("create", 409, "AlreadyExists", "exists")
        made["metadata"] |= {"uid": f"uid-{job}", "generation": 1}
        answer = self.answers("create", job, made)
        self.jobs[job] = made
        return answer

    async def try_create(self, manifest):
        self.answers("try", manifest["metadata"]["name"], {"metadata": {}})

    async def delete(self, resource, namespace, name, uid):
        assert resource == LORARLJOBS and self.jobs[name]["metadata"]["uid"] == uid
        self.asked.append(f"delete {name}")
        del self.jobs[name]

    async def get(self, resource, namespace, job):
        self.asked.append(f"get {job}")
        return copy.deepcopy(self.jobs.get(job))

    def reports(self, job: str, **status: Any) -> None:
        self.version += 1
        self.jobs[job]["metadata"]["resourceVersion"] = str(self.version)
        self.jobs[job].setdefault("status", {}).update(status)
        self.cache.put(LORARLJOBS, copy.deepcopy(self.jobs[job]))

    def works(self, *, notice: bool = True) -> list[str]:
        """Look until nothing is due; return what was asked."""
        self.asked.clear()

        async def work() -> None:
            worker = asyncio.create_task(self.scheduler.work())
            for _ in range(5):  # as the controller does after what was written
                if notice:
                    self.scheduler.notice(KEY, None)
                for _ in range(50):
                    await asyncio.sleep(0)
            worker.cancel()
            (end,) = await asyncio.gather(worker, return_exceptions=True)
            assert isinstance(end, asyncio.CancelledError), end

        self.loop.run(work())
        return list(self.asked)


def test_the_timer_alone_starts_a_job_and_nothing_is_written_at_rest():
    server = Server()
    assert server.works() == ["status nightly"] and server.works() == []
    server.seconds = 3599.0
    assert server.works(notice=False) == []
    server.seconds = 3600.0
    assert server.works(notice=False) == [f"create {hour(1)}", "status nightly"]
    assert len(server.queue) == 1, "the controller hears of the job: no watch brings news of what was written here"
    assert server.works() == [] and server.events == ["JobMade"]


def test_a_successor_that_knows_of_no_status_finds_the_job_by_its_name():
    server = Server()
    server.works()
    server.seconds = 3600.0
    server.errors = {("status", "nightly"): ApiError("apply", 500, "InternalError", "no")}
    assert server.works()[0] == f"create {hour(1)}"
    assert "lastJob" not in server.raw["status"]
    server.errors, server.cache = {}, Cache()
    server.cache.put(LORARLSCHEDULES, copy.deepcopy(server.raw))
    server.begins()
    assert server.works() == [f"create {hour(1)}", f"get {hour(1)}", "status nightly"], "its list has no such job yet"
    assert server.raw["status"]["lastJob"] == hour(1) and len(server.jobs) == 1


def test_a_job_that_the_cache_lacks_is_asked_for_first():
    server = Server(concurrencyPolicy="Forbid")
    server.works()
    server.seconds = 3600.0
    server.works()
    server.cache.forget(LORARLJOBS, None)
    assert server.works() == [f"get {hour(1)}"]
    server.cache.forget(LORARLJOBS, None)
    del server.jobs[hour(1)]
    assert server.works() == [f"get {hour(1)}", "status nightly"]
    assert server.raw["status"]["lastPhase"] == "Deleted" and server.events[-1] == "JobDeleted"


def test_a_refused_job_waits_a_minute_and_replace_deletes_first():
    server = Server(concurrencyPolicy="Replace")
    server.works()
    server.seconds = 3600.0
    server.errors = {("create", hour(1)): ApiError("create", 403, "Forbidden", "exceeded quota")}
    assert server.works() == [f"create {hour(1)}", "status nightly"]
    assert "exceeded quota" in server.raw["status"]["conditions"][-1]["message"]
    server.errors, server.seconds = {}, 3661.0
    assert server.works(notice=False) == [f"create {hour(1)}", "status nightly"]
    server.seconds = 7200.0
    assert server.works(notice=False)[:3] == [f"try {hour(2)}", f"delete {hour(1)}", f"create {hour(2)}"]


@pytest.mark.parametrize(
    ("code", "why", "deleted"),
    [(422, "no", False), (403, "a webhook denied the request", False), (403, "exceeded quota: jobs", True)],
)
def test_a_job_that_a_policy_refuses_replaces_none(code: int, why: str, deleted: bool):
    server = Server(concurrencyPolicy="Replace")
    server.works()
    server.seconds = 3600.0
    server.works()
    server.errors = {(verb, hour(2)): ApiError("create", code, "Invalid", why) for verb in ("try", "create")}
    server.seconds = 7200.0
    server.works()
    assert (hour(1) in server.jobs) is not deleted and ("Replaced" in server.events) is deleted
    assert f"The API server refuses its job: {why}" in server.raw["status"]["conditions"][-1]["message"]
    server.errors, server.seconds = {}, 7300.0
    server.works()
    assert list(server.jobs) == [hour(2)]


def test_a_job_that_goes_by_itself_is_waited_for_without_a_warning():
    server = Server()
    server.works()
    server.seconds = 3600.0
    going = {"name": hour(1), "namespace": "team", "uid": "any", "resourceVersion": "1"}
    server.jobs[hour(1)] = {"metadata": going | {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}}
    server.works()
    assert not {"Stalled"} & {one["type"] for one in server.raw["status"]["conditions"]} and server.events == []
    server.jobs.clear()
    server.seconds += 6.0
    assert server.works(notice=False)[0] == f"create {hour(1)}"


def test_old_jobs_go_after_the_status_has_what_they_said():
    server = Server(successfulJobsHistoryLimit=0)
    server.works()
    server.seconds = 3600.0
    server.works()
    adapter = {"uri": "s3://a", "step": 1, "version": 2}
    server.reports(hour(1), phase="Succeeded", completionTime="2026-03-01T13:30:00Z", adapter=adapter)
    assert server.works() == ["status nightly", f"delete {hour(1)}"]
    assert server.raw["status"]["lastAdapter"]["uri"] == "s3://a" and server.works() == []


def test_a_schedule_waits_until_all_jobs_of_its_namespace_are_known():
    server = Server()
    server.begins(synced=False)
    assert server.works() == []


def test_a_status_that_is_not_stored_as_written_is_not_written_forever():
    server = Server()
    whole = server.answers
    server.answers = lambda verb, name, raw: whole(verb, name, raw) if verb != "status" else server.drops(whole, raw)
    server.drops = lambda answers, raw: answers("status", "nightly", raw | {"status": {}})
    assert server.works() == ["status nightly"] and "OperatorFault" in server.events


def test_a_default_of_a_newer_definition_stops_no_schedule():
    server = Server()
    served = {"properties": {"spec": {"properties": {"extra": {"default": 1}}}}}
    kind = {"group": "lorarl.io", "version": "v1alpha1", "kind": "LoRARLSchedule"}
    document = {"components": {"schemas": {"one": served | {"x-kubernetes-group-version-kind": [kind]}}}}

    async def open_api(group, version):
        return document

    server.open_api = open_api
    server.version += 1
    server.raw["spec"]["extra"] = 1
    server.raw["metadata"]["resourceVersion"] = str(server.version)
    server.cache.put(LORARLSCHEDULES, copy.deepcopy(server.raw))
    server.works()
    assert server.raw["status"]["phase"] == "Scheduled"
    server.seconds = 3600.0
    assert server.works(notice=False) == [f"create {hour(1)}", "status nightly"]
