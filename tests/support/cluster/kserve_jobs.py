"""The job and the service of docs/publishing.md for KServe, in a namespace of a test."""

from __future__ import annotations

import yaml

from support.cluster.client import Api, Object
from support.cluster.control_plane import Cluster
from support.cluster.kserve import names, rolls
from support.cluster.operator import create
from support.cluster.processes import until
from support.cluster.publishing import PAGE, SECONDS

MANIFEST, FRAGMENT, SERVICE = (yaml.safe_load(one.partition("```")[0]) for one in PAGE.split("```yaml\n")[1:])
ENTRY: Object = FRAGMENT["publish"][0] | {"minimum": 0.5}
THEIRS: Object = {"name": "theirs", "uri": "hf://others/theirs", "framework": "lora"}


def namespace(cluster: Cluster, name: str) -> str:
    create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
    create(cluster, account)
    return name


def job(where: str, *entries: Object) -> Object:
    """The page's job with these entries; it is suspended."""
    about = {"name": "sums", "namespace": where}
    spec = MANIFEST["spec"] | {"suspend": True, "publish": list(entries or [ENTRY])}
    return MANIFEST | {"metadata": about, "spec": spec}


def service(api: Api, where: str, *listed: Object, labels: bool = True) -> Object:
    """The page's service with adapters of others, and its pods."""
    about = SERVICE["metadata"] | {"namespace": where} | ({} if labels else {"labels": {}})
    model_spec = SERVICE["spec"]["model"]
    lora = model_spec["lora"] | ({"adapters": list(listed)} if listed else {})
    made = api.create(SERVICE | {"metadata": about, "spec": SERVICE["spec"] | {"model": model_spec | {"lora": lora}}})
    rolls(api, where)
    return made


def wait_names(cluster: Cluster, where: str, wanted: set[str]) -> None:
    until(SECONDS, f"the list has {sorted(wanted)}", lambda: names(cluster.api, where) == wanted)
