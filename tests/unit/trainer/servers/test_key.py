"""Servers that want a key: each request has it, a refusal does not show it, and another key is taken up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lorarl_trainer.errors import InputError, RolloutServerError
from unit.trainer.servers.http_vllm import Vllm
from unit.trainer.servers.test_pool import PROMPTS, Run, run, servers_of, two_versions

SECRET, KEY = "vllm-key", "a-key-of-one-server"


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LORARL_SECRETS_DIR", str(tmp_path))
    (tmp_path / SECRET).mkdir()
    file = tmp_path / SECRET / "OPENAI_API_KEY"
    file.write_text(f"{KEY}\n")
    return file


def with_key(servers: list[Vllm], key: str = KEY) -> list[Vllm]:
    for server in servers:
        server.key = key
    return servers


async def one_version(of: Run) -> None:
    await of.version(1)
    await of.generate(1)


@pytest.mark.usefixtures("key_file")
def test_each_request_has_the_key() -> None:
    with servers_of(2) as both:
        found = run(with_key(both), two_versions, secret=SECRET)
        assert sum(prompt != [1, 2] for one in both for _, prompt in one.generated) == 2 * len(PROMPTS)
        assert not any(server.adapters for server in both)
    assert not found.warnings


@pytest.mark.usefixtures("key_file")
def test_entries_of_netrc_do_not_take_the_place_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with servers_of(1) as servers:
        assert not run(with_key(servers), one_version, secret=SECRET).warnings


@pytest.mark.parametrize("secret", [SECRET, None])
@pytest.mark.usefixtures("key_file")
def test_a_wrong_or_missing_key_stops_the_run_at_its_start(secret: str | None) -> None:
    with servers_of(2) as both:
        both[0].key = "another-key"
        with pytest.raises(RolloutServerError) as stopped:
            run(both, one_version, secret=secret, proof=None)
        said = str(stopped.value)
        assert both[0].url in said and both[1].url not in said and not both[0].generated
    fix = "It refuses the key of spec.rollout.credentialsSecret" if secret else "It wants a key"
    assert fix in said and "OPENAI_API_KEY" in said and KEY not in said


@pytest.mark.usefixtures("key_file")
def test_a_server_that_revokes_the_key_leaves_its_requests_to_others() -> None:
    with servers_of(2) as (revoking, other):

        def revoke(number: int) -> None:
            if number == 5:
                revoking.key = "another-key"

        revoking.before = revoke
        found = run(with_key([revoking, other]), one_version, secret=SECRET)
        assert sum(prompt != [1, 2] for _, prompt in other.generated) >= len(PROMPTS) - 5
    [warning] = found.warnings
    assert revoking.url in warning and "spec.rollout.credentialsSecret" in warning
    assert KEY not in warning and "another-key" not in warning and "Bearer ***" in warning


def test_a_key_that_the_secret_has_later_is_taken_up(key_file: Path) -> None:
    """The server changes first, as when the kubelet takes a minute to mount the Secret again."""
    with servers_of(1) as [server]:

        async def rotate(of: Run) -> None:
            await of.version(1)
            server.key = "the-next-key"
            waiting = asyncio.create_task(of.generate(1))
            while not of.warnings:
                await asyncio.sleep(0.01)
            key_file.write_text("the-next-key")
            await waiting

        found = run(with_key([server]), rotate, secret=SECRET)
    assert "serves again" in found.warnings[-1] and len(found.warnings) == 2


def test_a_key_that_the_secret_already_has_is_used_without_a_warning(key_file: Path) -> None:
    with servers_of(1) as [server]:

        async def rotate(of: Run) -> None:
            await of.version(1)
            key_file.write_text("the-next-key")
            server.key = "the-next-key"
            await of.generate(1)

        assert not run(with_key([server]), rotate, secret=SECRET).warnings


@pytest.mark.usefixtures("key_file")
def test_a_run_without_a_server_that_takes_the_key_stops_with_the_reason() -> None:
    with servers_of(1) as [server]:

        async def revoke(of: Run) -> None:
            await of.version(1)
            server.key = "another-key"
            await of.generate(1)

        with pytest.raises(RolloutServerError, match=r"refuses the key of spec\.rollout\.credentialsSecret") as stopped:
            run(with_key([server]), revoke, seconds=2.0, secret=SECRET)
    assert KEY not in str(stopped.value)


@pytest.mark.parametrize("text", ["", "two words", "línea", "two\nlines"])
def test_a_value_that_is_no_key_is_refused_without_showing_it(key_file: Path, text: str) -> None:
    key_file.write_text(text)
    with servers_of(1) as servers, pytest.raises(InputError, match=r"spec\.rollout\.credentialsSecret: got") as refused:
        run(servers, one_version, secret=SECRET)
    assert not text or text not in str(refused.value)
    key_file.rename(key_file.with_name("TOKEN"))
    with servers_of(1) as servers, pytest.raises(InputError, match="without the key OPENAI_API_KEY"):
        run(servers, one_version, secret=SECRET)
