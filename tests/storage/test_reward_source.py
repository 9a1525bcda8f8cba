"""The code of a reward from a real S3 server: a file, a folder with a wheel, and what is not there."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.errors import InputError
from lorarl_trainer.rewards.source import fetched_sources
from lorarl_trainer.storage import open_store
from support.s3_server import S3Server
from unit.trainer.rewards.test_source import MANIFEST, returns


def spec_of(uri: str) -> LoRARLJobSpec:
    return load_job(MANIFEST, [f"spec.reward.source={{uri: '{uri}', credentialsSecret: keys}}"]).spec


def test_a_file_or_a_folder_of_a_bucket_is_fetched(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    secrets, path = {"keys": s3.secret(s3.url)}, tmp_path / "packed-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("packed/__init__.py", "TWO = 2\n")
    store = open_store(f"s3://{bucket}/code", secrets["keys"])
    store.put("mine.py", returns(1).encode())
    store.put("lib/helpers.py", b"")
    store.upload_file(path, path.name)
    one, whole = spec_of(f"s3://{bucket}/code/mine.py"), spec_of(f"s3://{bucket}/code")
    assert one.secrets == {"spec.reward.source.credentialsSecret": "keys"}
    for spec, files in ((one, ["mine.py"]), (whole, ["lib/helpers.py", "mine.py", "packed/__init__.py"])):
        with fetched_sources(spec, secrets) as (_, sources):
            (folder,) = sources.values()
            assert [str(file.relative_to(folder)) for file in sorted(folder.rglob("*.py"))] == files
    with (
        pytest.raises(InputError, match=r"spec\.reward\.source\.uri: got .*other\.py, where there is nothing"),
        fetched_sources(spec_of(f"s3://{bucket}/code/other.py"), secrets),
    ):
        pass
