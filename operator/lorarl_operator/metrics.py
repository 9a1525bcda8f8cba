"""The operator's own metrics. `jobs_metrics.py` has those of the jobs."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

disable_created_metrics()  # type: ignore[no-untyped-call]  # They would be a second, unused series per counter.

API_WRITES = Counter(
    "lorarl_operator_api_writes_total", "Writes to the API server, by answer.", ["verb", "resource", "code"]
)
RECONCILE_SECONDS = Histogram(
    "lorarl_operator_reconcile_seconds",
    "Duration of the reconciliation of a job, with its writes.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
QUEUE_DEPTH = Gauge("lorarl_operator_queue_depth", "Jobs that wait for a free worker.")
ERRORS = Counter("lorarl_operator_errors_total", "Reconciliations that failed and are repeated, by cause.", ["cause"])
LEADER = Gauge("lorarl_operator_leader", "1 if this replica holds the lease.")
WATCH_EVENTS = Counter("lorarl_operator_watch_events_total", "Changes that the watches reported.", ["resource"])
WATCHES = Gauge("lorarl_operator_watches", "Watches that are running.")
NAMESPACES_UNLISTED = Gauge("lorarl_operator_namespaces_unlisted", "Namespaces that cannot be listed.")
AUDIT_CORRECTIONS = Counter(
    "lorarl_operator_audit_corrections_total", "Changes that a watch missed and a resync found.", ["resource"]
)
