"""How the served schema is fetched: once for all jobs that need it, and never for jobs without unknown fields."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

import lorarl_operator
from lorarl_operator.control.served_schema import FRESH_SECONDS, ServedSchema
from lorarl_operator.decide import parse
from lorarl_operator.decide.schedule import decide_schedule
from lorarl_operator.decide.sweep import decide_sweep
from lorarl_operator.kube.errors import ApiError
from unit.operator.observed_world import SPEC as JOB_SPEC
from unit.operator.observed_world import START, raw_job
from unit.operator.schedule_world import schedule_spec
from unit.operator.sweep_world import World as Trials
from unit.operator.sweep_world import sweep_spec

KIND = {"group": "lorarl.io", "version": "v1alpha1", "kind": "LoRARLJob"}
SPEC = {"type": "object", "properties": {"beams": {"type": "integer", "default": 1}}}
DOCUMENT = {
    "components": {
        "schemas": {
            "other": {"x-kubernetes-group-version-kind": [{"kind": "DeleteOptions"}]},
            "job": {"x-kubernetes-group-version-kind": [KIND], "properties": {"spec": SPEC}},
        }
    }
}


class Served:
    """An API server, and a clock."""

    def __init__(self, answer, stored=None):
        self.answer, self.requests, self.now = answer, 0, 0.0
        self.stored = stored

    async def get(self, resource, namespace, name):
        assert (resource.kind, namespace, name) == ("LoRARLJob", "team", "demo")
        return self.stored

    async def open_api(self, group, version):
        assert (group, version) == ("lorarl.io", "v1alpha1")
        self.requests += 1
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def clock(self):
        return self.now


def newer_job(name="demo"):
    return parse.job(raw_job({"beams": 1}, name=name))


def test_jobs_without_unknown_fields_need_no_schema():
    server = Served(DOCUMENT)
    job = parse.job(raw_job())
    assert asyncio.run(ServedSchema(server, server.clock).readable(job)) is job
    assert server.requests == 0


def test_one_answer_serves_all_jobs_for_a_while():
    server = Served(DOCUMENT)

    async def many():
        schema = ServedSchema(server, server.clock)
        found = await asyncio.gather(*(schema.readable(newer_job(f"demo-{number}")) for number in range(5)))
        server.now += FRESH_SECONDS - 1
        await schema.readable(newer_job())
        assert server.requests == 1
        server.now += 1
        await schema.readable(newer_job())
        return found

    assert all("beams" not in job.read_spec() for job in asyncio.run(many()))
    assert server.requests == 2


def test_a_server_that_does_not_answer_is_asked_again():
    server = Served(ApiError("GET /openapi", 503, "ServiceUnavailable", "starting"))

    async def twice():
        schema = ServedSchema(server, server.clock)
        with pytest.raises(ApiError):
            await schema.readable(newer_job())
        server.answer = DOCUMENT
        return await schema.readable(newer_job())

    assert "beams" not in asyncio.run(twice()).read_spec()


@pytest.mark.parametrize("answer", [ApiError("GET /openapi", 403, "Forbidden", "no"), {}])
def test_without_a_schema_the_job_stays_as_it_is(answer):
    server = Served(answer)
    assert asyncio.run(ServedSchema(server, server.clock).readable(newer_job())).read_spec()["beams"] == 1


def test_a_field_that_only_the_watch_shows_stops_no_job():
    """The API server's watches keep the defaults of the CRD that they began with, its answers do not."""
    shown = raw_job({"extra": {"a": 1}})
    server = Served(DOCUMENT, stored=raw_job())
    assert "extra" not in asyncio.run(ServedSchema(server, server.clock).readable(parse.job(shown))).read_spec()
    # What is stored is refused, also under a newer generation or another uid, which the watch shows next.
    changed, other = raw_job(), raw_job()
    changed["metadata"]["generation"] += 1
    other["metadata"]["uid"] = "another"
    for stored in (shown, changed, other, None):
        server = Served(DOCUMENT, stored=stored)
        assert "extra" in asyncio.run(ServedSchema(server, server.clock).readable(parse.job(shown))).read_spec()


ABOUT = {"namespace": "team", "name": "nightly", "uid": "1", "resourceVersion": "1", "creationTimestamp": "2026-03-01"}


def made(kind, **parts):
    """A sweep or a schedule, as the API server has it whose definition has two more fields."""
    if kind == "LoRARLSweep":
        return parse.sweep({"metadata": ABOUT, "spec": sweep_spec() | parts})
    template = {"spec": JOB_SPEC | {"beams": 1}}
    return parse.schedule({"metadata": ABOUT, "spec": schedule_spec(template=template) | parts})


def served_kinds():
    """The definition of each kind with the new field `extra`, and that of schedules with one more in its template."""
    extra = {"extra": {"type": "integer", "default": 1}}
    template = {"properties": {"spec": SPEC}}
    return {
        "components": {
            "schemas": {
                kind: {
                    "x-kubernetes-group-version-kind": [KIND | {"kind": kind}],
                    "properties": {"spec": {"properties": extra | {"template": template}}},
                }
                for kind in ("LoRARLSweep", "LoRARLSchedule")
            }
        }
    }


@pytest.mark.parametrize("kind", ["LoRARLSweep", "LoRARLSchedule"])
def test_new_defaults_stop_no_sweep_and_no_schedule(kind):
    server = Served(served_kinds())
    found = asyncio.run(ServedSchema(server, server.clock).readable(made(kind, extra=1)))
    assert "extra" not in found.read_spec() and b"beams" not in found.spec
    found.checked()
    # A field that someone has set is not ignored, and what helps is no deletion.
    found = asyncio.run(ServedSchema(server, server.clock).readable(made(kind, extra=2)))
    is_sweep = kind == "LoRARLSweep"
    decision = decide_sweep(found, {}, {}, START) if is_sweep else decide_schedule(found, {}, None, START)
    message = decision.status["conditions"][0]["message"]
    assert "spec.extra: got an unknown key" in message and "upgrade the operator" in message
    assert "delete" not in message and decision.recheck_seconds


def test_trials_with_a_field_of_a_newer_definition_wait_for_the_upgrade():
    """They would be Refused for good, and the new operator could not make them any more."""
    template = sweep_spec()["template"]
    world = Trials(template={"spec": template["spec"] | {"beams": 4}})
    world.settle()
    assert world.phases == ["Waiting"] * 4 and world.status["phase"] == "Pending"
    assert "spec.beams: got an unknown key" in world.trial(0)["message"]
    assert "upgrade the operator" in world.trial(0)["message"]
    world.spec["template"] = template  # The new operator knows the field.
    world.settle()
    assert world.phases == ["Pending", "Pending", "Waiting", "Waiting"]


def test_all_queues_of_a_leader_share_one_schema():
    """Each would read the definitions by itself every few seconds, while objects have unknown fields."""
    package = Path(lorarl_operator.__file__).parent
    made = [path.name for path in package.rglob("*.py") for _ in re.findall(r"\bServedSchema\(", path.read_text())]
    assert made == ["leader.py"]
