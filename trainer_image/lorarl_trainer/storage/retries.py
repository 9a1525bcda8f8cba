"""Which requests to a store are repeated, and for how long."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

from lorarl_trainer.storage.keys_origin import KeysOrigin

TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset({"RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict"})
ABSENT_CODES = frozenset({"", "NoSuchKey", "BlobNotFound"})
KEY_CODES = frozenset({"InvalidAccessKeyId", "XAdminUserNotFound", "ExpiredToken", "InvalidToken"})
WITHOUT_CREDENTIALS = ("/latest/api/token", "/latest/meta-data", "/metadata/identity", "metadata.google.internal")


@dataclass(frozen=True)
class RetryPolicy:
    """How long to keep trying when a store answers 5xx or 429, is slow, or breaks the connection.

    Attributes:
        deadline_seconds: for writing and deleting. No new attempt starts later than this after the first.
        read_deadline_seconds: the same for reading and listing. It is shorter because a user waits for reads at the
            start.
        first_wait_seconds: upper bound of the first random wait; it doubles with every attempt.
        longest_wait_seconds: upper bound of any wait.
        request_seconds: time limit of a request that carries little data. Large requests get more.
        bytes_per_second: the slowest transfer that time limits allow for.
    """

    deadline_seconds: float = 600.0
    first_wait_seconds: float = 0.5
    longest_wait_seconds: float = 20.0
    request_seconds: float = 30.0
    bytes_per_second: float = 1e6
    read_deadline_seconds: float = 120.0

    def call[Result](
        self, attempt: Callable[[], Result], transient: Callable[[BaseException], bool], reading: bool = False
    ) -> Result:
        """Run `attempt` until it returns. Raise its error if that is permanent or the deadline has passed."""
        retrying = Retrying(
            stop=stop_before_delay(self.read_deadline_seconds if reading else self.deadline_seconds),
            wait=wait_random_exponential(multiplier=self.first_wait_seconds, max=self.longest_wait_seconds),
            retry=retry_if_exception(transient),
            reraise=True,
        )
        return retrying(attempt)


HASTY = RetryPolicy(deadline_seconds=3.0, read_deadline_seconds=3.0, request_seconds=2.5, longest_wait_seconds=1.0)
"""For a look at a store, by someone who waits for it."""
_usual = [RetryPolicy()]


def usual_policy() -> RetryPolicy:
    """Return the policy of stores that are opened without one."""
    return _usual[-1]


@contextmanager
def hasty_stores() -> Iterator[None]:
    """Open the stores of this process with `HASTY`, unless they are given a policy, until the block ends."""
    _usual.append(HASTY)
    try:
        yield
    finally:
        _usual.remove(HASTY)


@dataclass(frozen=True)
class Answer:
    """A store's answer, read from an error's text.

    Attributes:
        status: HTTP status; None if there was no answer (refused, broken, timed out).
        code: the store's own code, for example NoSuchBucket; empty if it gave none.
        message: the store's own sentence, or the error's first line. Neither contains signatures or keys.
    """

    status: int | None
    code: str
    message: str

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        if self.without_credentials:
            return False
        if self.status is None:
            return self.unanswered
        return self.status in TRANSIENT_STATUSES or self.code in TRANSIENT_CODES

    @property
    def unanswered(self) -> bool:
        """Whether the connection failed or broke, so that the store may have said anything."""
        return self.status is None and "HTTP error" in self.message

    @property
    def absent(self) -> bool:
        """Whether the answer means that this object does not exist (rather than the bucket or the user)."""
        return self.status == 404 and self.code in ABSENT_CODES

    @property
    def refuses_the_keys(self) -> bool:
        """Whether the store refuses the keys, rather than the request."""
        return self.status in (401, 403) or self.code in KEY_CODES

    @property
    def without_credentials(self) -> bool:
        """Whether the error comes from looking up a machine's own identity because no keys were given."""
        return any(mark in self.message for mark in WITHOUT_CREDENTIALS)

    def __str__(self) -> str:
        """The answer in a few words."""
        if self.status is None:
            return self.message
        return " ".join(
            part for part in (str(self.status), self.code, f"({self.message})" if self.message else "") if part
        )

    def hint(self, bucket: str, endpoint: str | None, origin: KeysOrigin) -> str:
        """Return what a user can do about it. `origin`: of the keys that were used."""
        server = f" at {endpoint}" if endpoint else ""
        if self.without_credentials:
            return (
                "No credentials were given. Name a Secret in credentialsSecret, or set the store's variables "
                f"({origin.usual}, ...)."
            )
        if self.code in ("NoSuchBucket", "ContainerNotFound"):
            return f"There is no bucket {bucket!r}{server}. Create it, or fix the URI."
        if self.code == "RequestTimeTooSkewed":
            return "The clock of this machine is wrong. Set it."
        if self.refuses_the_keys:
            return f"The store refuses {origin.keys}. {origin.fix} may list, read, write and delete in {bucket!r}."
        if self.status == 501:
            return (
                "The store has no conditional writes (If-None-Match, If-Match), which keep two runs apart. "
                "Use a store that has them."
            )
        if self.status == 507:
            return "The store's own disk is full. Free some space there."
        if self.status is None and "redirect" in self.message:
            return f"The bucket {bucket!r} is in another region. Set AWS_REGION {origin.place}."
        if self.transient:
            return (
                f"The store{server} did not recover in time. Check that it runs and can be reached, then start the job "
                "again."
            )
        return f"Check the URI, the bucket {bucket!r} and what the store was asked with: {origin.keys}."


def read_answer(error: BaseException) -> Answer:
    """Read status, code and message from the text of an obstore exception."""
    text = str(error.args[0] if error.args else error).split("\n\nDebug source", maxsplit=1)[0]
    status = re.search(r"status code: (\d{3})", text)
    code = re.search(r"<Code>\s*([^<]*?)\s*</Code>", text)
    message = re.search(r"<Message>\s*([^<]*?)\s*</Message>", text)
    if status is None:
        plain = text.strip().splitlines()[0] if text.strip() else type(error).__name__
        return Answer(None, code.group(1) if code else "", plain)
    return Answer(int(status.group(1)), code.group(1) if code else "", message.group(1) if message else "")
