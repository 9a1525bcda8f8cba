"""The rules of `rollout.servers` and `rollout.separateEngines`: how they are named, and what cannot work with them."""

from __future__ import annotations

from collections.abc import Iterator

from lorarl_api.rules import Rule

_UNLESS = "!has(self.servers)"
_ELSEWHERE = "rollout.separateEngines or rollout.servers"
_HERE = "!has(self.separateEngines) && !has(self.servers)"
"""A condition in CEL: the workers' own engines generate."""


def _of_servers(field: str) -> Rule:
    return Rule(
        field,
        f"has(self.servers) || !has(self.{field})",
        "not be set without rollout.servers",
        f"Remove rollout.{field}, or name the servers in rollout.servers.",
    )


def _of_elsewhere(field: str, unset: str, must: str) -> Rule:
    return Rule(
        field,
        f"!({_HERE}) || {unset}",
        f"{must} without {_ELSEWHERE}",
        f"Remove rollout.{field}, add rollout.separateEngines, or name the servers in rollout.servers.",
    )


def _of_engines(field: str, cel: str, usual: str, why: str) -> Rule:
    """A setting that only engines in the workers honour."""
    return Rule(field, f"{_HERE} || {cel}", f"be {usual} with {_ELSEWHERE}: {why}", f"Remove rollout.{field}.")


_OF_THE_SERVER = "a server has been started with its own, and separateEngines has its own"
_KEPT = "the trainer has to know how many tokens were possible, which vLLM's server does not say"

SERVER_RULES: tuple[Rule, ...] = (
    Rule(
        "separateEngines",
        f"!has(self.separateEngines) || {_UNLESS}",
        "not be set beside rollout.servers, which generate in their place",
        "Remove one of the two.",
    ),
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
    _of_elsewhere("serverTimeoutSeconds", "!has(self.serverTimeoutSeconds)", "not be set"),
    _of_elsewhere("maxStaleness", "self.maxStaleness == 0", "be 0, the default,"),
    Rule(
        "partial",
        f"{_HERE} || !has(self.partial)",
        f"be absent with {_ELSEWHERE}, which take no answer up again with its random numbers",
        "Remove rollout.partial.",
    ),
    _of_engines("topP", "self.topP == 1.0", "1, the default,", _KEPT),
    _of_engines("topK", "!has(self.topK)", "absent", _KEPT),
    _of_engines("minP", "self.minP == 0.0", "0, the default,", _KEPT),
    _of_engines("adapterSync", "self.adapterSync == 'tensor'", "absent", "adapters reach them through files"),
    _of_engines("verifySync", "!self.verifySync", "false, the default,", "no one sees what they have in memory"),
    _of_engines("offload", "!has(self.offload)", "absent", "they share no GPU with the trainer"),
    _of_engines("gpuMemoryFraction", "!has(self.gpuMemoryFraction)", "absent", _OF_THE_SERVER),
    _of_engines("tensorParallelSize", "!has(self.tensorParallelSize)", "absent", _OF_THE_SERVER),
)


def server_job_rules() -> Iterator[Rule]:
    """Yield what the other parts of a job may not ask for where others than the workers generate."""
    here = "!has(self.rollout.separateEngines) && !has(self.rollout.servers)"
    yield Rule(
        "model.quantization",
        f"{here} || self.model.quantization == 'none'",
        f"be none with {_ELSEWHERE}, whose quantized weights would not be the trainer's",
        "Remove model.quantization, or rollout.separateEngines or rollout.servers.",
    )
    yield Rule(
        "trainer.routerReplay",
        f"{here} || !has(self.trainer.routerReplay) || !self.trainer.routerReplay",
        f"be absent or false with {_ELSEWHERE}, which do not say which experts a token was sent to",
        "Remove trainer.routerReplay.",
    )
    yield Rule(
        "rollout.separateEngines.tensorParallelSize",
        "!has(self.rollout.separateEngines) || self.cluster.gpusPerNode > 0 || "
        "self.rollout.separateEngines.tensorParallelSize == 1",
        "be 1 for a CPU job (cluster.gpusPerNode 0)",
        "Remove tensorParallelSize, or set cluster.gpusPerNode.",
    )
    yield Rule(
        "rollout.separateEngines.tensorParallelSize",
        "!has(self.rollout.separateEngines) || !has(self.cluster.gpuClaim) || "
        "self.rollout.separateEngines.tensorParallelSize == self.cluster.gpusPerNode",
        "be the same as cluster.gpusPerNode with cluster.gpuClaim, since all pods with GPUs have the same claim",
        "Set it to cluster.gpusPerNode, or use cluster.gpuResource in place of gpuClaim.",
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
    Rule(
        "cluster.podTemplateOverrides.engine",
        "!has(self.cluster.podTemplateOverrides.engine) || has(self.rollout.separateEngines)",
        "be absent without rollout.separateEngines: the job has no pods for engines",
        "Remove it, or add rollout.separateEngines.",
    ),
    Rule(
        "cluster.podTemplateOverrides.engine",
        "!has(self.rollout.separateEngines) || self.cluster.gpusPerNode == 0 || self.cluster.gpuResource != '' || "
        "has(self.cluster.gpuClaim) || "
        "(has(self.cluster.podTemplateOverrides.engine) && has(self.cluster.podTemplateOverrides.engine.spec))",
        "ask for the GPUs of engines if cluster.gpuResource is empty, as podTemplateOverrides.worker does for the "
        "trainer's",
        "Add podTemplateOverrides.engine with a claim or a resource for its GPUs, or set cluster.gpuResource.",
    ),
)
