"""The fingerprint tells models apart that share everything that a quick look sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from lorarl_trainer.errors import InputError
from lorarl_trainer.storage.fingerprint import fingerprint

EMBEDDING, DECODER = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight"
Write = Callable[..., Path]


@pytest.fixture
def model(tmp_path: Path) -> Write:
    """Writes a model whose embedding is larger than a mebibyte, and comes first in its file."""

    def write(name: str = "base", decoder: float = 1.0, end: float = 1.0, config: str = "{}") -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(config)
        weights = np.full((512, 64), decoder, np.float32)
        weights[-1] = end
        save_file({EMBEDDING: np.zeros((1024, 512), np.float32), DECODER: weights}, folder / "model.safetensors")
        return folder

    return write


def first_look(folder: Path) -> list[bytes]:
    """What config.json, and the size and the first mebibyte of the weights tell."""
    weights = (folder / "model.safetensors").read_bytes()
    return [(folder / "config.json").read_bytes(), str(len(weights)).encode(), weights[: 1 << 20]]


def test_a_merged_adapter_gives_another_fingerprint(model: Write) -> None:
    """Only the decoder's matrices change: the embedding, the sizes and config.json stay."""
    base, merged = model(), model("merged", decoder=1.1, end=1.1)
    assert first_look(base) == first_look(merged), "the scenario: a look at the first mebibyte sees no difference"
    assert fingerprint(base) != fingerprint(merged)
    assert fingerprint(base) == fingerprint(model("copy"))


def test_another_configuration_gives_another_fingerprint(model: Write) -> None:
    assert fingerprint(model()) != fingerprint(model("other", config='{"rms_norm_eps": 1e-5}'))


def test_large_files_are_not_read_whole(model: Write) -> None:
    assert fingerprint(model()) == fingerprint(model("end", end=2.0))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda whole: whole[:-100], r"it has [\d,]+ bytes, and its header says [\d,]+"),
        (lambda whole: whole[:20], "it does not begin with the length of a header"),
        (lambda whole: b"", "it does not begin with the length of a header"),
        (lambda whole: whole[:8] + b"!" + whole[9:], "its header cannot be read"),
    ],
    ids=["half downloaded", "only a header's start", "empty", "garbage"],
)
def test_a_file_that_is_not_whole_is_refused(model: Write, content: Callable[[bytes], bytes], why: str) -> None:
    file = model() / "model.safetensors"
    file.write_bytes(content(file.read_bytes()))
    with pytest.raises(InputError, match=rf"spec\.model\.uri: got {file}, which is not a whole .*{why}.*again\."):
        fingerprint(file.parent)


def test_the_files_of_a_model_in_parts_all_count(model: Write) -> None:
    folder = model()
    before = fingerprint(folder)
    save_file({"lm_head.weight": np.ones((4, 4), np.float32)}, folder / "model-2.safetensors")
    assert before != fingerprint(folder)
