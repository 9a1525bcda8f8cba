"""Stores as they are in life: a folder, and a bucket of a real S3 server with a proxy in front that can misbehave."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from lorarl_trainer.storage import Store, open_store
from support.cluster.tools import tools_or_skip
from support.fault_proxy import FaultProxy, fault_proxy
from support.s3_server import S3Server, s3_server
from support.stores import QUICK, STEADY

_buckets = itertools.count()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with tools_or_skip(), s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def session_proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(s3.url) as proxy:
        yield proxy


@pytest.fixture
def proxy(session_proxy: FaultProxy) -> Iterator[FaultProxy]:
    session_proxy.heal()
    session_proxy.requests.clear()
    yield session_proxy
    session_proxy.heal()


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.make_bucket(f"bucket-{next(_buckets)}")


@pytest.fixture
def s3_store(s3: S3Server, proxy: FaultProxy, bucket: str) -> Store:
    return open_store(f"s3://{bucket}/team/adapters", s3.secret(proxy.url), retries=STEADY)


@pytest.fixture
def quick_store(s3: S3Server, proxy: FaultProxy, bucket: str) -> Store:
    """The same, which loses its patience soon: for what does not pass, and for answers that do not come."""
    return open_store(f"s3://{bucket}/team/adapters", s3.secret(proxy.url), retries=QUICK)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "s3":
        return request.getfixturevalue("s3_store")
    return open_store(f"file://{tmp_path}/store")
