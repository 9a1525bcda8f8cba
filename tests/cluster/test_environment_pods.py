"""A job's environment in real pods: one is lost in mid-episode, and one has an image with packages of the user's.

`make cluster` and then this file alone: `pytest -m long tests/cluster/test_environment_pods.py`.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from node import builds
from node.installation import STORE_KEYS, Images, apply, make_room
from node.node import Node
from node.settings import from_environment
from support.cluster.client import is_ready
from support.cluster.kubectl import RealCluster
from support.cluster.processes import until
from support.real_cluster import example
from support.real_cluster.example import GUESS, ROOT
from support.real_cluster.store import Bucket, bucket_of
from support.real_cluster.watched import Watched, watched

pytestmark = pytest.mark.long

TEAM = "games"
LONGEST_SECONDS = 900
PATIENCE_SECONDS = 300.0
STEPS = 20
HOLD, PLAYS = "/tmp/hold", "/tmp/plays"
"""Files of a pod: while the first is there, episodes wait for their next answer, and write the second."""
HELD = f"""

class Held(Guess):
    async def step(self, text: str) -> dict[str, Any]:
        import asyncio
        from pathlib import Path

        while Path("{HOLD}").exists():
            Path("{PLAYS}").touch()
            await asyncio.sleep(0.05)
        return await super().step(text)
"""
IN_REACH = """
import json, os, pathlib
token = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
mounts = [line.split()[1] for line in open("/proc/mounts")]
print(json.dumps({
    "token": token.exists(),
    "mounts": [one for one in mounts if "/secrets" in one or "/rewards" in one or one.startswith("/mnt")],
    "secrets": os.path.exists(os.environ["LORARL_SECRETS_DIR"]),
    "names": sorted(os.environ),
    "values": " ".join(os.environ.values()),
}))
"""
GAMES = "docker.io/lorarl/games:test"
PAGE = (ROOT / "docs/environments.md").read_text()


@pytest.fixture(scope="module")
def bucket(installed: RealCluster, out: Path) -> Iterator[Bucket]:
    with bucket_of(installed, out) as bucket:
        GUESS.upload(bucket)
        make_room(installed, TEAM)
        yield bucket


def alive(cluster: RealCluster, job: str) -> dict[str, bool]:
    """The job's pods that play and are not being deleted: by name, whether each is ready."""
    found = cluster.api.list("Pod", TEAM, f"lorarl.io/job={job},lorarl.io/role=environment")
    return {pod["metadata"]["name"]: is_ready(pod) for pod in found if "deletionTimestamp" not in pod["metadata"]}


def inside(cluster: RealCluster, pod: str, *command: str) -> str:
    return cluster.must("exec", pod, "-n", TEAM, "-c", "ray-environment", "--", *command)


def driver_log(cluster: RealCluster, job: Watched) -> str:
    return cluster.must("logs", job.pod("head")["metadata"]["name"], "-n", TEAM, "-c", "ray-job-submitter", "--tail=-1")


def test_a_pod_that_is_deleted_in_mid_episode_costs_no_step(
    installed: RealCluster, bucket: Bucket, out: Path, tmp_path: Path
) -> None:
    cluster, name = installed, "guess-pods"
    code = tmp_path / "held.py"
    code.write_text((ROOT / "examples/guess/guess.py").read_text() + HELD)
    upload = [sys.executable, "-m", "lorarl_trainer.cli", "upload", str(code), "s3://lorarl/guess"]
    example.run(upload, {**STORE_KEYS, "AWS_ENDPOINT_URL": bucket.url})
    changes = {
        "environment.function": "held:Held",
        "environment.source.uri": "s3://lorarl/guess/held.py",
        "trainer.steps": STEPS,
        "checkpoint.resume": "Never",
        "checkpoint.every": STEPS,
        "data.eval.every": STEPS,
    }
    apply(cluster, GUESS.manifest(name, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, name) as job:
        began = job.now.at
        first = job.until(LONGEST_SECONDS, "a step", lambda seen: seen.step >= 1)
        job.until(PATIENCE_SECONDS, "two pods play", lambda _: sum(alive(cluster, name).values()) == 2)
        lost = min(one for one, ready in alive(cluster, name).items() if ready)
        assert_nothing_in_reach(cluster, lost)

        inside(cluster, lost, "touch", HOLD)
        until(
            PATIENCE_SECONDS,
            "an episode is held",
            lambda: (
                cluster.kubectl("exec", lost, "-n", TEAM, "-c", "ray-environment", "--", "test", "-e", PLAYS).returncode
                == 0
            ),
        )
        struck = job.now
        cluster.must("delete", "pod", lost, "-n", TEAM, "--wait=false")
        job.until(PATIENCE_SECONDS, "its loss is told", lambda _: f"pod {lost} is lost" in driver_log(cluster, job))
        further = job.until(PATIENCE_SECONDS, "the job is further", lambda seen: seen.step > struck.step)
        job.until(PATIENCE_SECONDS, "KubeRay replaces it", lambda _: len(alive(cluster, name).keys() - {lost}) == 2)
        status = job.until(
            LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
        ).status
        seconds = {
            "first step": round(first.at - began, 1),
            "from the deletion to the next step": round(further.at - struck.at, 1),
            "Succeeded": round(job.now.at - began, 1),
        }
    steps = [seen.step for seen in job.history]
    assert steps == sorted(steps), "no step is made again"
    assert job.now.counters == first.counters, json.dumps(status)
    assert status["rayJobName"] == first.status["rayJobName"] and "resumedFromStep" not in status
    rows = [json.loads(line) for line in bucket.read(f"{status['record']}/metrics.jsonl").splitlines()]
    trained = [row for row in rows if "reward_mean" in row]
    assert [row["step"] for row in trained] == list(range(1, STEPS + 1))
    assert all(row["reward_failures"] == 0 for row in trained), "every episode was played to its end"
    scores = [row["eval_score"] for row in rows if "eval_score" in row]
    gain = scores[-1] - scores[0]
    assert gain >= GUESS.least_gain, gain
    files = {path.name for path in bucket.download(status["adapter"]["uri"], tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files
    example.note(out, environment_pods={"seconds": seconds, "gain": gain})
    cluster.must("delete", "lorarljob", name, "-n", TEAM, "--wait")


def assert_nothing_in_reach(cluster: RealCluster, pod: str) -> None:
    """What a program in the pod sees of the job and of the cluster."""
    seen = json.loads(inside(cluster, pod, "python", "-c", IN_REACH))
    assert (seen["token"], seen["secrets"], seen["mounts"]) == (False, False, [])
    assert not [one for one in seen["names"] if one.startswith("AWS_")]
    assert STORE_KEYS["AWS_SECRET_ACCESS_KEY"] not in seen["values"]
    labels = cluster.api.get("Pod", pod, TEAM)["metadata"]["labels"]  # type: ignore[index]
    policies = [one["spec"] for one in cluster.api.list("NetworkPolicy", TEAM)]
    held = [one for one in policies if one["podSelector"]["matchLabels"].items() <= labels.items()]
    assert held and all("Ingress" in one["policyTypes"] for one in held)


@pytest.fixture
def games(own_node: Node, images: Images, tmp_path: Path) -> Iterator[str]:
    """The image of docs/environments.md: the trainer's with a package and a module of the user's."""
    (text,) = (one.partition("```")[0] for one in PAGE.split("```dockerfile\n")[1:])
    ca, index = "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf"  # of this machine
    mounts = f"--mount=type=secret,id=ca,target={ca} --mount=type=secret,id=pip.conf,target={index}"
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(textwrap.dedent(text).replace("RUN ", f"RUN {mounts} export PIP_CERT={ca} && "))
    game = (ROOT / "examples/guess/guess.py").read_text()
    (tmp_path / "games.py").write_text(
        game.replace("from typing", "import gymnasium  # only in this image\nfrom typing")
    )
    settings = from_environment()
    image = builds.Image(GAMES, dockerfile, tmp_path, arguments={"TRAINER": images.trainer})
    builds.build([image], settings.buildkit_socket, settings.logs)
    yield GAMES
    own_node.ctr("images", "rm", GAMES)


def test_an_image_of_the_user_has_what_only_the_environment_needs(
    installed: RealCluster, bucket: Bucket, games: str, out: Path
) -> None:
    cluster, name = installed, "guess-games"
    changes = {
        "environment": {"function": "games:Guess", "maxTurns": 4, "maxTurnTokens": 4},
        "trainer.steps": 2,
        "checkpoint.resume": "Never",
        "data.eval": None,
        "cluster.environments": {"replicas": 1, "image": games, "cpus": "200m", "memory": "2Gi"},
    }
    apply(cluster, GUESS.manifest(name, changes), namespace=TEAM)
    with watched(cluster.api, TEAM, name) as job:
        began = job.now.at
        status = job.until(
            LONGEST_SECONDS, "it has succeeded", lambda seen: seen.status.get("phase") == "Succeeded"
        ).status
        seconds = round(job.now.at - began, 1)
    rows = [json.loads(line) for line in bucket.read(f"{status['record']}/metrics.jsonl").splitlines()]
    trained = [row for row in rows if "reward_mean" in row]
    assert len(trained) == 2 and all(row["reward_failures"] == 0 for row in trained)
    example.note(out, environment_image={"Succeeded": seconds})
    cluster.must("delete", "lorarljob", name, "-n", TEAM, "--wait")
