"""A job that names a template: attempts are created with its values, and a later change of it reaches none of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from lorarl_api.templates import Template
from lorarl_operator.control.job_templates import with_its_template
from lorarl_operator.decide import parse
from lorarl_operator.decide.decide import decide
from lorarl_operator.decide.decision import Create
from lorarl_operator.decide.models import ANNOTATION_TEMPLATE, Observed
from lorarl_operator.decide.templating import with_template
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.kube.errors import ApiError
from lorarl_operator.manifests.config import config_map
from lorarl_operator.manifests.rayjob import ray_job
from unit.operator.built import head
from unit.operator.observed_world import SETTINGS, START, raw_job, raw_ray_job

POOL = {"cluster": {"env": {"HTTPS_PROXY": "http://proxy:3128"}, "priorityClassName": "low"}, "labels": {"cost": "7"}}
REF = {"templateRef": {"kind": "ClusterLoRARLJobTemplate", "name": "pool"}}


class Server:
    """Templates by their paths, or the error for one, and what a policy says to jobs."""

    def __init__(self, **found: Any) -> None:
        self.found, self.asked = found, []
        self.policy: ApiError | None = None
        self.tried: list[Any] = []

    async def try_merge(self, resource, namespace, name, patch):
        self.tried.append((resource.kind, namespace, name, patch))
        if self.policy:
            raise self.policy

    async def get(self, resource, namespace, name):
        self.asked.append((resource.kind, namespace, name))
        answer = self.found.get(name)
        if isinstance(answer, Exception):
            raise answer
        return None if answer is None else {"spec": answer}


def observed(spec=None, *ray_jobs, status=None, **metadata) -> Observed:
    return Observed(job=parse.job(raw_job(spec, status, **metadata)), ray_jobs=tuple(map(parse.ray_job, ray_jobs)))


def applied(server: Server, seen: Observed, default="") -> Observed:
    return asyncio.run(with_its_template(server, seen, default))


def created(seen: Observed) -> dict[str, Any]:
    """The RayJob that the operator creates for a new job."""
    decision = decide(seen, START, SETTINGS)
    (create,) = (action for action in decision.actions if isinstance(action, Create))
    return create.manifest


def test_an_attempt_has_the_templates_values_and_carries_the_template() -> None:
    server = Server(pool=POOL)
    rayjob = created(applied(server, observed(REF)))
    assert server.asked == [("ClusterLoRARLJobTemplate", None, "pool")]
    assert head(rayjob)["spec"]["priorityClassName"] == "low"
    assert rayjob["metadata"]["labels"]["cost"] == head(rayjob)["metadata"]["labels"]["cost"] == "7"
    assert json.loads(rayjob["metadata"]["annotations"][ANNOTATION_TEMPLATE])["spec"] == POOL


def test_the_trainer_gets_the_values_and_not_the_name() -> None:
    seen = applied(Server(pool={"tracking": {"wandb": {"project": "team"}}}), observed(REF))
    manifest = json.loads(config_map(seen.job)["data"]["job.yaml"])
    assert manifest["spec"]["tracking"] == {"wandb": {"project": "team"}}
    assert "templateRef" not in manifest["spec"]


def test_a_changed_template_changes_no_attempt_that_exists() -> None:
    server = Server(pool=POOL)
    rayjob = raw_ray_job()
    rayjob["metadata"]["annotations"] |= created(applied(server, observed(REF)))["metadata"]["annotations"]
    server = Server(pool={"cluster": {"priorityClassName": "high"}})
    seen = applied(server, observed(REF, rayjob))
    assert checked_spec(seen.job).cluster.priority_class_name == "low"
    assert server.asked == [], "what the attempt carries is enough"
    assert checked_spec(applied(server, observed(REF)).job).cluster.priority_class_name == "high"


def test_an_attempt_from_before_a_default_template_keeps_what_it_has() -> None:
    server = Server(site=POOL)
    seen = observed({}, raw_ray_job())
    assert applied(server, seen, default="site") == seen
    assert server.asked == []
    assert checked_spec(applied(server, observed({}), default="site").job).cluster.priority_class_name == "low"
    assert applied(server, observed({})) == observed({})


def test_the_jobs_own_template_takes_the_place_of_the_default_one() -> None:
    server = Server(site=POOL, mine={"cluster": {"priorityClassName": "high"}})
    seen = applied(server, observed({"templateRef": {"name": "mine"}}), default="site")
    assert checked_spec(seen.job).cluster.priority_class_name == "high"
    assert server.asked == [("LoRARLJobTemplate", "team", "mine")]


@pytest.mark.parametrize(
    ("server", "reason", "message"),
    [
        (Server(), "TemplateMissing", "ClusterLoRARLJobTemplate pool does not exist. Create it, or correct"),
        (
            Server(pool=ApiError("get", 403, "Forbidden", "may not get")),
            "TemplateMissing",
            "cannot be read (may not get). Create it, or correct spec.templateRef. An operator that serves a list of",
        ),
        (
            Server(pool={"locked": ["cluster.image"]}),
            "TemplateForbids",
            'spec.cluster.image: got "mine:1", must keep the value of ClusterLoRARLJobTemplate pool, which locks it. ',
        ),
    ],
)
def test_a_job_that_cannot_have_its_template_waits_and_says_why(server: Server, reason: str, message: str) -> None:
    seen = applied(server, observed(REF | {"cluster": {"image": "mine:1"}}))
    decision = decide(seen, START, SETTINGS)
    assert decision.status is not None
    (running,) = (each for each in decision.status["conditions"] if each["type"] == "Running")
    assert (decision.status["phase"], running["reason"]) == ("Pending", reason)
    assert message in running["message"]
    assert decision.recheck_seconds == SETTINGS.refused_seconds
    assert not [action for action in decision.actions if isinstance(action, Create)]


DENIED = "x is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: not here"


def test_a_policy_sees_the_job_with_the_templates_values() -> None:
    server = Server(pool=POOL)
    applied(server, observed(REF))
    ((kind, namespace, name, patch),) = server.tried
    assert (kind, namespace, name) == ("LoRARLJob", "team", "demo")
    assert patch["metadata"] == {"uid": observed(REF).job.uid, "labels": POOL["labels"], "annotations": {}}
    assert patch["spec"]["cluster"]["priorityClassName"] == "low"
    server.policy = ApiError("patch", 422, "Invalid", DENIED)
    decision = decide(applied(server, observed(REF)), START, SETTINGS)
    assert decision.status is not None
    (running,) = (each for each in decision.status["conditions"] if each["type"] == "Running")
    assert (running["reason"], running["message"]) == (
        "TemplateBreaksPolicy",
        "The job with the values of ClusterLoRARLJobTemplate pool is refused: not here. "
        "Correct the template, or name another in spec.templateRef.",
    )


@pytest.mark.parametrize(
    ("status", "metadata", "pool"),
    [
        ({"phase": "Running"}, {}, POOL),
        ({"phase": "Restarting"}, {"deletionTimestamp": "2026-03-01T11:00:00Z"}, POOL),
        ({"phase": "Pending"}, {}, {"cluster": {"head": {"beams": 1}}}),
    ],
)
def test_no_policy_is_asked_where_no_attempt_may_follow(status, metadata, pool) -> None:
    server = Server(pool=pool)
    applied(server, observed(REF, status=status, **metadata))
    assert server.tried == []


def test_an_unanswered_policy_lets_nothing_pass() -> None:
    server = Server(pool=POOL)
    server.policy = ApiError("patch", 500, "InternalError", "failed calling webhook")
    with pytest.raises(ApiError):
        applied(server, observed(REF, status={"phase": "Restarting"}))
    server.policy = ApiError("patch", 409, "Conflict", "the uid differs")
    assert applied(server, observed(REF)).template_fault is None, "the job is gone, which its watch will tell"


def test_values_that_make_the_job_invalid_are_named() -> None:
    decision = decide(applied(Server(pool={"cluster": {"head": {"beams": 1}}}), observed(REF)), START, SETTINGS)
    assert "spec.cluster.head.beams: got an unknown key" in str(decision.status)


def test_nothing_is_read_for_a_job_that_has_ended() -> None:
    server = Server(pool=ApiError("get", 503, "ServiceUnavailable", "starting"))
    ended = observed(REF, status={"phase": "Succeeded"})
    assert applied(server, ended) == ended
    with pytest.raises(ApiError):
        applied(server, observed(REF))
    deleted = observed(REF, status={"phase": "Failed"}, deletionTimestamp="2026-03-01T11:00:00Z")
    assert applied(Server(pool=POOL), deleted).job.template, "the clean-up needs it"


def test_the_image_that_a_job_began_with_is_kept() -> None:
    given, began = Template("LoRARLJobTemplate", "pool", {"cluster": {"image": "new:2"}}), {"trainerImage": "old:1@x"}
    assert checked_spec(with_template(observed(REF), given).job).cluster.image == "new:2"
    assert checked_spec(with_template(observed(REF, status=began), given).job).cluster.image is None
    own = with_template(observed(REF | {"cluster": {"image": "mine:3"}}, status=began), given)
    assert checked_spec(own.job).cluster.image == "mine:3"


def test_another_template_is_a_change_of_the_waiting_job() -> None:
    job = parse.job(raw_job(REF))
    other = replace(job, spec=json.dumps(job.read_spec() | {"templateRef": {"name": "mine"}}).encode())
    digests = [
        ray_job(one, checked_spec(one), 1, SETTINGS)["metadata"]["annotations"]["lorarl.io/pods"]
        for one in (job, other)
    ]
    assert digests[0] != digests[1]
