"""`lorarl serve --tinker`: from the name of a base model to a service that answers, and its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJob
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.inputs import load_vocabulary
from lorarl_trainer.launch.local import only_run_in, require_gpu_packages, require_large_files
from lorarl_trainer.launch.room import LOGS
from lorarl_trainer.planning.verdict import judge
from lorarl_trainer.storage import open_store
from lorarl_trainer.storage.base_model import base_model_name, fetch_base_config, fetch_base_model
from lorarl_trainer.storage.secrets import read_secrets, secret_of
from lorarl_trainer.tinker.server import Address, Server
from lorarl_trainer.tinker.service import ALPHA, Served, Service
from lorarl_trainer.workers.checkpoints import CheckpointingWorker
from lorarl_trainer.workers.worker import Rank

_MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: tinker}}
spec:
  model: {{uri: "{uri}"}}
  adapter: {{rank: {rank}, alpha: {alpha}, targetModules: [all-linear]}}
  algorithm: {{type: grpo, groupSize: 8}}
  reward: {{type: exact}}
  data: {{train: {{uri: "file:none.jsonl"}}}}
  rollout: {{promptsPerStep: 16, maxPromptTokens: {prompt}, maxResponseTokens: {completion}}}
  trainer: {{steps: 1, learningRate: 1.0e-4}}
  checkpoint: {{uri: "file://{saved}"}}
  cluster: {{gpusPerNode: {gpus}}}
"""
READS = (
    *(f"spec.{part}" for part in ("adapter", "checkpoint", "cluster.gpusPerNode", "model")),
    *(f"spec.data.{part}" for part in ("chatTemplateFile", "credentialsSecret")),
    *(f"spec.rollout.{part}" for part in ("promptsPerStep", "maxPromptTokens", "maxResponseTokens")),
    *(f"spec.rollout.{part}" for part in ("adapterSync", "verifySync", "offload", "gpuMemoryFraction", "servers")),
    "spec.rollout.separateEngines",
    *(f"spec.trainer.{part}" for part in ("backend", "precision", "recompute", "seed", "tokensPerMicroBatch")),
)
"""What trainer and engine have of a job. All else is the clients' own."""
SAVED = "saved"
"""The folder of saved weights in that of the service."""
_ALONE = Rank(rank=0, world_size=1, local_rank=0, master_address=None, master_port=None)


def job_of(
    uri: str, out_dir: Path, *, rank: int, longest_prompt: int, longest_completion: int, gpus: int, overrides: list[str]
) -> LoRARLJob:
    """Return the job whose trainer and engine serve.

    Raises:
        InputError: it needs more than one GPU.
        ManifestError: an override cannot be used.
    """
    saved = (out_dir / SAVED).absolute()
    text = _MANIFEST.format(
        uri=uri, rank=rank, alpha=ALPHA, prompt=longest_prompt, completion=longest_completion, saved=saved, gpus=gpus
    )
    job = load_job(text, overrides, READS)
    if job.spec.world_size > 1:
        raise InputError(
            "spec.cluster", f"{job.spec.world_size} GPUs", "one for `lorarl serve`", "Use one GPU for each service."
        )
    for field, elsewhere in (("servers", job.spec.servers), ("separateEngines", job.spec.separate_engines)):
        if elsewhere:
            none = "none: the service generates itself"
            raise InputError(f"--set spec.rollout.{field}", field, none, "Remove the option.")
    if job.spec.adapter.rank != rank or job.spec.adapter.alpha != ALPHA:
        raise InputError("--set spec.adapter", "another rank or alpha", f"alpha {ALPHA}", "Use --rank for the rank.")
    return job


def serve(
    job: LoRARLJob, model: str, out_dir: Path, address: Address, say: Callable[[str], None], *, adapters: int
) -> None:
    """Start trainer and engine and answer clients until Ctrl-C or SIGTERM.

    Args:
        job: of `job_of`.
        model: what the user calls the base model.
        out_dir: the service's folder.
        address: where it listens.
        say: takes lines for the user. Libraries print into a log.
        adapters: at most so many are sampled from together, as far as the plan has room for them; others take turns.

    Raises:
        LorarlError: model, store or address cannot be used.
    """
    address.require_key()
    require_gpu_packages(job)
    require_large_files()
    with only_run_in(out_dir):
        service = _started(job, model, out_dir, say, adapters)
        asyncio.run(_answer(service, address, say))


def _started(
    job: LoRARLJob, model: str, out_dir: Path, say: Callable[[str], None], adapters: int
) -> Callable[[], Service]:
    """Load model, trainer and engine; return what makes the service in the server's loop."""
    spec, secrets = job.spec, read_secrets(job.spec)
    store = open_store(
        spec.checkpoint.uri, secret_of(secrets, spec.checkpoint.credentials_secret), field="spec.checkpoint.uri"
    )
    judge(spec, fetch_base_config(spec, secrets))
    say(f"loading {model}")
    vocabulary, base = load_vocabulary(spec, secrets), fetch_base_model(spec, secrets)
    log = out_dir / LOGS / "worker-0.log"
    say(f"starting trainer and engine; what they print is in {log}")
    worker = CheckpointingWorker(spec, _ALONE, log)
    built = worker.start(base.folder, vocabulary.stop_token_ids, None, adapters=adapters)
    for line in (built.memory, *built.warnings):
        say(line)

    from lorarl_trainer.tinker.bank import Bank
    from lorarl_trainer.tinker.saved import SavedWeights

    name = base_model_name(spec)
    served = Served(
        names=tuple(dict.fromkeys((model, name, spec.model.uri))),
        rank=spec.adapter.rank,
        seed=spec.trainer.seed,
        vocabulary_size=vocabulary.size or len(vocabulary.tokenizer),
        longest_prompt=spec.rollout.max_prompt_tokens,
        longest_completion=spec.rollout.max_response_tokens,
    )
    return lambda: Service(Bank(worker), SavedWeights(store, worker, spec, base.fingerprint), served)


async def _answer(make: Callable[[], Service], address: Address, say: Callable[[str], None]) -> None:
    service, asked = make(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, asked.set)
    service.compute.start()
    server = Server(service, address)
    async with server.serving():
        say(f"ready: export TINKER_BASE_URL={server.url} TINKER_API_KEY={address.key or 'tml-none'}")
        await asked.wait()
        say("ending; weights that were saved stay")
        await asyncio.to_thread(service.compute.stop)
