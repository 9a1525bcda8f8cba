"""A worker that Ray ends because memory runs out, before the kernel would do so."""

from __future__ import annotations

from run.jobs import Job


def test_a_worker_without_memory_is_told_as_such(job: Job) -> None:
    # With this threshold, Ray's monitor finds too little free memory on any machine.
    job.environment |= {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "2000"}
    ended = job.run()
    assert ended.code == 1, ended
    assert (
        "a worker process was killed because its machine's memory was used up. Lower spec.trainer.tokensPerMicroBatch."
        in ended.stderr
    )
    assert "low on memory" in ended.stderr
    assert ended.left_running == []
    assert "The end of" not in ended.stderr, "what a worker printed last has nothing to do with it"
