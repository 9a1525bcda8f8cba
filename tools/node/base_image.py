"""The root file system that stands in for python:3.12-slim-bookworm: minimal Debian with this process's Python."""

from __future__ import annotations

import hashlib
import inspect
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

SUITE = "bookworm"
# The libraries of Python's extension modules. apt and the rest of a minimal Debian come by themselves.
PACKAGES = (
    *(
        "ca-certificates",
        "libbz2-1.0",
        "libexpat1",
        "libffi8",
        "liblzma5",
        "libncursesw6",
        "libreadline8",
        "libsqlite3-0",
        "libssl3",
    ),
    *("libuuid1", "netbase", "tzdata", "usr-is-merged", "zlib1g"),
)
# With /usr merged from the start, no package has to merge it. That would install all of Perl.
MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
# As in Debian's slim images.
UNWANTED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/lintian/*")
# As in Debian's and Python's images: no layer keeps apt's cache.
APT_CLEAN = """DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/*.bin || true"; };
Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";"""
# The official image leaves these out of Python too. site-packages belong to this machine; pip is installed again.
LEFT_OUT = {"__pycache__", "site-packages", "test", "tests", "idle_test"}


class BaseImageError(Exception):
    """The root file system cannot be made here. The text says what is missing."""


def make_root_file_system(folder: Path) -> Path:
    """Return the archive of the root file system in this folder; make it unless it is up to date.

    It takes half a minute, as root.

    Raises:
        BaseImageError: it cannot be made here.
    """
    archive, stamp = folder / "rootfs.tar", folder / "rootfs.stamp"
    recipe = hashlib.sha256(f"{sys.version} {inspect.getsource(sys.modules[__name__])}".encode()).hexdigest()
    if archive.exists() and stamp.exists() and stamp.read_text() == recipe:
        return archive
    if shutil.which("mmdebstrap") is None:
        raise BaseImageError(
            "mmdebstrap, which makes the base image, is not installed. "
            "Run apt-get install mmdebstrap, or name an image: PYTHON_IMAGE=..."
        )
    folder.mkdir(parents=True, exist_ok=True)
    python, unfinished = folder / "python.tar", folder / "unfinished.tar"
    try:
        pack_python(python)
        made = subprocess.run(
            _command(python, unfinished), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
        )
        if made.returncode:
            raise BaseImageError(f"mmdebstrap could not make the base image:\n{made.stderr[-2000:]}")
        unfinished.rename(archive)
    finally:
        python.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)
    stamp.write_text(recipe)
    return archive


def pack_python(archive: Path) -> None:
    """Pack this process's Python, to be unpacked at /usr/local.

    Raises:
        BaseImageError: it is the distribution's, which has no separate folder.
    """
    prefix = Path(sys.base_prefix)
    if prefix == Path("/usr"):
        raise BaseImageError(
            "this is the distribution's Python, which has no folder to copy. "
            "Set up another: PYTHON=/folder/bin/python3.12 make setup"
        )
    name = f"python{sysconfig.get_python_version()}"
    with tarfile.open(archive, "w") as tar:
        libraries = [f"lib/{each.name}" for each in (prefix / "lib").glob("libpython*.so*")]
        for path in (f"bin/{name}", f"lib/{name}", f"include/{name}", *libraries):
            tar.add(prefix / path, f"usr/local/{path}", filter=_kept)
        for link in ("python", "python3"):
            entry = tarfile.TarInfo(f"usr/local/bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, name
            tar.addfile(entry)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = Path(entry.name).parts
    # config-3.12-... holds a static library for embedding Python.
    if LEFT_OUT.intersection(parts) or any(part.startswith("config-3") for part in parts):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    entry.mode = (entry.mode | 0o444 | (0o111 if entry.mode & 0o100 else 0)) & 0o755
    return entry


def _command(python: Path, archive: Path) -> list[str]:
    return [
        *("mmdebstrap", "--quiet", "--variant=minbase", f"--hook-dir={MERGED}", f"--include={','.join(PACKAGES)}"),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in UNWANTED),
        f"--customize-hook=tar-in {python} /",
        # The library of a Python that was compiled here has 24 MB of debugging symbols.
        '--customize-hook=! command -v strip >/dev/null || strip --strip-unneeded "$1"/usr/local/lib/libpython*.so.*',
        '--customize-hook=chroot "$1" ldconfig',
        '--customize-hook=PIP_ROOT_USER_ACTION=ignore chroot "$1" python3 -m ensurepip',
        '--customize-hook=find "$1/usr/local" -name __pycache__ -prune -exec rm -r {} +',
        f"--customize-hook=echo '{APT_CLEAN}' >\"$1\"/etc/apt/apt.conf.d/docker-clean",
        '--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/*',
        *(SUITE, str(archive)),
    ]
