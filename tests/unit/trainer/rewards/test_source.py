"""`reward.source`: the code of a reward function from files, wheels and ConfigMaps, and what it was."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from lorarl_api.load import load_job
from lorarl_api.v1alpha1 import LoRARLJobSpec
from lorarl_trainer.checkpoint.identity import differences, training_identity
from lorarl_trainer.errors import InputError
from lorarl_trainer.launch.local import ignored_fields
from lorarl_trainer.launch.provenance import provenance
from lorarl_trainer.rewards import source as module
from lorarl_trainer.rewards.scorer import make_job_scorer, open_scorers
from lorarl_trainer.rewards.source import Sources, fetched_sources
from unit.trainer.rewards.scoring import score

MANIFEST = """
apiVersion: lorarl.io/v1alpha1
kind: LoRARLJob
metadata: {name: own-code}
spec:
  model: {uri: "file:base"}
  adapter: {targetModules: [all-linear]}
  reward: {function: "mine:score"}
  data: {train: {uri: "file:train.jsonl"}}
  checkpoint: {uri: "file:checkpoints"}
"""


def job_with(*source: str, reward: str = "spec.reward"):
    return load_job(MANIFEST, [f"{reward}.source.{one}" for one in source])


def returns(number: int) -> str:
    return f"def score(prompt, completion, answer, row): return {number}\n"


def wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def scored(spec: LoRARLJobSpec, folder: Path) -> list[float]:
    with fetched_sources(spec, {}) as (found, sources):
        scorer = make_job_scorer(found, folder, sources=sources)
        assert scorer is not None
        try:
            return score(scorer, "a").rewards.tolist()
        finally:
            scorer.close()


def digest(spec: LoRARLJobSpec) -> str:
    with fetched_sources(spec, {}) as (found, _):
        assert found.reward is not None
        assert found.reward.source is not None
        return str(found.reward.source.sha256)


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ConfigMap `code` as the kubelet mounts it: links to a folder that it replaces as a whole."""
    monkeypatch.setattr(module, "REWARDS_FOLDER", str(tmp_path / "rewards"))
    folder = tmp_path / "rewards/code"
    (folder / "..2026").mkdir(parents=True)
    (folder / "..2026/mine.py").write_text(returns(5))
    (folder / "..data").symlink_to("..2026")
    (folder / "mine.py").symlink_to("..data/mine.py")
    return folder


@pytest.mark.slow
def test_a_source_wins_over_a_file_beside_the_manifest(tmp_path):
    (tmp_path / "mine.py").write_text(returns(1))
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored/mine.py").write_text(returns(2))
    assert scored(job_with(f"uri=file://{tmp_path}/stored/mine.py").spec, tmp_path) == [2]


@pytest.mark.slow
def test_a_folder_brings_packages_and_wheels(tmp_path):
    (tmp_path / "mine.py").write_text("import helpers, packed\ndef score(*of): return helpers.ONE + packed.TWO\n")
    (tmp_path / "helpers").mkdir()
    (tmp_path / "helpers/__init__.py").write_text("ONE = 1\n")
    wheel(tmp_path / "packed-1.0-py3-none-any.whl", {"packed/__init__.py": "TWO = 2\n"})
    assert scored(job_with(f"uri=file://{tmp_path}").spec, Path("/nowhere")) == [3]


@pytest.mark.slow
def test_a_config_map_is_copied_so_that_its_changes_reach_no_run(mounted, tmp_path):
    spec = job_with("configMap=code").spec
    with fetched_sources(spec, {}) as (found, sources):
        (mounted / "..2026/mine.py").write_text(returns(6))
        scorer = make_job_scorer(found, tmp_path, sources=sources)
        assert score(scorer, "a").rewards.tolist() == [5]
        scorer.close()
    assert scored(spec, tmp_path) == [6]


def test_a_config_map_is_left_out_where_nothing_mounts_it(tmp_path):
    job = job_with("configMap=code")
    with fetched_sources(job.spec, {}) as (spec, sources):
        assert (spec, sources) == (job.spec, {})
    assert "spec.reward.source.configMap" in ignored_fields(job)


def test_the_digest_is_what_sha256sum_prints(tmp_path):
    (tmp_path / "mine.py").write_text(returns(1))
    assert digest(job_with(f"uri=file://{tmp_path}/mine.py").spec) == hashlib.sha256(returns(1).encode()).hexdigest()
    (tmp_path / "zeta.py").write_text("")
    (tmp_path / "Alpha.py").write_text("")
    command = "sha256sum * | sha256sum | cut -d' ' -f1"
    printed = subprocess.check_output(command, shell=True, cwd=tmp_path, env={**os.environ, "LC_ALL": "C"}, text=True)
    assert digest(job_with(f"uri=file://{tmp_path}").spec) == printed.strip()


def test_the_digest_is_in_the_identity_and_the_place_is_not(tmp_path):
    def identity(text: str, name: str) -> dict[str, object]:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "mine.py").write_text(text)
        with fetched_sources(job_with(f"uri=file://{tmp_path}/{name}/mine.py").spec, {}) as (spec, _):
            return training_identity(spec, "fingerprint")

    first = identity(returns(1), "a")
    assert identity(returns(1), "b") == first
    (changed,) = differences(first, identity(returns(2), "a"))
    assert changed.startswith("reward.source.sha256 was ")
    job = job_with(f"uri=file://{tmp_path}/b/mine.py")
    with fetched_sources(job.spec, {}) as (spec, _):
        made_of = provenance(job.model_copy(update={"spec": spec}), {}, tmp_path / "b")
    sha256 = hashlib.sha256(returns(1).encode()).hexdigest()
    assert made_of["manifest"]["spec"]["reward"]["source"]["sha256"] == sha256
    assert "rewardCode" not in made_of, "the digest of a file beside the manifest would be that of other code"


def test_a_source_of_several_rewards_is_fetched_once(tmp_path):
    (tmp_path / "mine.py").write_text(returns(1))
    source = f"{{uri: 'file://{tmp_path}/mine.py'}}"
    both = f"[{{name: a, function: 'mine:score', source: {source}}}, {{name: b, type: exact}}]"
    held = f"[{{name: hard, uri: 'file:x.jsonl', reward: {{function: 'mine:score', source: {source}}}}}]"
    job = load_job(MANIFEST, ["spec.reward=null", f"spec.rewards={both}", f"spec.data.evals={held}"])
    assert set(job.spec.reward_sources) == {"spec.rewards[0].source", "spec.data.evals[0].reward.source"}
    with fetched_sources(job.spec, {}) as (spec, sources):
        assert len(sources) == 1
        assert {each.sha256 for each in spec.reward_sources.values()} == {
            hashlib.sha256(returns(1).encode()).hexdigest()
        }


@pytest.mark.parametrize(
    ("source", "field", "expected"),
    [
        (["uri=file:{}/other.py"], "spec.reward.source.uri", "other.py, where there is nothing"),
        (["uri=file:{}/empty"], "spec.reward.source.uri", "where there is nothing"),
        (["uri=file:{}/mine.py", f"sha256={'f' * 64}"], "spec.reward.source.sha256", "Bring back those files"),
        (["uri=file:{}/old-1-cp27-cp27m-win32.whl"], "spec.reward.source.uri", "a wheel for another Python"),
        (["uri=file:{}/broken-1-py3-none-any.whl"], "spec.reward.source.uri", "which is no wheel"),
        (["uri=file:{}/broken.whl"], "spec.reward.source.uri", "which is no wheel"),
    ],
)
def test_a_source_that_cannot_be_used_is_named_with_the_fix(tmp_path, source, field, expected):
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine.py").write_text(returns(1))
    wheel(tmp_path / "old-1-cp27-cp27m-win32.whl", {"old.py": ""})
    for broken in ("broken-1-py3-none-any.whl", "broken.whl"):
        (tmp_path / broken).write_text("no zip")
    with (
        pytest.raises(InputError, match=expected) as refused,
        fetched_sources(job_with(*(one.format(tmp_path) for one in source)).spec, {}),
    ):
        pass
    assert refused.value.field == field


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            None,
            "but the ConfigMap code has no module mine.*Put mine.py into the ConfigMap code, or a wheel",
        ),
        ("import not_there\n", "fails when imported.*Put a wheel with not_there into the ConfigMap code"),
        ("score = 1\n", "has an object of type int of this name"),
    ],
)
def test_code_that_cannot_be_imported_names_its_source(mounted, tmp_path, text, expected):
    (mounted / "..2026/mine.py").write_text(text or "")
    if text is None:
        (mounted / "mine.py").rename(mounted / "theirs.py")
    with pytest.raises(InputError, match=expected):
        scored(job_with("configMap=code").spec, tmp_path)


def test_the_code_of_an_environment_comes_from_a_source_too(tmp_path: Path) -> None:
    code = "class Game:\n    def reset(self, row): return 'from a store'\n    def step(self, text): return {}\n"
    (tmp_path / "game.py").write_text(code)
    changes = ["spec.reward=null", f"spec.environment={{function: 'game:Game', source: {{uri: 'file:{tmp_path}'}}}}"]
    job = load_job(MANIFEST, changes)
    assert list(job.spec.reward_sources) == ["spec.environment.source"]

    async def opening(spec: LoRARLJobSpec, sources: Sources) -> object:
        with open_scorers(spec, Path("/nowhere"), sources=sources) as scorers:
            assert scorers.environment is not None
            async with scorers.environment.episode(0) as episode:
                return await episode.reset({})

    with fetched_sources(job.spec, {}) as (spec, sources):
        assert asyncio.run(opening(spec, sources)) == "from a store"
        found = training_identity(spec, "fingerprint")
    assert found["environment.source.sha256"] == hashlib.sha256(code.encode()).hexdigest()
    assert differences(found, training_identity(job.spec, "fingerprint"))[0].startswith("environment.source.sha256 was")
