"""Where the keys come from that a store's client uses, for what is said when the store refuses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lorarl_api.v1alpha1.stores import STORES

_OF_WORKLOADS = {
    "s3": (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ),
    "gs": (),
    "az": ("AZURE_FEDERATED_TOKEN_FILE",),
}
"""Variables that a cluster or a cloud sets in a pod that has a role."""
_UNSET = ("", "false", "0")


@dataclass(frozen=True)
class KeysOrigin:
    """Where keys come from.

    Attributes:
        keys: what they are, in words: the Secret's keys.
        fix: what to do if the store refuses them, as the beginning of a sentence.
        place: where another key or setting belongs: in the Secret.
        usual: the key that is set in most cases.
    """

    keys: str
    fix: str
    place: str
    usual: str


def origin_of_keys(scheme: str, secret: Mapping[str, str], environment: Mapping[str, str]) -> KeysOrigin:
    """Return where the client of a store takes its keys from: the Secret, else the environment, else the machine."""
    store = STORES[scheme]
    usual, another = store.usual_key, "or name a Secret in credentialsSecret"
    given = "in the Secret" if secret else "in the environment"
    for values, where in ((secret, "the Secret"), (environment, "the environment")):
        if store.unsigned and values.get(store.unsigned, "").lower() not in _UNSET:
            return KeysOrigin(
                f"requests without keys, as {store.unsigned} of {where} has it",
                f"Remove {store.unsigned} from {where}, and set {usual} there, for keys that",
                given,
                usual,
            )
    if any(secret.get(key) for key in store.identities):
        return KeysOrigin("the keys of the Secret", "Check the Secret's keys, and that they", given, usual)
    workload = next((name for name in _OF_WORKLOADS[scheme] if environment.get(name)), None)
    if found := [key for key in store.identities if environment.get(key) and key != workload]:
        names = ", ".join(found)
        fix = f"Check {'this variable' if len(found) == 1 else 'these variables'}, {another}, with keys that"
        return KeysOrigin(f"the keys of the environment ({names})", fix, given, usual)
    if workload:
        keys = f"the role of this pod ({workload} of the environment)"
        fix = "See that this role, or the keys of a Secret that credentialsSecret names,"
        return KeysOrigin(keys, fix, given, usual)
    keys = "this machine's own role or login, since no keys were given"
    return KeysOrigin(keys, f"Set {usual}, {another}, with keys that", given, usual)
