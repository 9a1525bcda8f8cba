"""The wheel that `make dist` builds, in an environment that holds nothing else, outside of the clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from run.jobs import Job

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = [Path(name) for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
FIRST = "lorarl: the trainer is not installed: run `lorarl setup --cpu` or `lorarl setup --gpu` first\n"
BY_PIP = {
    "operator": ["lorarl-operator", "--help"],
    "tracking": ["python", "-c", "import wandb, mlflow"],
    "kubectl": ["python", "-c", "import lorarl_trainer.record.reader, lorarl_trainer.storage.remote, jinja2"],
}
"""The extras, and what works with each."""
pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        folder: where it is. Commands run beside it, outside of the clone.
    """

    folder: Path

    def run(
        self, *command: str | Path, folder: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs."""
        program, *arguments = command
        # Without this machine's uv, unless a test names it.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        clean |= {"PATH": "/usr/bin:/bin", "LORARL_CACHE": str(self.folder.parent / "cache"), **environment}
        called = [self.folder / "bin" / program, *arguments]
        return subprocess.run(called, cwd=folder or self.folder.parent, env=clean, capture_output=True, text=True)

    def packages(self) -> dict[str, str]:
        """Return the installed packages."""
        code = "from importlib.metadata import distributions as d; print(*(f'{x.name}=={x.version}' for x in d()))"
        return dict(pin.lower().split("==") for pin in self.run("python", "-c", code).stdout.split())


def uv() -> Path:
    return Path(subprocess.run([ROOT / "scripts/uv.sh"], capture_output=True, text=True, check=True).stdout.strip())


def succeed(*command: str | Path, folder: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if re.search(r"error sending request|[Ff]ailed to fetch|NewConnectionError|timed out", done.stderr):
        pytest.skip(f"the package index cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr


def environment(folder: Path, *packages: str) -> Environment:
    """Make an environment and install packages. uv has them in its cache; pip is tested apart."""
    succeed(uv(), "venv", "-q", "--python", sys.executable, folder, folder=folder.parent)
    succeed(uv(), "pip", "install", "-q", "--python", folder / "bin/python", *packages, folder=folder.parent)
    return Environment(folder)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    succeed(ROOT / "scripts/dist.sh", folder)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What `pip install lorarl` makes, and a manifest beside it."""
    made = environment(tmp_path_factory.mktemp("light") / ".venv", str(wheel))
    shutil.copy(ROOT / "examples/addition-cpu.yaml", made.folder.parent / "job.yaml")
    return made


def tracked(*paths: Path) -> set[Path]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip(f"this is not a git checkout: {listed.stderr.strip()}")
    return {path for path in map(Path, listed.stdout.splitlines()) if (ROOT / path).exists()}


def test_the_wheel_has_every_file_of_the_packages_and_the_locks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
        carried = {flavour: archive.read(f"lorarl_trainer/install/{flavour}.lock") for flavour in ("cpu", "gpu")}
    files = {str(path.relative_to(package.parent)) for package in PACKAGES for path in tracked(package)}
    assert files <= names
    assert {name.split("/")[0] for name in names} == {package.name for package in PACKAGES}
    assert {Path(name).suffix for name in names} >= {".py", ".jinja", ".js", ".css", ".typed", ".lock"}
    assert not [name for name in names if re.search("(^|/)(tests?/|test_|conftest|__pycache__)", name)]
    assert carried["cpu"] == (ROOT / "requirements/wheel-cpu.lock").read_bytes()
    assert carried["gpu"] == (ROOT / "requirements/gpu.lock").read_bytes()


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    assert wheel.name == f"lorarl-{PROJECT['project']['version']}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
        names = archive.namelist()
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert "\nRequires-Python: <3.13,>=3.12\n" in metadata
    assert set(re.findall(r"^Provides-Extra: (.*)$", metadata, re.M)) == set(BY_PIP), "pip cannot resolve the others"
    for kept in ("licenses/LICENSE", "licenses/docs/licences.md", "share/doc/lorarl/CHANGELOG.md"):
        assert [name for name in names if name.endswith(kept)], kept


def test_the_wheel_alone_brings_the_contract_and_the_command_line(light: Environment) -> None:
    packages = light.packages()
    assert {"lorarl", "pydantic", "pyyaml", "click", "cel-expr-python", "rich"} <= packages.keys()
    assert len(packages) < 20
    assert not {"torch", "ray", "numpy", "kopf", "pytest"} & packages.keys()
    shown = light.run("lorarl", "--help")
    assert shown.returncode == 0 and "setup" in shown.stdout
    assert light.run("lorarl", "--version").stdout == f"lorarl, version {PROJECT['project']['version']}\n"


def test_manifests_are_validated_without_the_trainer(light: Environment) -> None:
    good = light.run("lorarl", "validate", "job.yaml")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("job.yaml: ok; its base model was not checked: the trainer is not installed")
    bad = light.run("lorarl", "validate", "job.yaml", "--set", "spec.algorithm.type=sft")
    assert bad.returncode == 1
    assert bad.stdout.startswith("job.yaml: spec.") and "got" in bad.stdout


@pytest.mark.parametrize(
    "command", [["run", "job.yaml"], ["run", "job.yaml", "--dry-run"], ["upload", "job.yaml", "file:store"]]
)
def test_what_needs_the_trainer_says_how_to_install_it(light: Environment, command: list[str]) -> None:
    done = light.run("lorarl", *command)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", FIRST)


def test_setup_asks_for_which_machine(light: Environment) -> None:
    done = light.run("lorarl", "setup")
    assert done.returncode == 2
    assert "got neither --cpu nor --gpu" in done.stderr and "run `lorarl setup --" in done.stderr


def test_setup_without_a_network_says_so(light: Environment) -> None:
    """An index that refuses connections; the cache is empty, since this machine's may have everything."""
    offline = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    done = light.run("lorarl", "setup", "--cpu", PATH=f"{uv().parent}:/usr/bin:/bin", UV_NO_CACHE="1", **offline)
    if re.search("disk: got|libnuma: got", done.stderr):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1
    assert "lorarl: the packages were not installed: the package index cannot be reached." in done.stderr
    assert "packages into" in done.stdout and "with uv" in done.stdout


def test_setup_without_an_installer_says_so(light: Environment) -> None:
    done = light.run("lorarl", "setup", "--cpu", PATH="/no/such/folder")
    if re.search("disk: got|libnuma: got", done.stderr):
        pytest.skip(done.stderr.strip())
    assert done.returncode == 1
    assert done.stderr.startswith("lorarl: neither uv nor pip is installed. Run `python -m ensurepip`")


def test_the_operator_is_an_extra_that_starts(wheel: Path, tmp_path: Path) -> None:
    made = environment(tmp_path / ".venv", f"lorarl[operator] @ {wheel.as_uri()}")
    shown = made.run("lorarl-operator", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "--trainer-image" in shown.stdout
    assert "torch" not in made.packages()


@pytest.mark.long
@pytest.mark.parametrize(("extra", "program"), BY_PIP.items())
def test_an_extra_is_installed_by_plain_pip(wheel: Path, tmp_path: Path, extra: str, program: list[str]) -> None:
    succeed(sys.executable, "-m", "venv", tmp_path / ".venv", folder=tmp_path)
    made = Environment(tmp_path / ".venv")
    done = made.run("python", "-m", "pip", "install", "-q", f"lorarl[{extra}] @ {wheel.as_uri()}")
    assert done.returncode == 0, done.stderr
    assert made.run("python", "-m", "pip", "check").returncode == 0
    assert made.run(*program).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_job_trains_after_setup_outside_of_the_clone(wheel: Path, tmp_path: Path, installer: str) -> None:
    """Gigabytes of packages, then two steps of training; only what makes the base model is from the clone."""
    succeed(sys.executable, "-m", "venv", tmp_path / ".venv", folder=tmp_path)
    made = Environment(tmp_path / ".venv")
    assert made.run("python", "-m", "pip", "install", "-q", wheel).returncode == 0
    path = f"{uv().parent}:/usr/bin:/bin" if installer == "uv" else "/usr/bin:/bin"
    done = made.run("lorarl", "setup", "--cpu", PATH=path)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"with {installer};" in done.stdout
    assert re.match(r"lorarl: installed \d+ packages\. Next: `lorarl init`", done.stdout.splitlines()[-1])
    train(made)


def train(made: Environment) -> None:
    """Run a job of two steps beside the environment."""
    folder = made.folder.parent
    base = made.run("python", ROOT / "tests/run/make_base.py", folder / "base", PYTHONPATH=str(ROOT / "tests"))
    assert base.returncode == 0, base.stderr
    job = Job(folder / "job", folder / "base")
    trained = made.run("lorarl", "run", "job.yaml", "--set", "spec.trainer.steps=2", folder=job.folder)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert list(job.checkpoints.rglob("adapter_model.safetensors"))
    assert (job.out / "report.html").exists()


def test_python_says_how_to_install_it_too(light: Environment) -> None:
    done = light.run("python", "-c", "import lorarl")
    assert done.returncode == 1
    assert done.stderr.endswith(f"ModuleNotFoundError: {FIRST.removeprefix('lorarl: ')}")
