"""The messages of Tinker's API that are protobuf, as client 0.38.0 has them: only what a server reads and writes.

The client's package has generated code for all of them, but it is no package of a server: it brings a client.
Fields that are not named here stay unread. Arrays travel as their bytes, little-endian.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from lorarl_trainer.samples.arrays import Floats, Ints
from lorarl_trainer.tinker.refusals import RefusedError

CONTENT_TYPE = "application/x-protobuf"
_PACKAGE = "lorarl_tinker"  # another name than the client's: both may be in one process
_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bytes": _FIELD.TYPE_BYTES,
    "string": _FIELD.TYPE_STRING,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "double": _FIELD.TYPE_DOUBLE,
    "bool": _FIELD.TYPE_BOOL,
}
_MESSAGES: Mapping[str, Sequence[str]] = {
    # Each field: its number, its type (* repeated; a map is repeated entries of key 1 and value 2), its name.
    "ForwardBackwardRequest": (
        *("1 string model_id", "2 int32 seq_id", "3 *Datum data", "4 string loss_fn", "6 bool forward_only"),
        "7 *Option loss_fn_config",
    ),
    "Option": ("1 string key", "2 OptionValue value"),
    "OptionValue": ("1 double number", "2 string text"),
    "Datum": ("1 *Chunk model_input", "2 *Input loss_fn_inputs"),
    "Input": ("1 string key", "2 Tensor value"),
    "Chunk": ("1 EncodedText encoded_text",),
    "EncodedText": ("1 bytes tokens",),
    "Tensor": ("1 bytes dense", "2 Sparse sparse_csr", "3 int32 dtype", "4 *int64 shape"),
    "Sparse": (),
    "ForwardBackwardOutput": ("1 string loss_fn_output_type", "2 *ArrayRecord loss_fn_outputs", "3 *Metric metrics"),
    "Metric": ("1 string key", "2 double value"),
    "ArrayRecord": ("1 string type_tag", "2 *Output fields", "3 int64 num_datums"),
    "Output": ("1 string key", "2 BatchedTensor value"),
    "BatchedTensor": ("1 bytes data", "2 bytes offsets", "3 int32 dtype"),
    "SampleResponse": ("1 *SampledSequence sequences", "2 bytes prompt_logprobs"),
    "SampledSequence": ("1 int32 stop_reason", "2 bytes tokens", "3 bytes logprobs"),
}
_FLOAT32 = 1
_DTYPES: Mapping[int, str] = {_FLOAT32: "<f4", 2: "<i8", 3: "<i4"}
_STOP, _LENGTH = 0, 1


@dataclass(frozen=True)
class Datum:
    """One sequence of a training request: the tokens that the model sees, and arrays for the loss by name."""

    tokens: Ints
    inputs: Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Passes:
    """A request for a forward pass, and unless `forward_only` a backward pass."""

    model_id: str
    seq_id: int
    data: Sequence[Datum]
    loss: str
    options: Mapping[str, float | str]
    forward_only: bool


@dataclass(frozen=True)
class Sampled:
    """A sampled sequence, and whether it ended by itself."""

    tokens: Ints
    logprobs: Floats
    finished: bool


def read_passes(body: bytes) -> Passes:
    """Read the body of forward_backward.

    Raises:
        RefusedError: it is no such message, or has images, audio or sparse arrays.
    """
    raw = _message("ForwardBackwardRequest")
    try:
        raw.ParseFromString(body)
    except message.DecodeError as error:
        raise RefusedError(f"the body is no ForwardBackwardRequest: {error}") from error
    return Passes(
        model_id=raw.model_id,
        seq_id=raw.seq_id,
        data=[_datum(one, f"data[{number}]") for number, one in enumerate(raw.data)],
        loss=raw.loss_fn,
        options={one.key: one.value.text or one.value.number for one in raw.loss_fn_config},
        forward_only=raw.forward_only,
    )


def _datum(raw: Any, where: str) -> Datum:
    for chunk in raw.model_input:
        if not chunk.HasField("encoded_text"):
            raise RefusedError(f"{where}.model_input has a chunk that is no text; only encoded text can be trained on")
    parts = [np.frombuffer(chunk.encoded_text.tokens, "<i4") for chunk in raw.model_input]
    inputs = {one.key: _array(one.value, f"{where}.loss_fn_inputs[{one.key}]") for one in raw.loss_fn_inputs}
    return Datum(np.concatenate([np.empty(0, np.int64), *parts]), inputs)


def _array(raw: Any, where: str) -> np.ndarray[Any, Any]:
    if raw.HasField("sparse_csr") or len(raw.shape) > 1:
        raise RefusedError(f"{where} has shape {list(raw.shape)}; send a dense array with one value per token")
    if raw.dtype not in _DTYPES:
        raise RefusedError(f"{where} has dtype {raw.dtype}; send float32, int64 or int32")
    return np.frombuffer(raw.dense, _DTYPES[raw.dtype])


def passes_made(logprobs: Sequence[Floats], metrics: Mapping[str, float]) -> bytes:
    """Return a ForwardBackwardOutput: the log-probabilities of each datum's targets, and metrics by name."""
    raw = _message("ForwardBackwardOutput")
    raw.loss_fn_output_type = "ArrayRecord"
    record = raw.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(logprobs))
    arrays = [np.asarray(one, "<f4") for one in logprobs]
    output = record.fields.add(key="logprobs")
    output.value.data = b"".join(one.tobytes() for one in arrays)
    output.value.offsets = np.cumsum([0, *(one.nbytes for one in arrays)]).astype("<i8").tobytes()
    output.value.dtype = _FLOAT32
    for name, value in metrics.items():
        raw.metrics.add(key=name, value=value)
    content: bytes = raw.SerializeToString()
    return content


def samples_made(sequences: Sequence[Sampled], prompt_logprobs: Floats | None) -> bytes:
    """Return a SampleResponse. The prompt's first token has no log-probability: NaN."""
    raw = _message("SampleResponse")
    for one in sequences:
        raw.sequences.add(
            stop_reason=_STOP if one.finished else _LENGTH,
            tokens=np.asarray(one.tokens, "<i4").tobytes(),
            logprobs=np.asarray(one.logprobs, "<f4").tobytes(),
        )
    if prompt_logprobs is not None:
        raw.prompt_logprobs = np.asarray(prompt_logprobs, "<f4").tobytes()
    content: bytes = raw.SerializeToString()
    return content


def _message(name: str) -> Any:
    return _classes()[name]()


@cache
def _classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="lorarl_tinker.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        described = file.message_type.add(name=name)
        for field in fields:
            number, kind, own = field.split()
            label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.removeprefix("*")
            added = described.field.add(name=own, number=int(number), label=label)
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _MESSAGES
    }
