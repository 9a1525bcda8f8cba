"""One adapter onto a server: its files are judged, it is loaded, and the server's numbers are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.servers.client import ServerError, UnreachableError
from lorarl_trainer.trained_adapters.serving.fit import Terms, misfit
from lorarl_trainer.trained_adapters.serving.own_server import OwnServer
from lorarl_trainer.trained_adapters.serving.recorded import Recorded, measure, recorded_samples
from lorarl_trainer.trained_adapters.serving.verdict import Measured, Verdict, compare
from lorarl_trainer.trained_adapters.serving.versions import Version
from lorarl_trainer.trained_adapters.source import Source


class NotServedError(LorarlError):
    """An adapter is not served; the text says why."""


@dataclass(frozen=True)
class Check:
    """What a server's adapters are checked with.

    Attributes:
        source: the base model. Its adapter is another one.
        run: the folder whose samples are asked of the server; None for a question.
        terms: what the server was started for.
        base: what requests call the base model.
    """

    source: Source
    run: Path | None
    terms: Terms
    base: str

    def require_fit(self, version: Version) -> None:
        """Judge an adapter's files.

        Raises:
            NotServedError: vLLM does not serve such an adapter, or this server does not.
        """
        if fault := misfit(version.config, version.metadata, self.terms):
            raise NotServedError(fault)

    def measure(self, version: Version) -> Recorded:
        """Compute what the server should say.

        Raises:
            NotServedError: it does not fit the base model.
        """
        try:
            return measure(replace(self.source, adapter=version.folder), recorded_samples(self.run))
        except InputError as error:
            raise NotServedError(str(error)) from error

    def load(self, server: OwnServer, name: str, version: Version, recorded: Recorded) -> str:
        """Load an adapter under a name, and return what the comparison says. A wrong one does not stay.

        Raises:
            NotServedError: the server refuses it, or applies something else.
            ServerError: the server does not answer.
        """
        try:
            server.load(name, version.folder)
        except UnreachableError:
            raise
        except ServerError as error:
            raise NotServedError(f"vLLM refuses it: {error}") from error
        verdict: Verdict | None = None
        try:
            base_T, adapter_T = (
                server.log_probabilities(model, recorded.texts, recorded.last) for model in (self.base, name)
            )
            verdict = compare(recorded.expected, Measured(base_T, adapter_T))
        finally:
            if verdict is None or verdict.fault:
                server.unload(name)
        if verdict.fault:
            raise NotServedError(verdict.fault)
        return verdict.said
