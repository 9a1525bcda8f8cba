"""The cache: news in any order ends in the newest state."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lorarl_operator.control.cache import Cache
from lorarl_operator.decide.models import Maker
from lorarl_operator.decide.pod_ends import exited_container
from lorarl_operator.kube.resources import JOBS, LORARLJOBS, LORARLSCHEDULES, LORARLSWEEPS, PODS, RAYCLUSTERS, RAYJOBS

KEY = ("ns", "job")
OURS = {"app.kubernetes.io/managed-by": "lorarl", "lorarl.io/job": "job"}


def raw(name: str, uid: str, version: int, labels: dict[str, str] | None = None, **rest: Any) -> dict[str, Any]:
    meta = {
        "namespace": "ns",
        "name": name,
        "uid": uid,
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {"metadata": {**meta, "labels": OURS if labels is None else labels}, **rest}


def test_a_sweep_and_a_job_of_one_name_are_two() -> None:
    cache = Cache()
    assert cache.put(LORARLSWEEPS, raw("job", "7", 7, {})) == KEY
    assert cache.job(KEY) is None and cache.observe(KEY) is None and len(cache) == 0
    owner = {"kind": "LoRARLSweep", "name": "job", "uid": "7", "controller": True}
    trial = raw("job", "8", 8, {})
    trial["metadata"]["ownerReferences"] = [owner]
    assert cache.put(LORARLJOBS, trial) == KEY and cache.put(LORARLSWEEPS, raw("job", "7", 6, {})) is None
    job, sweep = cache.job(KEY), cache.sweep(KEY)
    assert job is not None and job.maker == Maker("LoRARLSweep", "job", "7")
    assert sweep is not None and sweep.resource_version == "7" and cache.made_by(sweep) == {"job": job}
    assert cache.vanished(LORARLJOBS, "ns", set(), "9") == [(KEY, "job", "8")]
    assert cache.newest(LORARLSWEEPS, None) == 7 and cache.makers(LORARLSWEEPS, "ns") == cache.makers(
        LORARLSWEEPS, None
    ) == [KEY]
    assert cache.remove(LORARLJOBS, KEY, "job", "8") and cache.sweep(KEY) and cache.job(KEY) is None
    assert cache.remove(LORARLSWEEPS, KEY, "job", "7") and cache.sweep(KEY) is None
    cache.put(LORARLSWEEPS, raw("job", "17", 17, {}))
    cache.forget(LORARLSWEEPS, "ns")
    assert cache.makers(LORARLSWEEPS, None) == []


def test_jobs_are_known_by_their_maker_until_they_are_gone() -> None:
    cache = Cache()
    cache.put(LORARLSCHEDULES, raw("nightly", "7", 7, {}))
    schedule = cache.schedule(("ns", "nightly"))
    assert schedule is not None and cache.made_by(schedule) == {}
    for number, uid in ((1, "7"), (2, "7"), (3, "other")):
        made = raw(f"nightly-{number}", str(number), 10 + number, {})
        made["metadata"]["ownerReferences"] = [
            {"kind": "LoRARLSchedule", "name": "nightly", "uid": uid, "controller": True}
        ]
        cache.put(LORARLJOBS, made)
    assert set(cache.made_by(schedule)) == {"nightly-1", "nightly-2"}
    cache.put(LORARLJOBS, raw("nightly-2", "2b", 20, {}))
    assert set(cache.made_by(schedule)) == {"nightly-1"}, "another job has the name"
    for name, uid in (("nightly-1", "1"), ("nightly-2", "2b"), ("nightly-3", "3")):
        assert cache.remove(LORARLJOBS, ("ns", name), name, uid)
    assert cache.made_by(schedule) == {}
    assert cache.remove(LORARLSCHEDULES, ("ns", "nightly"), "nightly", "7") and cache._made == {}


def test_a_job_with_its_objects() -> None:
    cache = Cache()
    assert cache.put(PODS, raw("p", "3", 3)) == KEY
    assert cache.observe(KEY) is None
    assert cache.put(LORARLJOBS, raw("job", "1", 1, {}, spec={"x": 1})) == KEY
    assert cache.put(RAYJOBS, raw("job-1", "2", 2)) == KEY
    assert cache.put(RAYCLUSTERS, raw("job-1-abc", "4", 4)) == KEY
    assert cache.put(JOBS, raw("lorarl-job-cleanup", "5", 5)) == KEY
    assert cache.put(PODS, raw("other", "9", 9, {"app": "x"})) is None
    observed = cache.observe(KEY)
    assert observed is not None and observed.cleanup is not None
    assert observed.job.read_spec() == {"x": 1}
    names = [one.name for one in (*observed.ray_jobs, *observed.ray_clusters, *observed.pods, observed.cleanup)]
    assert names == ["job-1", "job-1-abc", "p", "lorarl-job-cleanup"]
    assert len(cache) == 1


def test_the_last_deleted_pods_are_kept_until_their_rayjob_is_deleted() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    cache.put(RAYJOBS, raw("job-1", "a", 2))
    for number in range(10):
        cache.put(PODS, raw(f"p{number}", f"p{number}", 10 + number, status={"phase": "Failed", "reason": "Evicted"}))
        cache.remove(PODS, KEY, f"p{number}", f"p{number}")
    observed = cache.observe(KEY)
    assert observed is not None and observed.pods == ()
    assert [(pod.name, pod.reason) for pod in observed.departed] == [
        (f"p{number}", "Evicted") for number in range(2, 10)
    ]
    cache.remove(RAYJOBS, KEY, "job-1", "a")
    observed = cache.observe(KEY)
    assert observed is not None and observed.departed == ()


def test_a_deleted_pod_keeps_the_time_when_its_deletion_was_asked_for() -> None:
    """When its containers have ended, the API server sets another time, as a real kubelet shows."""
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": "2026-01-01T00:00:09Z"}
    status = {"phase": "Failed", "containerStatuses": [{"name": "ray-worker", "state": {"terminated": ended}}]}
    for version, gone_by, grace in ((2, "2026-01-01T00:02:08Z", 120), (3, "2026-01-01T00:00:10Z", 0)):
        pod = raw("p", "2", version, OURS | {"lorarl.io/role": "worker"}, status=status)
        pod["metadata"] |= {"deletionTimestamp": gone_by, "deletionGracePeriodSeconds": grace}
        cache.put(PODS, pod)
    observed = cache.observe(KEY)
    assert observed is not None
    (known,) = observed.pods
    assert known.deletion_asked_at == datetime(2026, 1, 1, 0, 0, 8, tzinfo=UTC)
    assert exited_container(known) is None, "it did not exit by itself"
    assert known.gone_by == datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)


def test_it_remembers_when_kuberay_last_started_any_rayjob() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    other = {**OURS, "lorarl.io/job": "other"}
    for version, begun in ((2, "2026-01-01T00:00:05Z"), (3, "2026-01-01T00:00:09Z"), (4, "2026-01-01T00:00:07Z")):
        cache.put(RAYJOBS, raw(f"other-{version}", f"r{version}", version, other, status={"startTime": begun}))
    cache.put(RAYJOBS, raw("job-1", "a", 5))
    observed = cache.observe(KEY)
    assert observed is not None and observed.kuberay_began == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 100, {}, status={"phase": "Running"}))
    assert cache.put(LORARLJOBS, raw("job", "1", 99, {}, status={"phase": "Starting"})) is None
    assert cache.put(LORARLJOBS, raw("job", "1", 100, {}, status={"phase": "Running"})) is None
    observed = cache.observe(KEY)
    assert observed is not None and observed.job.read_status() == {"phase": "Running"}
    # Versions are numbers: 1000 is newer than 999.
    cache.put(LORARLJOBS, raw("job", "1", 999, {}))
    assert cache.put(LORARLJOBS, raw("job", "1", 1000, {})) == KEY


def test_a_deleted_object_does_not_come_back_but_its_successor_does() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    cache.put(RAYJOBS, raw("job-1", "a", 2))
    assert cache.remove(RAYJOBS, KEY, "job-1", "a")
    assert not cache.remove(RAYJOBS, KEY, "job-1", "a")
    assert cache.put(RAYJOBS, raw("job-1", "a", 50)) is None
    assert cache.put(RAYJOBS, raw("job-1", "b", 60)) == KEY
    assert not cache.remove(RAYJOBS, KEY, "job-1", "a"), "the end of the old one says nothing about the new one"
    observed = cache.observe(KEY)
    assert observed is not None and [one.uid for one in observed.ray_jobs] == ["b"]


def test_a_list_shows_what_has_vanished_but_not_what_is_newer_than_it() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    for name, uid, version in (("kept", "a", 2), ("gone", "b", 3), ("newer", "c", 30)):
        cache.put(PODS, raw(name, uid, version))
    assert cache.vanished(PODS, None, {"a"}, "20") == [(KEY, "gone", "b")]
    assert cache.vanished(PODS, "another", set(), "20") == []
    assert cache.vanished(LORARLJOBS, "ns", set(), "20") == [(KEY, "job", "1")]


def test_a_foreign_object_is_separate_from_the_watched_ones() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    assert cache.put(RAYJOBS, raw("job-1", "x", 2, {})) is None
    assert cache.put(RAYJOBS, raw("job-1", "x", 2, {}), KEY) == KEY
    assert [child.name for _, child in cache.unwatched(KEY)] == ["job-1"]
    assert cache.vanished(RAYJOBS, None, set(), "99") == []
    assert cache.put(RAYJOBS, raw("job-1", "y", 3)) == KEY
    assert cache.unwatched(KEY) == []


def test_nothing_is_left_of_a_deleted_job() -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    cache.put(PODS, raw("p", "2", 2))
    cache.remove(LORARLJOBS, KEY, "job", "1")
    assert cache.observe(KEY) is None
    cache.remove(PODS, KEY, "p", "2")
    assert not cache._entries and not cache._unwatched


@settings(max_examples=200, deadline=None)
@given(
    st.permutations(
        [("put", "a", 1), ("put", "a", 2), ("put", "a", 3), ("gone", "a", 4), ("put", "b", 5), ("put", "b", 6)]
    )
)
def test_news_in_any_order_ends_in_the_newest_state(news: list[tuple[str, str, int]]) -> None:
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 1, {}))
    for what, uid, version in news:
        if what == "put":
            cache.put(PODS, raw("p", uid, version))
        else:
            cache.remove(PODS, KEY, "p", uid)
    observed = cache.observe(KEY)
    assert observed is not None
    assert [(one.uid, one.resource_version) for one in observed.pods] == [("b", "6")]


def test_after_a_restore_of_etcd_older_versions_are_news() -> None:
    """Versions go back, and an object that was deleted after the backup is there again."""
    cache = Cache()
    cache.put(LORARLJOBS, raw("job", "1", 900, {}, spec={"x": 2}))
    cache.put(RAYJOBS, raw("job-1", "2", 901))
    cache.put(RAYJOBS, raw("job-2", "3", 902))
    cache.remove(RAYJOBS, KEY, "job-2", "3")
    assert (cache.newest(LORARLJOBS, None), cache.newest(RAYJOBS, "ns"), cache.newest(RAYJOBS, "other")) == (
        900,
        901,
        0,
    )
    assert cache.put(LORARLJOBS, raw("job", "1", 500, {}, spec={"x": 1})) is None
    for kind in (LORARLJOBS, RAYJOBS):
        cache.forget(kind, "ns")
    assert len(cache) == 0
    assert cache.put(LORARLJOBS, raw("job", "1", 500, {}, spec={"x": 1})) == KEY
    assert cache.put(RAYJOBS, raw("job-2", "3", 400)) == KEY
    observed = cache.observe(KEY)
    assert observed is not None
    assert observed.job.read_spec() == {"x": 1}
    assert [one.name for one in observed.ray_jobs] == ["job-2"]
