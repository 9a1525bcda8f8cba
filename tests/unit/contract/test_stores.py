"""A store is one row, and all that needs to know of it asks the row."""

from __future__ import annotations

import re

import pytest

from lorarl_api.v1alpha1.stores import OBJECT_STORES, STORES, WRITABLE
from lorarl_trainer.progress.usage import download_command
from lorarl_trainer.storage.credentials import CLIENTS, client_config, endpoint_of
from lorarl_trainer.storage.uri import EXPECTED, parse_uri


def test_every_object_store_has_a_client() -> None:
    assert CLIENTS.keys() == set(OBJECT_STORES)


@pytest.mark.parametrize("scheme", STORES)
def test_its_own_uris_fit_its_pattern(scheme: str) -> None:
    place = STORES[scheme]
    for uri in place.folder:
        assert re.fullmatch(place.pattern, uri.lower()) and uri.startswith(scheme)
    assert bool(place.folder) == (scheme in WRITABLE)
    assert set(place.endpoints) <= set(place.keys) and place.usual_key in ("", *place.keys)


@pytest.mark.parametrize("scheme", OBJECT_STORES)
def test_an_object_store_is_known_everywhere(scheme: str) -> None:
    place, uri = STORES[scheme], parse_uri(f"{scheme}://team/a/b")
    assert (uri.bucket, uri.path) == ("team", "a/b")
    assert place.folder[0] in EXPECTED
    assert client_config(uri, {place.usual_key: "x", "OTHER": "y"})[place.usual_key] == "x"
    assert [endpoint_of(uri, {key: "http://here"}) for key in place.endpoints] == ["http://here"] * len(place.endpoints)
    command = download_command(f"{scheme}://team/a/it's", "to")
    assert command is not None and command.endswith(" to") and "{" not in command
