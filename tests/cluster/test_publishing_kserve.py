"""A training publishes to a service of KServe behind a gate, and real servers of vLLM answer with its adapters.

`make cluster` and then this file alone: `pytest -m long tests/cluster/test_publishing_kserve.py`. KServe's definition
is its own. Its controller is not there: `support/real_cluster/kserve_stand_in.py` makes the pods that it would.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from node.installation import Images, apply, forwarded, make_room, upgrade_lorarl
from support.cluster import kserve
from support.cluster.client import Object, is_ready
from support.cluster.crds import install_crds
from support.cluster.kserve import KIND
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.cluster.publishing import entry
from support.real_cluster import example
from support.real_cluster.example import ADDITION
from support.real_cluster.kserve_stand_in import PORT, kserve_stands_in, labels
from support.real_cluster.store import Bucket, bucket_of
from support.real_cluster.watched import Seen, watched

pytestmark = pytest.mark.long

TEAM, JOB, SERVICE, BASE = "served", "addition-served", "sums", "tiny"
LONGEST_SECONDS = 900
ASKED = 64
SERVING = ("Serving", "Serving")
MINIMUM = 0.35
"""Above what the base model reaches, and below what ten steps do."""
GATED: Object = {"name": SERVICE, "minimum": MINIMUM, "kserve": {"service": SERVICE}}
CHANGES: Object = {
    "checkpoint.keepBest": {},
    "checkpoint.keepAll": True,
    "checkpoint.every": 10,
    "data.eval.every": 10,
    "publish": [GATED],
}


@pytest.fixture(scope="module")
def bucket(installed: RealCluster, images: Images, out: Path) -> Iterator[Bucket]:
    """The store with base model and data, beside an operator that may publish to KServe, whose definition is there."""
    if not any(group["name"] == "serving.kserve.io" for group in installed.api.request("GET", "/apis")["groups"]):
        install_crds(installed, kserve.CRD)
    upgrade_lorarl(installed, images.operator, images.trainer, values={"publish.kserve.enabled": True})
    with bucket_of(installed, out) as bucket:
        ADDITION.upload(bucket)
        bucket.clear(f"adapters/{JOB}/")  # of an earlier run on this node
        make_room(installed, TEAM)
        yield bucket
    upgrade_lorarl(installed, images.operator, images.trainer)


@pytest.fixture
def service(installed: RealCluster, bucket: Bucket, images: Images) -> Iterator[None]:
    """An LLMInferenceService with the base model that accepts adapters, whose pods are real."""
    installed.api.delete(KIND, SERVICE, TEAM)
    installed.must("delete", "deployments", "--all", "-n", TEAM, "--wait")
    about = {"name": SERVICE, "namespace": TEAM, "labels": {"lorarl.io/accepts-adapters": "true"}}
    lora = {"maxRank": 16, "maxAdapters": 2}
    model = {"uri": "s3://lorarl/addition/base", "name": BASE, "lora": lora}
    kind = {"apiVersion": "serving.kserve.io/v1alpha2", "kind": KIND}
    installed.api.create(kind | {"metadata": about, "spec": {"replicas": 1, "model": model}})
    with kserve_stands_in(installed, TEAM, SERVICE, images.trainer, "s3-keys"):
        yield
    installed.must("delete", "deployments", "--all", "-n", TEAM, "--wait")


@cache
def rows(folder: Path) -> list[Object]:
    return [json.loads(line) for line in (folder / "held_out.jsonl").read_text().splitlines()[:ASKED]]


def accuracy(cluster: RealCluster, model: str, out: Path) -> float:
    """The share of sums that a model has right, as the pods of the service answer."""
    selector = ",".join(f"{key}={value}" for key, value in labels(SERVICE).items())

    def ready() -> str | None:
        pods = [pod for pod in cluster.api.list("Pod", TEAM, selector) if "deletionTimestamp" not in pod["metadata"]]
        names = [
            pod["metadata"]["name"]
            for pod in pods
            if is_ready(pod)
            and (model == BASE or f'"name":"{model}"' in " ".join(pod["spec"]["containers"][0].get("args", ())))
        ]
        return names[0] if names else None

    pod = until(LONGEST_SECONDS, f"a pod answers with {model}", ready)
    asked = rows(ADDITION.folder)
    body = {"model": model, "prompt": [row["prompt"] for row in asked], "max_tokens": 5, "temperature": 0}
    with forwarded(cluster, TEAM, f"pod/{pod}", PORT, out / "forward-kserve.log") as address:
        request = urllib.request.Request(
            f"http://{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LONGEST_SECONDS) as answered:
            choices = json.load(answered)["choices"]
    texts = {choice["index"]: choice["text"].strip() for choice in choices}
    return sum(texts[index] == row["answer"] for index, row in enumerate(asked)) / len(asked)


def state(seen: Seen) -> tuple[str, str]:
    """State and reason of the job's entry."""
    one = entry({"status": seen.status})
    return one.get("state", ""), one.get("reason", "")


def serving(seen: Seen) -> str:
    """The version that answers."""
    return str(entry({"status": seen.status}).get("serving", ""))


def patch(cluster: RealCluster, spec: Object) -> None:
    cluster.api.patch("LoRARLJob", JOB, {"spec": spec}, TEAM)


@pytest.mark.usefixtures("service")
def test_versions_pass_a_gate_answer_and_are_rolled_back(installed: RealCluster, out: Path) -> None:
    cluster, seconds, shares = installed, {}, {}
    shares["base"] = accuracy(cluster, BASE, out)
    apply(cluster, ADDITION.manifest(JOB, CHANGES), namespace=TEAM)
    with watched(cluster.api, TEAM, JOB) as job:
        # It is suspended while servers load the first version, so that this one is served before there is a better one.
        job.until(LONGEST_SECONDS, "a version has passed the gate", lambda seen: state(seen)[1] == "Loading")
        patch(cluster, {"suspend": True})
        began = job.now.at
        answers = job.until(LONGEST_SECONDS, "the first version answers", lambda seen: state(seen) == SERVING)
        first, seconds["first version"] = serving(answers), round(answers.at - began, 1)
        shares["first version"] = accuracy(cluster, first, out)
        patch(cluster, {"suspend": False})
        job.until(LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded")
    with watched(cluster.api, TEAM, JOB) as job:
        began = time.monotonic()
        until(LONGEST_SECONDS, "it alone answers", lambda: state(job.now) == SERVING and serving(job.now) != first)
        best, seconds["better version after the training"] = serving(job.now), round(time.monotonic() - began, 1)
        shares["better version"] = accuracy(cluster, best, out)
        assert kserve.names(cluster.api, TEAM, SERVICE) == {best}

        step = int(first.split("-")[1])
        patch(cluster, {"publish": [GATED | {"step": step}]})
        began = time.monotonic()
        until(LONGEST_SECONDS, "the version before answers again", lambda: state(job.now) == ("Serving", "Pinned"))
        seconds["rolled back"] = round(time.monotonic() - began, 1)
        assert serving(job.now) == first
        until(LONGEST_SECONDS, "it alone is left", lambda: kserve.names(cluster.api, TEAM, SERVICE) == {first})
        shares["rolled back"] = accuracy(cluster, first, out)
    example.note(out, kserve={"seconds": seconds, "accuracy": shares})
    print(seconds, shares)
    assert shares["base"] < MINIMUM < shares["first version"] < shares["better version"]
    assert shares["rolled back"] == shares["first version"]

    cluster.must("delete", "lorarljob", JOB, "-n", TEAM, "--wait")
    assert kserve.names(cluster.api, TEAM, SERVICE) == {first}, "a job that is deleted leaves what is served"
