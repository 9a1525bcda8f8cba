"""The sweeper writes no more than it must, and a request that fails for one trial stops no other."""

from __future__ import annotations

import asyncio
import copy
from datetime import timedelta
from typing import Any

import pytest

from lorarl_operator.control.cache import Cache
from lorarl_operator.control.served_schema import ServedSchema
from lorarl_operator.control.sweeper import NUMBERS_SECONDS, Sweeper
from lorarl_operator.control.workqueue import WorkQueue
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.kube.resources import LORARLJOBS, LORARLSWEEPS
from unit.operator.decisions import REFUSED_BY_ADMISSION
from unit.operator.observed_world import START
from unit.operator.sweep_world import name, sweep_spec

KEY = ("team", "sums")


class Server:
    """The API server's part: a sweep and its jobs. `errors` are answers to requests, by verb and name."""

    def __init__(self, **parts: Any) -> None:
        about = {"namespace": "team", "name": "sums", "uid": "sweep-uid", "resourceVersion": "1", "generation": 1}
        self.raw: dict[str, Any] = {"metadata": about, "spec": sweep_spec(**parts), "status": {}}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.messages: list[str] = []
        self.errors: dict[tuple[str, str], ApiError] = {}
        self.version, self.clock, self.undoes = 1, 0.0, False
        self.loop = asyncio.Runner()  # The queue belongs to one loop.
        self.cache, self.queue, self.events = Cache(), WorkQueue[tuple[str, str]](), []
        self.cache.put(LORARLSWEEPS, copy.deepcopy(self.raw))
        served = ServedSchema(self, lambda: self.clock)
        self.sweeper = Sweeper(self, self.cache, self.queue, self, served=served, clock=lambda: self.clock)

    def now(self):
        return START + timedelta(seconds=self.clock)

    def record(self, sweep, event):
        self.events.append(str(event.reason))
        self.messages.append(event.message)

    def answers(self, verb: str, name: str, raw: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(f"{verb} {name}")
        if error := self.errors.get((verb, name)):
            raise error
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(raw)

    async def apply(self, manifest, *, subresource):
        assert manifest["metadata"]["resourceVersion"] == self.raw["metadata"]["resourceVersion"]
        self.raw["status"] = manifest["status"]
        return self.answers("status", "sums", self.raw)

    async def create(self, manifest):
        job, made = manifest["metadata"]["name"], copy.deepcopy(manifest)
        made["metadata"] |= {"uid": f"uid-{job}", "generation": 1}
        answer = self.answers("create", job, made)
        self.jobs[job] = made
        return answer

    async def try_create(self, manifest):
        self.answers("try", manifest["metadata"]["name"], {"metadata": {}})

    async def merge(self, resource, namespace, job, patch):
        self.jobs[job]["spec"] |= {} if self.undoes else patch["spec"]
        return self.answers("patch", job, self.jobs[job])

    async def get(self, resource, namespace, job):
        self.asked.append(f"get {job}")
        return copy.deepcopy(self.jobs.get(job))

    def reports(self, job: str, **status: Any) -> None:
        self.version += 1
        self.jobs[job]["metadata"]["resourceVersion"] = str(self.version)
        self.jobs[job].setdefault("status", {}).update(status)
        self.cache.put(LORARLJOBS, copy.deepcopy(self.jobs[job]))

    def changes(self, **metadata: Any) -> None:
        """The sweep as someone has changed it. With another uid it was deleted, and applied again."""
        self.version += 1
        self.raw["metadata"] |= {"resourceVersion": str(self.version), **metadata}
        self.raw["status"] = {} if "uid" in metadata else self.raw["status"]
        self.cache.put(LORARLSWEEPS, copy.deepcopy(self.raw))

    def works(self) -> list[str]:
        """Look until nothing is due; return what was asked."""
        self.asked.clear()

        async def work() -> None:
            worker = asyncio.create_task(self.sweeper.work())
            for _ in range(5):  # as the controller does after what was written
                self.sweeper.notice(KEY, None)
                for _ in range(50):
                    await asyncio.sleep(0)
            worker.cancel()
            (end,) = await asyncio.gather(worker, return_exceptions=True)
            assert isinstance(end, asyncio.CancelledError), end

        self.loop.run(work())
        return list(self.asked)


def test_each_job_is_created_once_and_the_controller_hears_of_it():
    server = Server()
    assert server.works() == ["status sums", f"create {name(0)}", f"create {name(1)}", "status sums"]
    assert server.events.count("TrialMade") == 2
    assert len(server.queue) == 2, "the watch brings no news of what was written here"
    assert server.works() == [], "nothing is written at rest"


def test_a_webhook_that_undoes_a_suspension_makes_no_busy_loop():
    server = Server()
    server.works()
    server.raw["spec"]["suspend"] = True
    server.changes(generation=2)
    server.undoes = True
    assert len(server.works()) < 20


def test_newer_numbers_alone_are_written_every_ten_seconds():
    server = Server()
    server.works()
    best = {"uri": "s3://a", "step": 5, "metric": "eval_score", "value": 0.5}
    server.reports(name(0), phase="Running", step=5, best=best)
    assert server.works() == ["status sums"], "a trial runs"
    for step in (6, 7, 8):
        server.reports(name(0), step=step)
        assert server.works() == []
    server.clock += NUMBERS_SECONDS
    assert server.works() == ["status sums"] and server.raw["status"]["trials"][0]["step"] == 8
    server.reports(name(0), phase="Succeeded", step=9)
    assert server.works()[0] == "status sums", "an end is news"


def test_a_request_that_fails_for_one_trial_stops_no_other():
    server = Server()
    server.errors = {("create", name(0)): ApiError("create", 500, "InternalError", "no")}
    asked = server.works()
    assert asked[:3] == ["status sums", f"create {name(0)}", f"create {name(1)}"]
    server.errors = {("create", name(0)): ApiError("create", 403, "Forbidden", "exceeded quota")}
    server.works()
    told = server.raw["status"]["trials"]
    assert [one["phase"] for one in told] == ["Waiting", "Pending", "Pending", "Waiting"]
    assert told[0]["message"] == "The API server refuses its job: exceeded quota" and told[0]["reason"] == "Forbidden"


def test_a_job_whose_answer_was_lost_is_its_own_and_one_of_others_is_not():
    server = Server(parallelism=1)
    taken = ApiError("create", 409, "AlreadyExists", "exists")
    server.errors = {("create", name(0)): taken}
    owner = {"kind": "LoRARLSweep", "name": "sums", "uid": "sweep-uid", "controller": True}
    about = {"namespace": "team", "name": name(0), "uid": "any", "resourceVersion": "1", "generation": 1}
    server.jobs[name(0)] = {"metadata": about | {"ownerReferences": [owner]}, "spec": {}}
    server.works()
    assert server.raw["status"]["trials"][0]["uid"] == "any"
    other = Server(parallelism=1)
    other.errors = {("create", name(0)): taken}
    other.jobs[name(0)] = {"metadata": about, "spec": {}}
    other.works()
    first, second, *_ = other.raw["status"]["trials"]
    assert first["reason"] == "NameTaken" and "uid" not in first and second["phase"] == "Pending"


def test_a_sweep_applied_again_begins_without_refusals():
    server = Server(parallelism=1)
    server.errors = {("create", name(0)): ApiError("create", 422, "Invalid", "a policy says no")}
    server.works()
    assert server.raw["status"]["trials"][0]["phase"] == "Refused"
    server.errors = {}
    server.changes(uid="other-uid")
    server.works()
    assert server.raw["status"]["trials"][0]["phase"] == "Pending"


@pytest.mark.parametrize("going", [{}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}])
def test_a_job_that_goes_by_itself_is_waited_for_without_a_warning(going: dict[str, str]):
    server = Server(parallelism=1)
    earlier = {"kind": "LoRARLSweep", "name": "sums", "uid": "earlier", "controller": True}
    about = {"namespace": "team", "name": name(0), "uid": "any", "resourceVersion": "1", "generation": 1}
    owners = {} if going else {"ownerReferences": [earlier]}
    for seed in range(4):
        server.errors["create", name(seed)] = ApiError("create", 409, "AlreadyExists", "exists")
        server.jobs[name(seed)] = {"metadata": about | owners | going | {"name": name(seed)}, "spec": {}}
    server.works()
    told = server.raw["status"]
    assert [one["phase"] for one in told["trials"]] == ["Waiting"] * 4
    assert "is being deleted" in told["trials"][0]["message"] and "reason" not in told["trials"][0]
    assert "NameTaken" not in server.events and "Stalled" not in {one["type"] for one in told["conditions"]}
    server.errors, server.clock = {}, 6.0
    assert f"create {name(0)}" in server.works(), "its name is free by now"


def test_a_refused_job_is_only_asked_about_while_no_place_is_free():
    server = Server(parallelism=1, stopping={"halving": {"startAfter": 5}})
    server.errors = {("create", name(0)): ApiError("create", 403, "Forbidden", "exceeded quota")}
    server.works()
    assert server.raw["status"]["trials"][1]["phase"] == "Pending"
    server.errors = {("try", name(0)): ApiError("create", 403, "Forbidden", "exceeded quota of jobs")}
    server.clock = 61.0
    assert server.works() == [f"try {name(0)}", "status sums"]
    assert server.raw["status"]["trials"][0]["message"].endswith("exceeded quota of jobs")
    server.errors, server.clock = {}, 122.0
    assert server.works() == [f"try {name(0)}", "status sums"], "asked once"
    assert "reason" not in server.raw["status"]["trials"][0] and name(0) not in server.jobs


def test_a_change_that_is_refused_is_an_event():
    server = Server()
    server.works()
    server.errors = {("patch", name(0)): ApiError("patch", 403, "Forbidden", "a webhook says no to password=hunter2")}
    server.raw["spec"]["suspend"] = True
    server.changes(generation=2)
    server.works()
    assert "ChangeRefused" in server.events and "a webhook says no" in "".join(server.messages)
    assert "hunter2" not in "".join(server.messages)


def test_a_job_that_the_cache_lacks_is_asked_for_first():
    server = Server()
    server.works()
    server.cache.forget(LORARLJOBS, None)
    assert server.works() == [f"get {name(0)}", f"get {name(1)}"]
    server.cache.forget(LORARLJOBS, None)
    del server.jobs[name(0)]
    server.works()
    assert [one["phase"] for one in server.raw["status"]["trials"]] == ["Deleted", "Pending", "Pending", "Waiting"]


def test_a_fault_of_the_sweeper_is_an_event_of_the_sweep():
    server = Server()
    server.now = lambda: None
    assert server.works() == [] and set(server.events) == {"OperatorFault"}


def test_a_sweep_waits_until_all_jobs_of_its_namespace_are_known():
    server = Server()
    served = ServedSchema(server)
    server.sweeper = Sweeper(server, server.cache, server.queue, server, served=served, has_synced=lambda _: False)
    assert server.works() == []


def test_a_default_of_a_newer_definition_stops_no_sweep():
    server = Server()
    served = {"properties": {"spec": {"properties": {"extra": {"default": 1}}}}}
    kind = {"group": "lorarl.io", "version": "v1alpha1", "kind": "LoRARLSweep"}
    document = {"components": {"schemas": {"one": served | {"x-kubernetes-group-version-kind": [kind]}}}}

    async def open_api(group, version):
        return document

    server.open_api = open_api
    server.raw["spec"]["extra"] = 1
    server.changes()
    assert f"create {name(0)}" in server.works()
    assert server.raw["status"]["phase"] in ("Pending", "Running")


@pytest.mark.parametrize("message", REFUSED_BY_ADMISSION)
def test_a_webhook_or_policy_that_refuses_a_trial_may_accept_it_later(message: str):
    """Kyverno's answers are 400 and those of policies 422, as the API server's own to a spec that is not valid."""
    for code, reason in ((400, "BadRequest"), (422, "Invalid")):
        server = Server(parallelism=1)
        server.errors = {("create", name(0)): ApiError("create", code, reason, message)}
        server.works()
        assert server.raw["status"]["trials"][0]["phase"] == "Waiting"
        server.errors = {}
        server.clock += 61.0
        server.reports(name(1), phase="Succeeded", step=9)
        assert f"create {name(0)}" in server.works()
    # A spec that it cannot read stays so.
    other = Server(parallelism=1)
    other.errors = {("create", name(0)): ApiError("create", 400, "BadRequest", "strict decoding error: unknown field")}
    other.works()
    assert other.raw["status"]["trials"][0]["phase"] == "Refused"
