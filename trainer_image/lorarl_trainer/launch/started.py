"""What a run reports when it starts: what it trains, from where, and on which machines."""

from __future__ import annotations

from pathlib import Path

from lorarl_api.v1alpha1 import LoRARLJob, LoRARLJobSpec
from lorarl_api.yaml_writer import to_yaml
from lorarl_trainer.launch.elsewhere import gpus_in_words
from lorarl_trainer.launch.inputs import EncodedData
from lorarl_trainer.launch.resumption import changes_since_last_start
from lorarl_trainer.lora.config import adapter_kind
from lorarl_trainer.progress import AdapterSummary, DataSummary, HeldOut, RunStarted, this_environment
from lorarl_trainer.protocols.workers import Built, Resumed
from lorarl_trainer.storage.base_model import base_model_name


def on_fewer(asked: LoRARLJobSpec, present: LoRARLJobSpec) -> list[str]:
    """Return a warning if an elastic job has not all of its machines."""
    nodes, all_nodes = present.cluster.nodes, asked.cluster.nodes
    return [f"training on {nodes} of {all_nodes} nodes, with the same batch"] if nodes < all_nodes else []


def run_started(
    job: LoRARLJob,
    present: LoRARLJobSpec,
    folder: Path,
    out_dir: Path,
    built: Built,
    resumed: Resumed,
    rows: EncodedData,
    *,
    chat: bool,
) -> RunStarted:
    """Return the start of a run.

    `present`: the job on the machines that it has. `folder`: its manifest's.
    """
    spec = job.spec
    return RunStarted(
        job=job.name,
        base_model=base_model_name(spec),
        base_revision=spec.model.revision,
        algorithm=spec.algorithm.type,
        adapter=AdapterSummary(
            type=adapter_kind(spec.adapter),
            rank=spec.adapter.rank,
            alpha=spec.adapter.alpha,
            modules=built.modules,
            trainable_parameters=built.trainable_parameters,
            total_parameters=built.total_parameters,
            expert_rank=built.expert_rank,
            shares_outer=spec.adapter.shares_outer,
            chat=chat,
        ),
        total_steps=spec.trainer.steps,
        resumed_from_step=resumed.step or None,
        out_dir=str(out_dir),
        manifest_folder=str(folder.resolve()),
        changes=tuple(changes_since_last_start(out_dir, job)) if resumed.step else (),
        manifest=to_yaml(job.model_dump(by_alias=True, mode="json", exclude_unset=True)),
        data=DataSummary(
            train=spec.data.origin,
            train_rows=len(rows.train),
            held_out=tuple(
                HeldOut(name, source.origin, len(rows.evals[name])) for name, source in spec.data.evaluations
            ),
        ),
        reward=spec.reward_names or None,
        environment=this_environment(gpus_in_words(present, built.gpu)),
    )
