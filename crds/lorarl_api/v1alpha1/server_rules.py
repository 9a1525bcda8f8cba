"""The rules of `rollout.servers`: how they are named, and what cannot work with them."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule

_UNLESS = "!has(self.servers)"


def _of_servers(field: str, unset: str = "", must: str = "not be set") -> Rule:
    return Rule(
        field,
        f"has(self.servers) || {unset or f'!has(self.{field})'}",
        f"{must} without rollout.servers",
        f"Remove rollout.{field}, or name the servers in rollout.servers.",
    )


def _of_engines(field: str, cel: str, usual: str, why: str) -> Rule:
    """A setting that only engines in the workers honour."""
    return Rule(field, f"{_UNLESS} || {cel}", f"be {usual} with rollout.servers: {why}", f"Remove rollout.{field}.")


_OF_THE_SERVER = "a server has been started with its own"
_KEPT = "the trainer has to know how many tokens were possible, which a server does not say"

SERVER_RULES: tuple[Rule, ...] = (
    Rule(
        "servers",
        f"{_UNLESS} || self.servers.all(url, url.matches(r'^https?://[^/]+(/v1)?/?$'))",
        "be addresses of vLLM's servers that start with http:// or https://",
        "Write each as http://HOST:PORT.",
    ),
    Rule(
        "servers",
        f"{_UNLESS} || self.servers.all(url, !url.contains('@'))",
        "not contain credentials",
        "Remove them from the addresses, and renew them. A key belongs into the Secret of rollout.credentialsSecret.",
    ),
    Rule(
        "servers",
        f"{_UNLESS} || self.servers.all(url, self.servers.exists_one(other, other == url))",
        "differ from each other",
        "Name each server once.",
    ),
    Rule(
        "serverFolder",
        "!has(self.serverFolder) || self.serverFolder.startsWith('/')",
        "be an absolute path, since servers have their own working directory",
        "Write it as /FOLDER.",
    ),
    _of_servers("serverFolder"),
    _of_servers("credentialsSecret"),
    _of_servers("serverTimeoutSeconds"),
    _of_servers("maxStaleness", "self.maxStaleness == 0", "be 0, the default,"),
    Rule(
        "partial",
        f"{_UNLESS} || !has(self.partial)",
        "be absent with rollout.servers, which take no answer up again with its random numbers",
        "Remove rollout.partial.",
    ),
    _of_engines("topP", "self.topP == 1.0", "1, the default,", _KEPT),
    _of_engines("topK", "!has(self.topK)", "absent", _KEPT),
    _of_engines("minP", "self.minP == 0.0", "0, the default,", _KEPT),
    _of_engines(
        "adapterSync", "self.adapterSync == 'tensor'", "absent", "adapters reach them through rollout.serverFolder"
    ),
    _of_engines("verifySync", "!self.verifySync", "false, the default,", "no one sees what a server has in memory"),
    _of_engines("offload", "!has(self.offload)", "absent", "they share no GPU with the trainer"),
    _of_engines("gpuMemoryFraction", "!has(self.gpuMemoryFraction)", "absent", _OF_THE_SERVER),
    _of_engines("tensorParallelSize", "!has(self.tensorParallelSize)", "absent", _OF_THE_SERVER),
)


def server_job_rules() -> Iterator[Rule]:
    """Yield what the other parts of a job may not ask for with servers."""
    unless = "!has(self.rollout.servers)"
    yield Rule(
        "model.quantization",
        f"{unless} || self.model.quantization == 'none'",
        "be none with rollout.servers, whose quantized weights would not be the trainer's",
        "Remove model.quantization, or rollout.servers.",
    )
    yield Rule(
        "trainer.routerReplay",
        f"{unless} || !has(self.trainer.routerReplay) || !self.trainer.routerReplay",
        "be absent or false with rollout.servers, which do not say which experts a token was sent to",
        "Remove trainer.routerReplay.",
    )


SERVER_CLUSTER_RULES: tuple[Rule, ...] = (
    # As for checkpoint.uri, the operator looks at the volumes.
    Rule(
        "rollout.serverFolder",
        "!has(self.rollout.servers) || has(self.rollout.serverFolder) && "
        "has(self.cluster.podTemplateOverrides.worker) && has(self.cluster.podTemplateOverrides.worker.spec)",
        "be set in a cluster if there are rollout.servers, to a folder on a volume that podTemplateOverrides mounts in "
        "the workers, because the servers have to see the workers' files",
        "Mount a volume that the servers have under the same path too, and set rollout.serverFolder to a folder on it.",
    ),
)
