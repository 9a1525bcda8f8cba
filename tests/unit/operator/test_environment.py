"""`cluster.env` and `cluster.trustedCa` reach all containers of a job that run lorarl, also the clean-up."""

from __future__ import annotations

from typing import Any

from lorarl_operator.decide import parse
from lorarl_operator.decide.valid_spec import checked_spec
from lorarl_operator.manifests.cleanup import cleanup_job
from lorarl_operator.manifests.environment import CA_FOLDER
from unit.operator.built import built, head, workers
from unit.operator.observed_world import SETTINGS, START, raw_job

PROXY = "http://proxy.example.com:3128"


def pods(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """The pods of head, workers and clean-up."""
    rayjob, job = built({"cluster": cluster}), parse.job(raw_job({"cluster": cluster}))
    cleanup = cleanup_job(job, checked_spec(job), SETTINGS, START, 60)
    return [each["spec"] for each in (head(rayjob), workers(rayjob)["template"], cleanup["spec"]["template"])]


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod["containers"][0]["env"] if "value" in each}


def test_all_containers_get_the_variables() -> None:
    for pod in pods({"env": {"HF_ENDPOINT": "https://hub.example.com", "NVIDIA_VISIBLE_DEVICES": "all"}}):
        assert env(pod)["HF_ENDPOINT"] == "https://hub.example.com"
        assert env(pod)["NVIDIA_VISIBLE_DEVICES"] == "all"
        assert "NO_PROXY" not in env(pod)


def test_a_proxy_is_not_asked_for_the_api_server() -> None:
    """The trainer writes its status there, through a client that reads HTTPS_PROXY."""
    here = "localhost,127.0.0.1,.svc,$(KUBERNETES_SERVICE_HOST)"
    for given, name, expected in (
        ({}, "NO_PROXY", here),
        ({"NO_PROXY": "10.0.0.0/8,.svc"}, "NO_PROXY", "10.0.0.0/8,.svc,localhost,127.0.0.1,$(KUBERNETES_SERVICE_HOST)"),
        ({"no_proxy": ".example.com"}, "no_proxy", f".example.com,{here}"),
    ):
        for pod in pods({"env": {"https_proxy": PROXY, **given}}):
            assert env(pod)[name] == expected
            assert len([key for key in env(pod) if key.lower() == "no_proxy"]) == 1


def test_a_bundle_is_mounted_and_named_for_all_libraries() -> None:
    for pod in pods({"trustedCa": {"configMap": "cas", "key": "all.pem"}, "env": {"AWS_CA_BUNDLE": "/mine.pem"}}):
        [volume] = [each for each in pod["volumes"] if each["name"] == "trusted-ca"]
        assert volume["configMap"] == {"name": "cas", "items": [{"key": "all.pem", "path": "ca.crt"}]}
        [mount] = [each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "trusted-ca"]
        assert (mount["mountPath"], mount["readOnly"]) == (CA_FOLDER, True)
        assert env(pod)["SSL_CERT_FILE"] == env(pod)["REQUESTS_CA_BUNDLE"] == f"{CA_FOLDER}/ca.crt"
        assert env(pod)["AWS_CA_BUNDLE"] == "/mine.pem", "what the user names wins"
