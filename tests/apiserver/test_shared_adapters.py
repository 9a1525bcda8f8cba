"""The list of adapters of a KServe service, which the operator shares with others: nothing of theirs is touched."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiohttp import web

from support.cluster import kserve
from support.cluster.api_proxy import Call, api_proxy
from support.cluster.client import Api, ApiError, Object
from support.cluster.control_plane import Cluster, control_plane
from support.cluster.crds import install_crds
from support.cluster.kserve import KIND, adapters, crashes, names, rolls
from support.cluster.kserve_jobs import SERVICE, THEIRS, job, namespace, service, wait_names
from support.cluster.operator import SYSTEM, grant_target, operator, prepare, wait_leader
from support.cluster.processes import find_share, until
from support.cluster.publishing import (
    ACCOUNT,
    install,
    leading,
    reports,
    wait_state,
)
from support.cluster.tools import tools_or_skip
from support.published import model


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server with our kinds, KubeRay's and KServe's, and the operator's rights on them."""
    with tools_or_skip():
        find_share("ray-operator")
        with control_plane(tmp_path_factory.mktemp("shared-adapters")) as running:
            install(running)
            install_crds(running, kserve.CRD)
            prepare(running, account=ACCOUNT)
            grant_target(running, "kserve", ACCOUNT)
            yield running


def test_the_list_is_one_value_for_server_side_apply(served: Cluster) -> None:
    """Why the operator does not apply its entries: each that does removes those of the others."""
    where = namespace(served, "atomic")
    service(served.api, where)
    about = {"apiVersion": SERVICE["apiVersion"], "kind": KIND, "metadata": {"name": "qwen", "namespace": where}}

    def mine(name: str) -> Object:
        return about | {"spec": {"model": {"lora": {"adapters": [THEIRS | {"name": name}]}}}}

    served.api.apply(mine("one"), manager="one")
    served.api.apply(mine("two"), manager="two")
    assert names(served.api, where) == {"two"}


def test_what_others_write_at_the_same_moment_is_kept(served: Cluster) -> None:
    where, api, met = namespace(served, "busy"), served.api, []
    service(api, where)

    async def between(call: Call) -> web.StreamResponse:
        if call.writes and "llminferenceservices" in call.path and len(met) < 3:
            met.append(THEIRS | {"name": f"theirs-{len(met)}"})
            api.patch(KIND, "qwen", {"spec": {"model": {"lora": {"adapters": list(met)}}}}, where)
        return await call.forward()

    with api_proxy(served) as proxy:
        proxy.intercept = between
        prepare(served, account=ACCOUNT)
        kubeconfig = proxy.kubeconfig(served, "busy", served.service_account_token(SYSTEM, ACCOUNT))
        with operator(served, kubeconfig, "busy") as one:
            wait_leader(one)
            api.create(job(where))
            reports(served, where, 10, 0.6)
            wait_names(served, where, {"theirs-0", "theirs-1", "theirs-2", model(10)})
            assert adapters(api, where)[:3] == met


class Others:
    """People who change a service's list beside the operator, delete it and create it again."""

    def __init__(self, api: Api, where: str, seed: int) -> None:
        self.api, self.where, self._random = api, where, random.Random(seed)
        self.theirs: list[Object] = []

    def move(self) -> None:
        move = self._random.choice([self.add, self.remove, self.roll, self.crash, self.recreate])
        move()

    def add(self) -> None:
        self.theirs.insert(0, THEIRS | {"name": f"theirs-{self._random.randrange(10**9)}"})
        self._edit(lambda before: [self.theirs[0], *before])

    def remove(self) -> None:
        if self.theirs:
            gone = self.theirs.pop()
            self._edit(lambda before: [one for one in before if one != gone])

    def roll(self) -> None:
        rolls(self.api, self.where)

    def crash(self) -> None:
        crashes(self.api, self.where, "it does not fit")

    def recreate(self) -> None:
        self.api.delete(KIND, "qwen", self.where)
        self.theirs.clear()
        service(self.api, self.where)

    def _edit(self, change: Callable[[list[Object]], list[Object]]) -> None:
        done = False
        while not done:
            found = self.api.get(KIND, "qwen", self.where)
            assert found is not None
            after = change(list(found["spec"]["model"].get("lora", {}).get("adapters") or []))
            about = {"resourceVersion": found["metadata"]["resourceVersion"]}
            patch = {"metadata": about, "spec": {"model": {"lora": {"adapters": after}}}}
            try:
                self.api.patch(KIND, "qwen", patch, self.where)
                done = True
            except ApiError as error:
                assert error.status == 409, error


@pytest.mark.parametrize("moves", [6, pytest.param(80, marks=pytest.mark.long)])
def test_no_history_of_a_shared_list_loses_what_others_wrote(served: Cluster, moves: int) -> None:
    """Better versions are reported meanwhile, and what others write comes at any moment."""
    where, api = namespace(served, f"history-{moves}"), served.api
    service(api, where, {"name": "first", "uri": "hf://others/first"})
    others = Others(api, where, seed=moves)
    others.recreate()
    with leading(served, f"history-{moves}"):
        api.create(job(where))
        for step in range(1, moves + 1):
            if step % 2:
                reports(served, where, step, 0.5 + step / 1000)
            others.move()
            listed = [one for one in adapters(api, where) if one["name"].startswith("theirs")]
            assert listed == others.theirs
        reports(served, where, 999, 0.99)

        wanted, rolled = {*(one["name"] for one in others.theirs), model(999)}, list[Object]()

        def settled() -> bool:
            nonlocal rolled
            if (listed := adapters(api, where)) != rolled:
                others.roll()
                rolled = listed
            return {one["name"] for one in listed} == wanted

        until(120, "the last version alone is left of ours", settled)
        wait_state(served, where, "Serving", "Serving", serves=model(999))


def test_the_charts_policy_keeps_the_operator_from_all_but_its_own_entries(served: Cluster) -> None:
    where, api = namespace(served, "policy"), served.api
    service(api, where, THEIRS)
    closed = SERVICE | {"metadata": {"name": "closed", "namespace": where}}
    api.create(closed)
    stolen = served.api_as(served.service_account_token(SYSTEM, ACCOUNT))
    ours = {"name": "ours", "uri": "s3://team/a"}
    record = {"lorarl.io/adapters": '{"ours": {"entry": "sums"}}'}

    def patch(listed: list[Any] | None = None, name: str = "qwen", **others: Any) -> Object:
        lora: Object = {"model": {"lora": {"adapters": listed}}} if listed is not None else {}
        about = {"annotations": record, **others.pop("metadata", {})}
        return stolen.patch(KIND, name, {"metadata": about, "spec": {**lora, **others}}, where)

    asked: list[tuple[Callable[[], object], str]] = [
        (lambda: patch([ours], "closed"), "may write only objects that a LoRARLJob owns"),
        (lambda: patch([ours], "closed", metadata={"labels": SERVICE["metadata"]["labels"]}), "may write only objects"),
        (lambda: patch([ours]), "may change only its own entries"),
        (lambda: patch([THEIRS | {"uri": "s3://team/a"}]), "may change only its own entries"),
        (lambda: patch([THEIRS, {"name": "more", "uri": "s3://team/a"}]), "may change only its own entries"),
        (lambda: patch([THEIRS, ours], replicas=5), "may change only its own entries"),
        (lambda: patch([THEIRS, ours], template={"containers": []}), "may change only its own entries"),
        (lambda: patch(model={"uri": "s3://team/base"}), "may change only its own entries"),
        (lambda: patch(model={"lora": {"maxRank": 1}}), "may change only its own entries"),
        (lambda: patch(metadata={"labels": {"more": "yes"}}), "may change only its own entries"),
        (lambda: patch(metadata={"annotations": {"more": "yes"}}), "may change only its own entries"),
        (lambda: patch(metadata={"finalizers": ["example.com/mine"]}), "may change only its own entries"),
    ]
    for one, words in asked:
        with pytest.raises(ApiError, match=words):
            one()
    patch([THEIRS, ours])
    patch([THEIRS, ours | {"uri": "s3://team/b"}])
    assert patch([THEIRS])["spec"]["model"]["lora"]["adapters"] == [THEIRS]
    stolen.patch(KIND, "qwen", {"metadata": {"annotations": None}}, where)
