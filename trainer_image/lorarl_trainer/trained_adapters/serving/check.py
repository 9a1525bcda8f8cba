"""One adapter onto a server: its files are judged, it is loaded, and the server's numbers are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lorarl_trainer.errors import InputError, LorarlError
from lorarl_trainer.samples.arrays import Floats
from lorarl_trainer.servers.faults import ServerError, UnreachableError
from lorarl_trainer.trained_adapters.serving.fit import Terms, misfit
from lorarl_trainer.trained_adapters.serving.own_server import OwnServer
from lorarl_trainer.trained_adapters.serving.recorded import Recorded, measure
from lorarl_trainer.trained_adapters.serving.verdict import Measured, Verdict, compare
from lorarl_trainer.trained_adapters.serving.versions import Version
from lorarl_trainer.trained_adapters.source import Source


class NotServedError(LorarlError):
    """An adapter is not served; the text says why."""


class Check:
    """What a server's adapters are checked with."""

    def __init__(self, source: Source, samples: Sequence[str], terms: Terms, base: str) -> None:
        """Check nothing yet.

        Args:
            source: the base model. Its adapter is another one.
            samples: texts that are given to the server; a question if there are none.
            terms: what the server was started for.
            base: what requests call the base model.
        """
        self.terms, self.base = terms, base
        self._source, self._samples = source, samples
        self._of_base: tuple[Sequence[Sequence[int]], Floats] | None = None

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
            return measure(replace(self._source, adapter=version.folder), self._samples)
        except InputError as error:
            raise NotServedError(str(error)) from error

    def load(self, server: OwnServer, name: str, version: Version, recorded: Recorded) -> str:
        """Load an adapter under a name, and return what the comparison says. A wrong one does not stay.

        Raises:
            NotServedError: the server refuses it, or applies something else.
            ServerError: the server does not answer.
        """
        base_T = self._base(server, recorded)
        try:
            server.load(name, version.folder)
        except UnreachableError:
            raise
        except ServerError as error:
            raise NotServedError(f"vLLM refuses it: {error}") from error
        verdict: Verdict | None = None
        try:
            adapter_T = server.log_probabilities(name, recorded.texts, recorded.last)
            verdict = compare(recorded.expected, Measured(base_T, adapter_T))
        finally:
            if verdict is None or verdict.fault:
                server.unload(name)
        if verdict.fault:
            raise NotServedError(verdict.fault)
        return verdict.said

    def _base(self, server: OwnServer, recorded: Recorded) -> Floats:
        """Return the server's numbers of the base model, of before the first adapter was loaded.

        Later they may be others. On CPUs, vLLM 0.26 gives a request for the base model the adapter in its last place,
        if it computes it together with requests for adapters.
        """
        if self._of_base is None or self._of_base[0] != recorded.texts:
            base_T = server.log_probabilities(self.base, recorded.texts, recorded.last)
            self._of_base = recorded.texts, base_T
        return self._of_base[1]
