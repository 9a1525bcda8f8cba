"""Makes stand-ins for the CUDA libraries, so that torch's CUDA build loads without them.

The package index only has torch's CUDA build. Its libraries need 2.7 GB of CUDA libraries, so the loader asks for these
on machines without a GPU too, where none of their functions is ever called. A stand-in has the name of such a library
and the functions that torch refers to. Each of them says its name and ends the process. Building an image needs a C
compiler and binutils for this.
"""

from __future__ import annotations

import argparse
import re
import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

_UNDEFINED = re.compile(r"\s(?:GLOBAL)\s+\S+\s+UND\s+(?P<name>[^\s@]+)(?:@(?P<version>\S+))?")
_DEFINED = re.compile(r"\s(?:GLOBAL|WEAK|UNIQUE)\s+\S+\s+(?:\d+|ABS)\s+(?P<name>[^\s@]+)")
_VERSION_FILE = re.compile(r"\bFile: (?P<file>\S+)")
_VERSION_NAME = re.compile(r"\bName: (?P<name>\S+)")

# The driver's libraries, by which the runtime sees whether there is a GPU. With a stand-in it would see one.
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}

_SOURCE = """#include <stdio.h>
#include <stdlib.h>
static void stand_in(const char *function) {
  fprintf(stderr, "lorarl: %s of CUDA was called, but this image is for CPUs. Use the CUDA flavour.\\n", function);
  abort();
}
"""


@dataclass
class StandIn:
    """A library to make.

    Attributes:
        versions: functions by the symbol version that they are asked for with.
        unversioned: functions that are asked for without one.
    """

    versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unversioned: set[str] = field(default_factory=set)

    def source(self) -> str:
        """Return the C source of its functions."""
        functions = sorted(self.unversioned.union(*self.versions.values()))
        return _SOURCE + "".join(f'void {name}(void) {{ stand_in("{name}"); }}\n' for name in functions)

    def version_script(self) -> str:
        """Return the linker's version script, which is empty if no version is asked for."""
        nodes = {version: set(names) for version, names in self.versions.items()}
        if nodes:
            # A reference without a version takes a symbol of any. Nameless and named versions cannot be mixed.
            nodes[min(nodes)] |= self.unversioned
        return "".join(
            f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"
            for version, names in sorted(nodes.items())
        )


@dataclass(frozen=True)
class Dependencies:
    """The libraries that the loader finds and misses for a library, without the driver's."""

    found: frozenset[Path]
    missing: tuple[str, ...]


def dependencies(library: Path) -> Dependencies:
    """Ask the loader for the dependencies of a library."""
    lines = [line.split() for line in _output("ldd", str(library)).splitlines() if " => " in line]
    found = frozenset(Path(words[2]).resolve() for words in lines if words[2].startswith("/"))
    return Dependencies(found, tuple(words[0] for words in lines if words[2] == "not" and words[0] not in DRIVER))


def plan(libraries: list[Path]) -> dict[str, StandIn]:
    """Return the stand-ins that these libraries need, by name."""
    needs = {library.resolve(): dependencies(library) for library in libraries}
    everything = needs.keys() | {path for each in needs.values() for path in each.found}
    symbols = {library: _output("readelf", "--wide", "--dyn-syms", str(library)) for library in everything}
    defined = {name for text in symbols.values() for name in _DEFINED.findall(text)}
    stand_ins: dict[str, StandIn] = defaultdict(StandIn)
    for library, each in needs.items():
        owner = _owners(library)
        for name in each.missing:
            stand_ins[name]  # also without functions, because the loader asks for the file
        for name, version in _UNDEFINED.findall(symbols[library]):
            if owner.get(version) in each.missing:
                stand_ins[owner[version]].versions[version].add(name)
            elif not version and name not in defined and each.missing:
                # The file does not say whose it is. The loader takes the first library that has it.
                stand_ins[each.missing[0]].unversioned.add(name)
    return stand_ins


def _owners(library: Path) -> dict[str, str]:
    """Return the file that each symbol version is expected from."""
    owners: dict[str, str] = {}
    file = ""
    for line in _output("readelf", "--wide", "--version-info", str(library)).splitlines():
        if found := _VERSION_FILE.search(line):
            file = found["file"]
        elif file and (found := _VERSION_NAME.search(line)):
            owners[found["name"]] = file
    return owners


def build(library: str, stand_in: StandIn, folder: Path) -> None:
    """Compile one stand-in into a folder."""
    with TemporaryDirectory() as scratch:
        source, script = Path(scratch) / "stand_in.c", Path(scratch) / "versions"
        source.write_text(stand_in.source())
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-Os",
            "-s",
            f"-Wl,-soname,{library}",
            "-o",
            str(folder / library),
            str(source),
        ]
        if versions := stand_in.version_script():
            script.write_text(versions)
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Make the stand-ins that the libraries of a folder need."""
    parser = argparse.ArgumentParser(
        description="Make stand-ins for the CUDA libraries that torch needs and that are missing."
    )
    parser.add_argument("libraries", type=Path, help="folder of torch's libraries: site-packages/torch/lib")
    parser.add_argument("output", type=Path, help="folder to write to")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    stand_ins = plan(sorted(arguments.libraries.glob("*.so*")))
    for library, stand_in in sorted(stand_ins.items()):
        build(library, stand_in, arguments.output)
        print(f"{library}: {len(stand_in.unversioned.union(*stand_in.versions.values()))} functions")


if __name__ == "__main__":
    main()
