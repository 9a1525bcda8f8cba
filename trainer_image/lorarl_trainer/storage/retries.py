"""When to ask a store again, and when not."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tenacity import Retrying, retry_if_exception, stop_before_delay, wait_random_exponential

TRANSIENT_STATUSES = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
TRANSIENT_CODES = frozenset({"RequestTimeout", "SlowDown", "OperationAborted", "ConditionalRequestConflict"})
ABSENT_CODES = frozenset({"", "NoSuchKey", "BlobNotFound"})
WITHOUT_CREDENTIALS = ("/latest/api/token", "/latest/meta-data", "/metadata/identity", "metadata.google.internal")


@dataclass(frozen=True)
class RetryPolicy:
    """How long to keep trying when a store answers 5xx or 429, is slow, or breaks the connection.

    Attributes:
        deadline_seconds: For writing and deleting: no new attempt starts later than this after the first.
        read_deadline_seconds: The same for reading and listing. Shorter, for somebody waits for it at the start.
        first_wait_seconds: Upper bound of the first random wait; it doubles with every attempt.
        longest_wait_seconds: Upper bound of any wait.
        request_seconds: Time for one request that carries little data. Large ones get more.
        bytes_per_second: The slowest transfer that is still waited for.
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
        """Run `attempt` until it returns, fails for good, or the deadline has passed; then its last error is raised."""
        retrying = Retrying(
            stop=stop_before_delay(self.read_deadline_seconds if reading else self.deadline_seconds),
            wait=wait_random_exponential(multiplier=self.first_wait_seconds, max=self.longest_wait_seconds),
            retry=retry_if_exception(transient),
            reraise=True,
        )
        return retrying(attempt)


@dataclass(frozen=True)
class Answer:
    """What a store said, read from an error's text.

    Attributes:
        status: HTTP status, or None when there was no answer (refused, broken, timed out).
        code: The store's own code, as NoSuchBucket; empty when it gave none.
        message: The store's own sentence, or the error's first line. Neither holds signatures or keys.
    """

    status: int | None
    code: str
    message: str

    @property
    def transient(self) -> bool:
        """Whether the same request may well succeed later."""
        if self.without_credentials:
            return False
        if self.status is None:
            return "HTTP error" in self.message
        return self.status in TRANSIENT_STATUSES or self.code in TRANSIENT_CODES

    @property
    def absent(self) -> bool:
        """Whether the answer means that this one object is not there (and not the bucket, nor the user)."""
        return self.status == 404 and self.code in ABSENT_CODES

    @property
    def without_credentials(self) -> bool:
        """Whether the error comes from looking for a machine's own identity: no keys were given at all."""
        return any(mark in self.message for mark in WITHOUT_CREDENTIALS)

    def __str__(self) -> str:
        """The answer in a few words."""
        if self.status is None:
            return self.message
        return " ".join(
            part for part in (str(self.status), self.code, f"({self.message})" if self.message else "") if part
        )

    def hint(self, bucket: str, endpoint: str | None) -> str:
        """What a person can do about it."""
        server = f" at {endpoint}" if endpoint else ""
        if self.without_credentials:
            return "No credentials were given: name a Secret in credentialsSecret, or set the store's variables (AWS_ACCESS_KEY_ID, ...)."
        if self.code in ("NoSuchBucket", "ContainerNotFound"):
            return f"There is no bucket {bucket!r}{server}: make it, or mend the URI."
        if self.code == "RequestTimeTooSkewed":
            return "The clock of this machine is wrong: set it."
        if self.status in (401, 403) or self.code in (
            "InvalidAccessKeyId",
            "XAdminUserNotFound",
            "ExpiredToken",
            "InvalidToken",
        ):
            return f"The store refuses the keys: check the Secret's keys, and that they may list, read, write and delete in {bucket!r}."
        if self.status == 501:
            return "The store has no conditional writes (If-None-Match, If-Match), which keep two runs apart: use one that has."
        if self.status == 507:
            return "The store's own disk is full: make room there."
        if self.status is None and "redirect" in self.message:
            return f"The bucket {bucket!r} is in another region: set AWS_REGION in the Secret."
        if self.transient:
            return f"The store{server} did not recover in time: check that it runs and can be reached, then start the job again."
        return f"Check the URI, the bucket {bucket!r} and the Secret's keys."


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
