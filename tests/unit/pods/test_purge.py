"""`lorarl purge` deletes a job's checkpoints, and nothing of its neighbours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {{name: tiny}}
spec:
  model: {{uri: hf://org/base}}
  adapter: {{rank: 16, targetModules: [all-linear]}}
  reward: {{type: exact}}
  data: {{train: {{uri: file:rows.jsonl}}}}
  checkpoint: {{uri: {uri}}}
"""


def purge(manifest: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "lorarl_trainer.cli", "purge", str(manifest)], capture_output=True, text=True)


def test_the_job_s_folder_goes_and_its_neighbour_stays(tmp_path: Path) -> None:
    for job in ("tiny", "tiny-2"):
        folder = tmp_path / "adapters" / job / "iter_0000001" / "lora_adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_model.safetensors").write_bytes(b"x")
        (tmp_path / "adapters" / job / "latest.json").write_text("{}")
    manifest = tmp_path / "job.yaml"
    manifest.write_text(MANIFEST.format(uri=f"file://{tmp_path}/adapters"))
    for _ in range(2):  # again is harmless
        done = purge(manifest)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"deleted file://{tmp_path}/adapters/tiny\n"
        assert [path.name for path in (tmp_path / "adapters").iterdir()] == ["tiny-2"]
    assert (tmp_path / "adapters" / "tiny-2" / "latest.json").exists()


def test_a_faulty_manifest_is_one_sentence(tmp_path: Path) -> None:
    manifest = tmp_path / "job.yaml"
    manifest.write_text(MANIFEST.format(uri="ftp://host/adapters"))
    done = purge(manifest)
    assert done.returncode == 1
    assert "spec.checkpoint.uri" in done.stderr
    assert "Traceback" not in done.stderr
