"""Alerts and dashboard use metrics that the operator exports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml
from prometheus_client.metrics import MetricWrapperBase

from lorarl_operator import metrics
from lorarl_operator.control.cache import Cache
from lorarl_operator.control.workqueue import LONGEST_BACKOFF_SECONDS
from lorarl_operator.jobs_metrics import JobsCollector
from support.helm import CHART, of, only, rendered

DASHBOARD = json.loads((CHART / "files/dashboard.json").read_text())
# The options that Grafana needs, by the type of the panel.
KINDS = {"row": set(), "stat": {"reduceOptions"}, "timeseries": {"legend", "tooltip"}, "table": {"showHeader"}}


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def rules() -> list[dict[str, Any]]:
    (group,) = only(rendered({"metrics.prometheusRule.enabled": True}), "PrometheusRule")["spec"]["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]] + [rule["expr"] for rule in rules()]


def kept_labels(expression: str) -> set[str]:
    """The labels that the first `by (...)` of an expression keeps."""
    return set(re.split(r",\s*", " ".join(re.findall(r"by \(([^)]*)\)", expression)[:1])))


def stem(series: str) -> str:
    """The name of the metric that a series belongs to."""
    return re.sub(r"_(sum|count|bucket)$", "", series)


def exported() -> dict[str, set[str]]:
    """The series that the operator exports, and their labels."""
    found: dict[str, set[str]] = {}
    for metric in vars(metrics).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        (family,) = metric.describe()
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        for suffix in suffixes:
            found[family.name + suffix] = set(metric._labelnames) | ({"le"} if suffix == "_bucket" else set())
    for family in JobsCollector(Cache()).describe():
        found[family.name + ("_total" if family.type == "counter" else "")] = set(family._labelnames)
    return found


def test_names_and_labels_follow_prometheus_conventions() -> None:
    known = exported()
    of_a_target = {"job", "instance", "pod", "service", "container", "endpoint"}
    assert {name: labels & of_a_target for name, labels in known.items() if labels & of_a_target} == {}
    gauges = [family.name for family in JobsCollector(Cache()).describe()]
    assert [name for name in gauges if name.endswith("_total")] == [], "a name for counters"


def test_the_docs_table_has_all_exported_metrics() -> None:
    text = (CHART.parents[1] / "docs/operator.md").read_text()
    documented = {}
    for names, labels in re.findall(r"^\| (`lorarl_[^|]*`) \|([^|]*)\|", text, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", names):
            documented[name] = set(re.findall(r"\w+", labels))
    assert documented == {stem(name): labels - {"le"} for name, labels in exported().items()}


def test_each_metric_in_use_is_exported_with_its_labels() -> None:
    known = exported()
    scraped = {"namespace", "service", "pod"}  # Prometheus adds these.
    for expression in expressions():
        names = re.findall(r"\blorarl_\w+", expression)
        assert names, expression
        labels = set().union(*(known[name] for name in names)) | scraped
        used = set(re.findall(r"(\w+)=~?\"", expression))
        used |= {label for clause in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", clause)}
        assert used <= labels, f"{expression}: {used - labels}"


def test_each_metric_is_on_the_dashboard_or_in_an_alert() -> None:
    named = set(re.findall(r"\blorarl_\w+", " ".join(expressions())))
    assert {stem(name) for name in exported()} == {stem(name) for name in named}


def test_legends_use_labels_that_the_expression_keeps() -> None:
    for panel in panels():
        for target in panel["targets"]:
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept_labels(target["expr"]), panel[
                "title"
            ]


def test_grafana_can_load_the_dashboard() -> None:
    assert (DASHBOARD["uid"], DASHBOARD["title"]) == ("lorarl", "lorarl")
    assert "id" not in DASHBOARD, "Grafana assigns ids; an id of ours could replace another dashboard"
    assert "__inputs" not in DASHBOARD, "a provisioned dashboard gets no inputs"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        assert KINDS[panel["type"]] <= set(panel.get("options", {})), panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        assert set(re.findall(r"\$(\w+)", " ".join(target["expr"] for target in panel["targets"]))) <= variables


def test_the_dashboard_is_complete_and_has_the_sidecars_label() -> None:
    made = only(
        rendered({"metrics.dashboard": {"enabled": True, "annotations": {"grafana_folder": "ML"}}}), "ConfigMap"
    )
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert made["metadata"]["annotations"] == {"grafana_folder": "ML"}
    assert json.loads(made["data"]["lorarl.json"]) == DASHBOARD
    assert of(rendered(), "ConfigMap") == []


def test_each_alert_says_what_is_wrong_and_what_to_do() -> None:
    alerts = {rule["alert"]: rule for rule in rules()}
    assert set(alerts) == {
        *(
            "LorarlNoLeader",
            "LorarlReconcileErrors",
            "LorarlWatchDead",
            "LorarlNamespaceUnlisted",
            "LorarlQueueBacklog",
        ),
        *("LorarlJobFailed", "LorarlJobStuck"),
    }
    for name, alert in alerts.items():
        assert alert["labels"]["severity"] in ("warning", "critical"), name
        assert set(alert["annotations"]) == {"summary", "description"}, name
    docs = (CHART.parents[1] / "docs/operator.md").read_text()
    assert [name for name in alerts if f"`{name}`" not in docs] == []
    stuck = only(rendered({"metrics.prometheusRule": {"enabled": True, "stuckAfterMinutes": 7}}), "PrometheusRule")
    assert "[7m:1m]" in yaml.safe_dump(stuck)


def test_an_alerts_text_uses_only_labels_that_its_expression_keeps() -> None:
    """Prometheus writes nothing for a missing label: `LoRARLJob / failed`."""
    alerts = {rule["alert"]: rule for rule in rules()}
    documented = {
        name: set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        for name, rule in alerts.items()
    }
    for name, rule in alerts.items():
        assert documented[name] <= kept_labels(rule["expr"]), name
    assert {"namespace", "job_name"} <= documented["LorarlJobFailed"] & documented["LorarlJobStuck"], (
        "the person on call must see which job it is"
    )


def test_one_job_that_always_fails_is_enough_for_an_alert() -> None:
    (errors,) = (rule for rule in rules() if rule["alert"] == "LorarlReconcileErrors")
    found = re.search(r"\[(\d+)m\]\)\) > (\d+)$", errors["expr"])
    assert found is not None
    assert int(found[1]) * 60 / LONGEST_BACKOFF_SECONDS > int(found[2])


def test_a_replica_that_stands_by_again_raises_no_alert() -> None:
    (dead,) = (rule for rule in rules() if rule["alert"] == "LorarlWatchDead")
    assert re.search(r" and lorarl_operator_leader\{[^}]*\} == 1$", dead["expr"])


def test_the_service_monitor_finds_the_service_and_keeps_the_jobs_labels() -> None:
    made = rendered({"metrics.serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}})
    monitor = only(made, "ServiceMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= only(made, "Service")["metadata"]["labels"].items()
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["honorLabels"] is True, "a job's own namespace and name would be overwritten"
