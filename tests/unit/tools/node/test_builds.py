"""How BuildKit is called, and what a build learns about this machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from node import builds
from node.builds import Image
from support.cluster.processes import ToolMissingError

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(autouse=True)
def buildctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "find", lambda name: f"/bin/{name}")


def test_an_image_is_built_into_containerd_unpacked_and_uncompressed() -> None:
    image = Image("localhost/a:1", Path("/there/Dockerfile.b"), Path("/context"), "stage", {"VERSION": "1"})
    words = builds.command(image, Path("/run/buildkitd.sock"), {"ca": Path("/ca.crt")})

    assert words[:4] == ["/bin/buildctl", "--addr", "unix:///run/buildkitd.sock", "build"]
    assert "--output=type=image,name=localhost/a:1,unpack=true,compression=uncompressed" in words
    assert {
        "--local=context=/context",
        "--local=dockerfile=/there",
        "--opt=filename=Dockerfile.b",
        "--opt=target=stage",
    } <= set(words)
    assert {"--opt=build-arg:VERSION=1", "--secret=id=ca,src=/ca.crt", "--opt=image-resolve-mode=local"} <= set(words)


def test_a_dockerfile_without_stages_has_no_target() -> None:
    words = builds.command(Image("localhost/a:1", Path("/Dockerfile"), Path("/")), Path("/s"), {})
    assert not [word for word in words if "target" in word]


def test_what_is_built_is_what_the_dockerfile_has() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    for image in builds.ours("base:1", "abc"):
        assert f" AS {image.target}\n" in dockerfile
        assert all(re.search(rf"^ARG {name}\b", dockerfile, re.M) for name in image.arguments), image
        lock = builds.LOCKS[image.name]
        assert f"source=requirements/{lock}.lock," in dockerfile


def test_other_programs_have_the_names_of_their_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builds, "CACHE", tmp_path)
    with pytest.raises(
        ToolMissingError, match=r"ray-operator\.stamp does not exist\. Run scripts/tools\.sh ray-operator\."
    ):
        builds.others()

    (tmp_path / "bin").mkdir()
    for tool, module in (
        ("ray-operator", "github.com/ray-project/kuberay/ray-operator@v1.6.2 ."),
        ("kueue", "k@v0.19.2 ./cmd/kueue"),
    ):
        (tmp_path / f"bin/{tool}.stamp").write_text(f"recipe 1: {module} and config\n")
    stages = (ROOT / "tools/node/Dockerfile.tools").read_text()

    images = {image.name: image.target for image in builds.others()}

    assert images == {
        "quay.io/kuberay/operator:v1.6.2": "kuberay",
        "registry.k8s.io/kueue/kueue:v0.19.2": "kueue",
        builds.STORE: "versitygw",
    }
    assert all(f"FROM scratch AS {target}\n" in stages for target in images.values())
    assert stages.count("USER 65532:65532") == len(images)


@pytest.mark.parametrize(
    ("environment", "file", "expected"),
    [
        ({}, "", None),
        ({}, "[global]\nindex-url = https://a/simple\n", "https://a/simple"),
        ({"PIP_INDEX_URL": "https://b/%20simple"}, "[global]\nindex-url = https://a/simple\n", "https://b/%20simple"),
        ({"PIP_INDEX_URL": "https://b/", "UV_DEFAULT_INDEX": "https://c/"}, "", "https://c/"),
        ({}, "[global]\ntimeout = 5\n", None),
    ],
)
def test_the_package_index_is_this_machines(
    environment: dict[str, str], file: str, expected: str | None, tmp_path: Path
) -> None:
    (tmp_path / "pip.conf").write_text(file)
    assert builds.package_index(environment, [tmp_path / "absent.conf", tmp_path / "pip.conf"]) == expected


def test_secrets_are_files_that_vanish(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.crt"
    bundle.write_text("certificates")
    with builds.secrets({"SSL_CERT_FILE": str(bundle), "UV_DEFAULT_INDEX": "https://c/simple"}) as files:
        assert files["ca"] == bundle
        assert "index-url = https://c/simple" in files["pip.conf"].read_text()
        assert 'url = "https://c/simple"' in files["uv.toml"].read_text()
        written = [files["pip.conf"], files["uv.toml"]]
    assert not any(path.exists() for path in written)
