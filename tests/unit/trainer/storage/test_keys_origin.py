"""A store that refuses keys: the hint names where these keys come from, for each store alike."""

from __future__ import annotations

import pytest

from lorarl_api.v1alpha1.stores import OBJECT_STORES, STORES
from lorarl_trainer.storage.keys_origin import origin_of_keys
from lorarl_trainer.storage.retries import Answer

REFUSED = Answer(403, "AccessDenied", "So it is.")


def hint(scheme: str, secret: dict[str, str], environment: dict[str, str]) -> str:
    return REFUSED.hint("team", None, origin_of_keys(scheme, secret, environment))


@pytest.mark.parametrize("scheme", OBJECT_STORES)
def test_the_hint_names_the_secret_only_where_its_keys_were_used(scheme: str) -> None:
    for key in STORES[scheme].identities:
        assert "refuses the keys of the Secret. Check the Secret's keys, and that they may list" in hint(
            scheme, {key: "x"}, {}
        )
        assert "refuses the keys of the Secret" in hint(scheme, {key: "x"}, {key: "y"}), (
            "they come before the environment's"
        )


@pytest.mark.parametrize("secret", [{}, {"HF_TOKEN": "x"}], ids=["none", "of another place"])
@pytest.mark.parametrize("scheme", OBJECT_STORES)
def test_keys_of_the_environment_are_named(scheme: str, secret: dict[str, str]) -> None:
    for key in STORES[scheme].identities:
        told = hint(scheme, secret, {key: "x"})
        if key == "AZURE_FEDERATED_TOKEN_FILE":
            assert "refuses the role of this pod" in told
        else:
            assert f"refuses the keys of the environment ({key}). Check this variable, or name a Secret" in told
        assert "Secret's" not in told


@pytest.mark.parametrize("scheme", OBJECT_STORES)
def test_without_keys_it_is_the_machine_that_was_refused(scheme: str) -> None:
    told = hint(scheme, {}, {})
    assert "refuses this machine's own role or login, since no keys were given." in told
    assert f"Set {STORES[scheme].usual_key}, or name a Secret in credentialsSecret, with keys that may list" in told


@pytest.mark.parametrize("name", ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"])
def test_a_role_of_a_pod_is_named(name: str) -> None:
    told = hint("s3", {}, {name: "x", "AWS_ROLE_ARN": "arn:role"})
    assert (
        f"refuses the role of this pod ({name} of the environment). See that this role, or the keys of a Secret" in told
    )


@pytest.mark.parametrize("scheme", [scheme for scheme in OBJECT_STORES if STORES[scheme].unsigned])
def test_requests_without_keys_are_called_so(scheme: str) -> None:
    name = STORES[scheme].unsigned
    for secret, environment, where in (({name: "true"}, {}, "the Secret"), ({}, {name: "true"}, "the environment")):
        told = hint(scheme, secret, environment)
        assert f"refuses requests without keys, as {name} of {where} has it. Remove {name} from {where}" in told
    assert "without keys, as" not in hint(scheme, {name: "false"}, {})


@pytest.mark.parametrize("scheme", OBJECT_STORES)
def test_a_machine_without_an_identity_is_told_the_store_s_own_key(scheme: str) -> None:
    answer = Answer(None, "", "Error performing GET http://169.254.169.254/latest/api/token - HTTP error")
    told = answer.hint("team", None, origin_of_keys(scheme, {}, {}))
    assert f"set the store's variables ({STORES[scheme].usual_key}, ...)" in told


def test_the_keys_that_say_who_asks_are_keys_of_their_store() -> None:
    for store in STORES.values():
        assert {*store.identities, *filter(None, [store.unsigned])} <= set(store.keys)
