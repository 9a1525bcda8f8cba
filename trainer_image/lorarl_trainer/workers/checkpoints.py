"""The first worker: a worker like the others that also keeps the job's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from lorarl_trainer.checkpoint.contents import ADAPTER, STATE_FILE_BYTES, TOKENIZER_FILES
from lorarl_trainer.checkpoint.open import open_checkpoints
from lorarl_trainer.lora.chat_template import TEMPLATE_FILE, read_chat_template
from lorarl_trainer.lora.files import QUANTIZATION
from lorarl_trainer.models.supported_models import is_served_merged
from lorarl_trainer.protocols.workers import UPLOAD_SECONDS, CardResults, DriverState, JobCheckpoints, Resumed
from lorarl_trainer.storage.base_model import base_model_commit, base_model_name
from lorarl_trainer.storage.downloads import read_model_config
from lorarl_trainer.storage.secrets import read_named
from lorarl_trainer.threads import begin
from lorarl_trainer.workers.worker import Worker

if TYPE_CHECKING:
    import torch

    from lorarl_trainer.backends.backend import Snapshot
    from lorarl_trainer.checkpoint import Best, Checkpoint, Found, Published
    from lorarl_trainer.workers.state import State


class CheckpointingWorker(Worker):
    """Rank 0. Its checkpoints hold the whole adapter and the whole state, which `Worker.publish` helps to gather."""

    _chat_template: str | None = None  # the job's own

    def open_checkpoints(self, of: JobCheckpoints) -> None:
        """Name the job's checkpoints, and begin to read the newest one while `start` loads the model.

        Raises:
            LorarlError: the store or its Secret cannot be used.
        """
        secrets = read_named(self._spec.checkpoint.credentials_secret, "spec.checkpoint.credentialsSecret")
        self._store = open_checkpoints(self._spec, of.owner, secrets, of.identity, of.provenance.get("evaluations"))
        self._unpublished, self._chat_template = of.unpublished, of.chat_template
        self._metadata = {
            **of.provenance,
            "job": of.owner.name,
        }
        self._fingerprint = of.identity["model.fingerprint"]
        self._published: list[Published] = []
        self._card: tuple[int, Callable[[CardResults], bytes] | None] = (0, None)
        self._found: Found | None = None
        self._read_ahead = (
            begin(self._store.newest_whole, [of.unpublished]) if self._spec.checkpoint.resume == "Auto" else None
        )

    def claim_checkpoints(self) -> Resumed:
        """Take over the job's checkpoints and find the one to resume from. `open_checkpoints` comes before.

        Raises:
            LorarlError: the store cannot be used, or holds another training.
        """
        from lorarl_trainer.checkpoint import BackgroundUploader, other_inputs
        from lorarl_trainer.lora.model_card import model_card

        if self._read_ahead:
            self._read_ahead.result()
            self._read_ahead = None  # otherwise it would keep a whole checkpoint in memory
        store = self._store
        started = store.start(self._spec.checkpoint.resume, [self._unpublished])
        self._found = started.found
        self._uploader = BackgroundUploader(store, self._unpublished, self._published.append)
        if started.found is None:
            return Resumed(0, DriverState(), 0, None, started.warnings)
        checkpoint = started.found.checkpoint
        # The previous run may have ended before it evaluated this step.
        self._card = (
            checkpoint.step,
            partial(model_card, checkpoint.adapter_metadata, checkpoint.adapter_config, chat=self._chats),
        )
        published = store.published(started.found)
        if published is None:  # the previous run could not publish it
            self._uploader.submit(checkpoint)
        return Resumed(
            step=checkpoint.step,
            driver=DriverState(
                checkpoint.state["position"],
                checkpoint.state.get("klCoefficient"),
                checkpoint.state.get("curriculum"),
                checkpoint.state.get("unfinished", ()),
            ),
            adapter_version=checkpoint.adapter_version,
            adapter_uri=f"{started.found.uri}/{ADAPTER}",
            warnings=(
                *started.warnings,
                *self._other_commit(checkpoint),
                *other_inputs(checkpoint.adapter_metadata, self._metadata),
            ),
            published=published,
        )

    def _other_commit(self, checkpoint: Checkpoint) -> list[str]:
        """Say that an hf:// model has a new commit. Its weights are the same: the identity has their fingerprint."""
        was, now = checkpoint.adapter_metadata.get("baseModelCommit"), base_model_commit(self._spec, self._model_path)
        if was is None or now is None or was == now:
            return []
        return [
            f"spec.model.uri: {self._spec.model.uri} is now at commit {now}, and was at {was} when the checkpoint was "
            "made. Weights and config.json look the same; the tokenizer or its chat template may have changed. "
            "A commit as spec.model.revision never changes."
        ]

    def restore(self, state: State | None = None) -> None:
        """Resume from a state, by default that of the checkpoint found, which is then forgotten (collective)."""
        from lorarl_trainer.workers.state import State

        if state is None:
            assert self._found is not None
            checkpoint, self._found = self._found.checkpoint, None
            updates, of_critic = checkpoint.state["updates"], checkpoint.state.get("criticUpdates", 0)
            state = State(checkpoint.state_tensors, updates, of_critic)
        super().restore(state)

    def publish(self, step: int, adapter_version: int, driver: DriverState, results: CardResults) -> None:
        """Take a checkpoint (collective) and hand it to the uploader; training continues while it is published.

        Raises:
            LorarlError: an earlier checkpoint could not be published.
        """
        from lorarl_trainer.checkpoint import build_checkpoint
        from lorarl_trainer.lora.model_card import model_card
        from lorarl_trainer.lora.peft_format import weights_bytes
        from lorarl_trainer.lora.tensor_file import in_parts, write_tensors

        with self._memory_explained("a checkpoint was taken"):
            taken = self.backend.snapshot()
        adapter, config = self.as_peft(taken)
        metadata = {
            **self._metadata,
            **self.about_adapters(self._fingerprint),
            "step": step,
            "adapterVersion": adapter_version,
        }
        card = partial(model_card, metadata, config, chat=self._chats)
        checkpoint = build_checkpoint(
            step,
            adapter_version,
            adapter_config=config,
            adapter_tensors=weights_bytes(adapter),
            metadata=metadata,
            state={
                "updates": taken.updates,
                "position": driver.position,
                **({"criticUpdates": taken.critic_updates} if self.backend.critic else {}),
                **({} if driver.kl_coefficient is None else {"klCoefficient": driver.kl_coefficient}),
                **({} if driver.curriculum is None else {"curriculum": dict(driver.curriculum)}),
                **({"unfinished": list(driver.unfinished)} if driver.unfinished else {}),
            },
            state_tensors=[write_tensors(part) for part in in_parts(taken.state, STATE_FILE_BYTES)],
            tokenizer=self.tokenizer,
            card=card(results),
        )
        self._card = step, card
        self._uploader.submit(checkpoint)

    def complete(self, step: int, results: CardResults, value: float | None) -> None:
        """Add an evaluation's results to the card of its step's checkpoint, and let the best one be chosen by `value`.

        Raises:
            LorarlError: an earlier checkpoint could not be published.
        """
        from lorarl_trainer.checkpoint import Evaluated

        published, card = self._card
        if published == step and card is not None:
            self._uploader.complete(Evaluated(step, card(results), value))

    def compare(self, values: Mapping[int, float]) -> None:
        """Choose the best checkpoint among those of earlier steps too, by the values of their evaluations.

        Raises:
            LorarlError: an earlier checkpoint could not be published.
        """
        from lorarl_trainer.checkpoint import Evaluated

        for step, value in sorted(values.items()):
            self._uploader.complete(Evaluated(step, None, value))

    def best(self) -> Best | None:
        return self._uploader.best

    def as_peft(self, taken: Snapshot) -> tuple[Mapping[str, torch.Tensor], dict[str, Any]]:
        """Return an adapter as PEFT has it: its tensors, and the content of adapter_config.json."""
        from lorarl_trainer.lora.experts import completed
        from lorarl_trainer.lora.peft_format import adapter_config

        adapter = completed(taken.adapter, taken.linear_names)
        config = adapter_config(
            adapter,
            self.backend.adapter.config,
            base_model_name(self._spec),
            taken.linear_names,
            revision=base_model_commit(self._spec, self._model_path) or self._spec.model.revision,
            dropout=self._spec.adapter.dropout,
            excluded=taken.excluded_names,
        )
        return adapter, config

    def about_adapters(self, fingerprint: str) -> dict[str, Any]:
        """Return what lorarl_metadata.json says of all adapters of this worker: what they were trained on.

        `fingerprint`: of the base model.
        """
        commit, quantization = base_model_commit(self._spec, self._model_path), self._spec.model.quantization
        return {
            "baseModel": base_model_name(self._spec),
            "baseModelFingerprint": fingerprint,
            "adapterType": self._spec.adapter.type,
            **({"baseModelCommit": commit} if commit else {}),
            **({QUANTIZATION: quantization} if quantization != "none" else {}),
            **({"servedMerged": True} if is_served_merged(read_model_config(self._model_path)) else {}),
        }

    @cached_property
    def tokenizer(self) -> dict[str, bytes]:
        """The base model's tokenizer files by name, with the job's own chat template if it has one."""
        files = [self._model_path / name for name in TOKENIZER_FILES]
        found = {file.name: file.read_bytes() for file in files if file.is_file()}
        return found if self._chat_template is None else found | {TEMPLATE_FILE: self._chat_template.encode()}

    @property
    def _chats(self) -> bool:
        return self._spec.data.chat_template and read_chat_template(self.tokenizer.get) is not None

    def uploads(self) -> list[Published]:
        """Return the checkpoints published so far. Raises LorarlError if one could not be published."""
        self._uploader.raise_if_failed()
        return list(self._published)

    def published(self) -> list[Published]:
        return list(self._published)

    def drain_uploads(self, timeout_seconds: float = UPLOAD_SECONDS) -> list[Published]:
        """Wait until everything is published, and return all of it.

        Raises:
            LorarlError: a checkpoint could not be published, or an evaluation not recorded. `finish` may not follow.
        """
        self._uploader.drain(timeout_seconds)
        return list(self._published)

    def close(self) -> None:
        """Let go of the job's checkpoints, which are published first, while the process does other things."""
        if "_uploader" in vars(self):  # otherwise they were never claimed
            self._uploader.close()

    def finish(self) -> None:
        """Record in the job's folder that all steps are made. `drain_uploads` comes before.

        Raises:
            LorarlError: the store failed, or a newer start of the job has taken over.
        """
        self._store.finish()
