"""Licences of the jars that tests, benchmarks and the demo load; a release and the image have none.

``python -m tests.packaging.jar_licences`` writes the committed list. Licences are those that the
POM of a jar declares, or its parent: in Maven's repository and Ivy's cache of this machine, and in
the jars themselves, after ``make jars``.
"""

from __future__ import annotations

import functools
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as Xml

from tests.support.jars import BUILD, HOME, locked

LICENCES: Final = HOME / ".ci" / "jars.licences"
_MAVEN: Final = Path.home() / ".m2" / "repository"
_IVY: Final = Path.home() / ".ivy2" / "cache"
_PARENTS_MAX: Final = 6
_NAMES: Final = {
    r"apache": "Apache-2.0",
    r"\bmit\b|mit-license|jquery": "MIT",
    r"\bgo license": "BSD-3-Clause",
    r"\bedl|eclipse distribution|edl-v10": "BSD-3-Clause",
    r"bsd|asm\.ow2": "BSD",
    r"epl[- ]?v?2|eclipse public license - version 2": "EPL-2.0",
    r"eclipse public license - version 1": "EPL-1.0",
    r"cddl": "CDDL",
    r"classpath|w/ cpe|\+ce\b": "GPL-2.0 WITH Classpath-exception-2.0",
    r"\bmpl": "MPL-1.1",
    r"\blgpl": "LGPL-2.1",
    r"public ?domain": "CC0-1.0",
    r"wtfpl": "WTFPL",
    r"w3\.org": "W3C",
}
"""Patterns of names and addresses in POMs, with the licence's identifier of SPDX; BSD: a variant of
it."""


def artifact_of(path: str) -> str:
    """Return the name of a jar of the lock without its version, and without Ivy's group."""
    folder, _, name = path.rpartition("/")
    if not folder.startswith("kafka/"):
        name = name.partition("_")[2]
    return re.sub(r"-\d+\.[\w.+-]*\.jar$", "", name)


def identifiers(text: str) -> list[str]:
    """Return the identifiers of all licences that a text names."""
    return sorted({name for words, name in _NAMES.items() if re.search(words, text, re.I)})


def read_list(text: str) -> dict[str, list[str]]:
    """Return the licences of each artifact in the list's text."""
    lines = (line.split("\t") for line in text.splitlines())
    return {artifact: names.split("; ") for artifact, names in lines}


def declared(jar: Path) -> list[str]:
    """Return the licences that a jar itself declares, of some none."""
    with zipfile.ZipFile(jar) as file:
        poms = [one for one in file.namelist() if re.fullmatch(r"META-INF/maven/.+/pom\.xml", one)]
        found = [name for one in poms for name in _of_pom(file.read(one))]
        if not found and "META-INF/MANIFEST.MF" in file.namelist():
            manifest = file.read("META-INF/MANIFEST.MF").decode().replace("\r\n ", "")
            line = re.search(r"^Bundle-License: *(.*)", manifest, re.M)
            found = identifiers(line[1]) if line else []
    return sorted(set(found))


def _of_pom(data: bytes, depth: int = 0) -> list[str]:
    root = Xml.fromstring(data)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    texts = [one.findtext(tag) or "" for one in root.iter("license") for tag in ("name", "url")]
    parent = root.find("parent")
    if texts or parent is None or depth == _PARENTS_MAX:
        return [name for text in texts for name in identifiers(text)]
    group, artifact, version = (
        (parent.findtext(tag) or "").strip() for tag in ("groupId", "artifactId", "version")
    )
    path = _MAVEN / group.replace(".", "/") / artifact / version / f"{artifact}-{version}.pom"
    return _of_pom(path.read_bytes(), depth + 1) if path.exists() else []


def _of_caches(path: str) -> Iterator[str]:
    """Yield the licences of a jar's POM in Maven's repository, or its file in Ivy's cache."""
    name = path.rpartition("/")[2].removesuffix(".jar")
    if not path.startswith("kafka/"):
        group, _, name = name.partition("_")
        artifact = artifact_of(path)
        version = name.removeprefix(f"{artifact}-")
        for file in (_IVY / group / artifact).glob(f"ivy-{version}.xml"):
            for one in Xml.parse(file).iter("license"):
                yield from identifiers(f"{one.get('name')} {one.get('url')}")
    pom = _poms().get(name.removesuffix("-test"))
    if pom is not None:
        yield from _of_pom(pom.read_bytes())


@functools.cache
def _poms() -> dict[str, Path]:
    return {path.stem: path for path in _MAVEN.rglob("*.pom")}


def _rows() -> Iterator[str]:
    found: dict[str, set[str]] = {}
    for path in locked():
        names = found.setdefault(artifact_of(path), set())
        names.update(_of_caches(path))
        if (BUILD / path).exists():
            names.update(declared(BUILD / path))
    for artifact, names in sorted(found.items()):
        yield f"{artifact}\t{'; '.join(sorted(names))}"


if __name__ == "__main__":
    LICENCES.write_text("".join(f"{row}\n" for row in _rows()))
