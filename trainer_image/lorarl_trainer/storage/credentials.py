"""Makes an obstore client from a Secret's keys, or from the environment's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lorarl_api.v1alpha1.stores import STORES
from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.keys_origin import origin_of_keys
from lorarl_trainer.storage.uri import StoreUri

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

CLIENTS: Mapping[str, type[S3Store | GCSStore | AzureStore]] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
CREDENTIAL_RETRIES: RetryConfig = {
    "max_retries": 2,
    "backoff": {"init_backoff": timedelta(milliseconds=100), "base": 2},
}


def endpoint_of(uri: StoreUri, secret: Mapping[str, str]) -> str | None:
    """Return the server's address from the secret, else from the environment; None for the cloud's own."""
    keys = STORES[uri.scheme].endpoints
    given = [secret.get(key) for key in keys] + [os.environ.get(key) for key in keys]
    return next((endpoint for endpoint in given if endpoint), None)


def client_config(uri: StoreUri, secret: Mapping[str, str]) -> dict[str, str]:
    """Return the client's configuration from the secret. obstore takes what is missing from the environment.

    Other keys of the secret (HF_TOKEN, ...) are left out.
    """
    config = {key: secret[key] for key in STORES[uri.scheme].keys if secret.get(key)}
    if uri.scheme == "s3" and "AWS_ACCESS_KEY_ID" in config:
        # Otherwise the environment's token, which belongs to another key, would be sent too.
        config.setdefault("AWS_SESSION_TOKEN", "")
    if uri.scheme == "gs":
        # In a Secret these hold the JSON itself; in an environment, the path of a file that has it.
        for key in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"):
            if config.get(key, "").lstrip().startswith("{"):
                config["GOOGLE_SERVICE_ACCOUNT_KEY"] = config.pop(key)
    endpoint = endpoint_of(uri, secret)
    if endpoint and uri.scheme == "s3":
        config.pop("AWS_ENDPOINT_URL_S3", None)
        config["AWS_ENDPOINT_URL"] = endpoint
    return config


def client_for(
    uri: StoreUri, secret: Mapping[str, str], seconds: float, field: str, stall_seconds: float | None = None
) -> ObjectStore:
    """Return an obstore client for the folder `uri` whose requests take at most `seconds`.

    `stall_seconds` limits the wait for the next bytes of an answer. It is not for writing: the clock would run while
    the request is being sent.

    Raises:
        InputError: the keys cannot be used (their values are not shown), or the machine has no CA certificates.
    """
    config: Any = client_config(uri, secret)  # obstore's type has lower-case names; it takes both
    plain_http = (endpoint_of(uri, secret) or "").startswith("http://")
    options: ClientConfig = {"timeout": timedelta(seconds=seconds), "allow_http": plain_http}
    if stall_seconds is not None:
        options["read_timeout"] = timedelta(seconds=stall_seconds)
    prefix = uri.path or None
    try:
        return CLIENTS[uri.scheme](
            uri.bucket, prefix=prefix, config=config, client_options=options, retry_config=CREDENTIAL_RETRIES
        )
    except (BaseError, ValueError) as error:
        if "No CA certificates" in str(error):
            hint = "Install the system's CA certificates (ca-certificates), or set SSL_CERT_FILE to a file with them."
            raise InputError(
                field, f"{uri.text} on a machine without CA certificates", "certificates to verify the store", hint
            ) from None
        names = ", ".join(sorted(config)) or "none"
        reason = (
            "no storage account"
            if "Account must be specified" in str(error)
            else f"keys that the store's client refuses (given: {names})"
        )
        keys = origin_of_keys(uri.scheme, secret, os.environ).keys
        hint = f"Check {keys}. {uri.scheme}:// uses {', '.join(STORES[uri.scheme].keys)}."
        raise InputError(field, f"{uri.text} with {reason}", "keys that fit the store", hint) from None
