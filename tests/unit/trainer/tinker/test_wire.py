"""The protobuf messages, against bytes that client 0.38.0 wrote and would have written."""

from __future__ import annotations

import math
from base64 import b64decode

import numpy as np
import pytest

from lorarl_trainer.tinker.refusals import RefusedError
from lorarl_trainer.tinker.wire import Sampled, passes_made, read_passes, samples_made

REQUEST = b64decode(
    "CglzOnRyYWluOjAQBBqOAQoMCgoKCAUAAAAGAAAACggKBgoEBwAAABIwCg10YXJnZXRfdG9rZW5zEh8KGAAAAAAAAAAABwAAAAAAAAAJAAAA"
    "AAAAABgCIgEDEh8KCGxvZ3Byb2JzEhMKDAAAAAAAAMC/AACAvhgBIgEDEiEKCmFkdmFudGFnZXMSEwoMAAAAAAAAgD8AAIA/GAEiAQMaYAoI"
    "CgYKBAgAAAASIAoNdGFyZ2V0X3Rva2VucxIPCggDAAAAAAAAABgCIgEBEhcKCGxvZ3Byb2JzEgsKBAAAAMAYASIBARIZCgphZHZhbnRhZ2Vz"
    "EgsKBAAAgL8YASIBASIDcHBvKh0KEmNsaXBfbG93X3RocmVzaG9sZBHNzMzMzMzsPzofChJjbGlwX2xvd190aHJlc2hvbGQSCQnNzMzMzMzs"
    "PzoLCgNob3cSBBICc28="
)
PASSES = b64decode(
    "CgtBcnJheVJlY29yZBJHCgtBcnJheVJlY29yZBI2Cghsb2dwcm9icxIqCgwAAIC/AAAAwAAAQMASGAAAAAAAAAAACAAAAAAAAAAMAAAAAAAA"
    "ABgBGAIaEwoIbG9zczpzdW0RAAAAAAAA+D8="
)
SAMPLES = b64decode("ChYIARIIBAAAAAUAAAAaCAAAAL8AAIC/CgwSBAMAAAAaBAAAAL4SCAAAwH8AAIC/")
IMAGE = b64decode("CgFtEAEaBwoFEgMKAXg=")


def test_what_the_client_sends_is_read() -> None:
    passes = read_passes(REQUEST)
    assert (passes.model_id, passes.seq_id, passes.loss, passes.forward_only) == ("s:train:0", 4, "ppo", False)
    assert passes.options == {"clip_low_threshold": 0.9, "how": "so"}
    first, second = passes.data
    assert first.tokens.tolist() == [5, 6, 7] and second.tokens.tolist() == [8]
    assert first.inputs["target_tokens"].tolist() == [0, 7, 9]
    assert first.inputs["logprobs"].tolist() == [0.0, -1.5, -0.25]
    assert second.inputs["advantages"].tolist() == [-1.0]


def test_answers_have_the_bytes_of_the_clients_own_messages() -> None:
    logprobs = [np.array([-1, -2], np.float32), np.array([-3], np.float32)]
    assert passes_made(logprobs, {"loss:sum": 1.5}) == PASSES
    sequences = [
        Sampled(np.array([4, 5]), np.array([-0.5, -1], np.float32), finished=False),
        Sampled(np.array([3]), np.array([-0.125], np.float32), finished=True),
    ]
    assert samples_made(sequences, np.array([math.nan, -1], np.float32)) == SAMPLES


@pytest.mark.parametrize(
    ("body", "named"), [(IMAGE, r"data\[0\].model_input has a chunk that is no text"), (b"\xff", "ForwardBackward")]
)
def test_what_cannot_be_trained_on_is_refused(body: bytes, named: str) -> None:
    with pytest.raises(RefusedError, match=named):
        read_passes(body)
