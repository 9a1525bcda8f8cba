from __future__ import annotations

from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage import open_store, parse_uri, redact


@pytest.mark.parametrize(
    ("uri", "scheme", "bucket", "path", "text"),
    [
        ("s3://team/adapters/", "s3", "team", "adapters", "s3://team/adapters"),
        ("s3://team", "s3", "team", "", "s3://team"),
        ("gs://team/a/b", "gs", "team", "a/b", "gs://team/a/b"),
        ("az://container/a", "az", "container", "a", "az://container/a"),
        ("file:///data/out", "file", "", "/data/out", "file:///data/out"),
        ("file:/data/out", "file", "", "/data/out", "file:///data/out"),
    ],
)
def test_a_uri_is_taken_apart(uri: str, scheme: str, bucket: str, path: str, text: str) -> None:
    parsed = parse_uri(uri)
    assert (parsed.scheme, parsed.bucket, parsed.path, parsed.text) == (scheme, bucket, path, text)


def test_a_relative_file_uri_is_resolved_against_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert parse_uri("file:out/a").path == f"{tmp_path}/here/out/a"
    assert parse_uri("file:../out").path == f"{tmp_path}/out"


def test_a_mounted_claim_is_a_folder_with_the_claims_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lorarl_trainer.storage.uri.CLAIMS_FOLDER", str(tmp_path))
    (tmp_path / "lustre").mkdir()
    parsed = parse_uri("pvc://lustre/team/adapters/")
    assert (parsed.path, parsed.text) == (f"{tmp_path}/lustre/team/adapters", "pvc://lustre/team/adapters")
    assert parse_uri("pvc://lustre").path == f"{tmp_path}/lustre"
    store = open_store("pvc://lustre/team/adapters")
    store.put("job/a", b"x")
    assert (tmp_path / "lustre/team/adapters/job/a").read_bytes() == b"x"
    assert store.uri_of("job") == "pvc://lustre/team/adapters/job"
    with pytest.raises(InputError, match=r"spec\.x: got pvc://other/a, which is not mounted, expected"):
        parse_uri("pvc://other/a", "spec.x")


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("pvc://lustre/../other", "without empty parts"),
        ("ftp://host/a", "expected s3://BUCKET/FOLDER"),
        ("/data/out", "expected s3://BUCKET/FOLDER"),
        ("s3:team/a", "Name the bucket"),
        ("s3:///a", "Name the bucket"),
        ("s3://team/a//b", "without empty parts"),
        ("s3://team/../b", "without empty parts"),
        ("file://out/a", "Write file:out/a for a folder relative"),
        ("file:", "Name a folder"),
    ],
)
def test_a_uri_that_cannot_be_used_is_refused_with_the_mend(uri: str, says: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_uri(uri, "spec.checkpoint.uri")
    assert str(refused.value).startswith(f"spec.checkpoint.uri: got {uri}")
    assert says in str(refused.value)


@pytest.mark.parametrize("uri", ["s3://key:hush@team/a", "az://container/a?sv=1&sig=hush", "s3://team/a#hush"])
def test_secrets_in_a_uri_are_refused_and_never_shown(uri: str) -> None:
    with pytest.raises(InputError, match="Put credentials into a Secret") as refused:
        parse_uri(uri)
    assert "hush" not in str(refused.value)
    assert "hush" not in redact(uri)
