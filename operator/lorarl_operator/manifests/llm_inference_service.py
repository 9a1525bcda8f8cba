"""KServe's LLMInferenceService: its list of adapters, in which lorarl has its own entries beside those of others.

Read in kserve/kserve at aaac4e29: pkg/apis/serving/v1alpha2/llm_inference_service_types.go and config/crd. The list
has no schema (x-kubernetes-preserve-unknown-fields), so for server-side apply it is one value: who applies an entry
would own those of others too. So the list is written as it was read, plus or minus ours, on condition of the object's
resourceVersion. An annotation records which entries are ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lorarl_api.schedules.manifest import LABEL_SCHEDULE
from lorarl_api.v1alpha1 import LoRARLJobSpec, PublishedVersion, PublishSpec
from lorarl_operator.decide.models import LABEL_JOB, Job
from lorarl_operator.decide.publish_reasons import Publishing
from lorarl_operator.decide.served import Change, Fault, Item, Move, Serve, Step
from lorarl_operator.manifests.llm_service_fit import misfit
from lorarl_operator.manifests.llm_service_pods import ServicePod, pods_by_service
from lorarl_operator.manifests.published import recorded, schedule_label

KIND = "LLMInferenceService"
ACCEPTS = "lorarl.io/accepts-adapters=true"
"""The label by which the owner of an LLMInferenceService lets lorarl change its adapters."""
ANNOTATION_ADAPTERS = "lorarl.io/adapters"
"""By model, the version, and whose it is. A record stays until no pod has the model any more."""

type Raw = Mapping[str, Any]
type Records = dict[str, dict[str, Any]]


class LlmInferenceServices:
    """The LLMInferenceServices of a namespace that accept adapters, as a job sees them."""

    def __init__(self, job: Job, spec: LoRARLJobSpec, objects: Iterable[Raw], pods: Iterable[Raw]) -> None:
        """`objects` have the label `ACCEPTS`; `pods`: what `llm_service_pods.SELECTOR` selects."""
        self._job, self._spec = job, spec
        self._services = {raw["metadata"]["name"]: raw for raw in objects}
        found = pods_by_service(pods)
        self.items: Sequence[Item] = [
            item
            for name, raw in self._services.items()
            for model, record in _records(raw).items()
            if self._is_ours(record)
            for item in [_item(raw, model, record, found.get(name, []))]
        ]

    def place(self, entry: PublishSpec) -> str:
        """The name of the service."""
        assert entry.kserve is not None, "the entry's target is KServe"
        return entry.kserve.service

    def obstacle(self, entry: PublishSpec, version: PublishedVersion) -> Fault | None:
        """Why the service cannot take a version, or would not load it."""
        name = self.place(entry)
        raw = self._services.get(name)
        if raw is None:
            text = (
                f"Namespace {self._job.namespace} has no {KIND} {name} with the label {ACCEPTS}. Create it, or run "
                f"kubectl label llminferenceservices {name} {ACCEPTS} -n {self._job.namespace}."
            )
            return Fault(Publishing.NO_SERVICE, text)
        if "deletionTimestamp" in raw["metadata"]:
            return Fault(Publishing.NO_SERVICE, f"{KIND} {name} is being deleted. Create it again, or name another.")
        record = _records(raw).get(version.model)
        listed = _lists(_adapters(raw), version.model)
        if (listed and record is None) or (record is not None and not self._is_ours(record)):
            text = (
                f"{KIND} {name} has an adapter {version.model} that is not of this job. Remove it, or change the name."
            )
            return Fault(Publishing.NAME_TAKEN, text)
        if why := misfit(self._spec, raw["spec"], len(_adapters(raw)) + (not listed)):
            return Fault(Publishing.DOES_NOT_FIT, f"{KIND} {name} does not fit {version.model}: {why}")
        return None

    def steps(self, moves: Iterable[Move]) -> list[Step]:
        """One write for each service: its pods are replaced only once for all that changes."""
        by_place: dict[str, list[Move]] = {}
        for move in moves:
            place = self.place(move.entry) if isinstance(move, Serve) else move.item.place
            by_place.setdefault(place, []).append(move)
        found = [(name, these, self._patch(name, these)) for name, these in by_place.items()]
        return [Change(_entries(these), KIND, name, patch) for name, these, patch in found if patch]

    def _patch(self, name: str, moves: Iterable[Move]) -> dict[str, Any] | None:
        raw = self._services[name]
        before, records_before = _adapters(raw), _records(raw)
        adapters, records = list(before), dict(records_before)
        for move in moves:
            if isinstance(move, Serve):
                _serve(adapters, move.version)
                records[move.version.model] = self._record(move.entry, move.version)
            elif _lists(adapters, move.item.model):
                adapters = [one for one in adapters if _name(one) != move.item.model]
            else:
                records.pop(move.item.model, None)
        if adapters == before and records == records_before:
            return None
        meta = {key: raw["metadata"][key] for key in ("uid", "resourceVersion")}
        note = json.dumps(records, sort_keys=True) if records else None
        patch: dict[str, Any] = {"metadata": {**meta, "annotations": {ANNOTATION_ADAPTERS: note}}}
        if adapters != before:
            patch["spec"] = {"model": {"lora": {"adapters": adapters or None}}}
        return patch

    def _record(self, entry: PublishSpec, version: PublishedVersion) -> dict[str, Any]:
        of = {LABEL_JOB: self._job.name, **schedule_label(self._job)}
        return {**of, "entry": entry.name, "version": version.model_dump(by_alias=True)}

    def _is_ours(self, record: Raw) -> bool:
        label = schedule_label(self._job)
        if label:
            return record.get(LABEL_SCHEDULE) == label[LABEL_SCHEDULE]
        return record.get(LABEL_JOB) == self._job.name


def _serve(adapters: list[Any], version: PublishedVersion) -> None:
    """Add a version, or correct its URI. All else stays as it is."""
    uri = f"{version.uri}/"
    for number, one in enumerate(adapters):
        if _name(one) == version.model:
            if str(one.get("uri")).rstrip("/") != version.uri:
                adapters[number] = {**one, "uri": uri}
            return
    adapters.append({"name": version.model, "uri": uri})


def _entries(moves: Iterable[Move]) -> tuple[str, ...]:
    names = (one.entry.name if isinstance(one, Serve) else one.item.entry for one in moves)
    return tuple(dict.fromkeys(names))


def _item(raw: Raw, model: str, record: Raw, pods: Sequence[ServicePod]) -> Item:
    """A version in the list, or one that has left it and that pods still have."""
    ready, started = [one for one in pods if one.ready], [one for one in pods if model in one.models]
    having = sum(one.ready for one in started)
    listed = _lists(_adapters(raw), model)
    said = _said(raw)
    trouble = next((one.trouble for one in started if one.trouble), "") or _rejection(said)
    text = f"{having} of {len(ready)} ready pods have it"
    if said.get("status") != "True":
        text += f"; {KIND} {raw['metadata']['name']} is not Ready: {_words(said)}"
    return Item(
        entry=str(record.get("entry", "")),
        target="kserve",
        place=raw["metadata"]["name"],
        model=model,
        version=recorded(json.dumps(record.get("version")), model),
        answers=having > 0,
        ready=listed and 0 < having == len(ready),
        failed=trouble if listed and not having else "",
        text=text,
        going="deletionTimestamp" in raw["metadata"] or (not listed and bool(started)),
    )


def _said(raw: Raw) -> Raw:
    """KServe's condition Ready, if it is about the present list."""
    status = raw.get("status") or {}
    if status.get("observedGeneration") != raw["metadata"].get("generation"):
        return {}
    return next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})


def _words(said: Raw) -> str:
    texts = (str(said[key]) for key in ("reason", "message") if said.get(key))
    return ": ".join(texts) or "KServe has not looked at it yet"


def _rejection(said: Raw) -> str:
    """What KServe cannot do with the object as it is; empty if it does not say that."""
    reason = str(said.get("reason", ""))
    rejected = said.get("status") == "False" and (reason.endswith("Error") or reason == "ConfigNotFound")
    return _words(said) if rejected else ""


def _adapters(raw: Raw) -> list[Any]:
    """Its list, of whatever others have written there: the API server checks nothing of it."""
    found = ((raw["spec"].get("model") or {}).get("lora") or {}).get("adapters")
    return found if isinstance(found, list) else []


def _name(adapter: Any) -> Any:
    return adapter.get("name") if isinstance(adapter, dict) else None


def _lists(adapters: Iterable[Any], model: str) -> bool:
    return any(_name(one) == model for one in adapters)


def _records(raw: Raw) -> Records:
    """What is recorded; empty where it cannot be read, so that what lorarl does not know is not its own."""
    text = (raw["metadata"].get("annotations") or {}).get(ANNOTATION_ADAPTERS) or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {model: one for model, one in found.items() if isinstance(one, dict)} if isinstance(found, dict) else {}
