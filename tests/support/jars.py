"""Jars of Kafka, Delta and Spark's Kafka source, each with the SHA-256 that the repository records.

``.ci/jars.lock`` has the checksums, as sha256sum writes them, of all files below ``build``: a jar
with another one, one that is missing and one too many are refused, in each process that uses them.
Maven downloads Kafka's; the others are for sessions of Spark, and Ivy downloads them, a jar of
pyspark. No jar of a set is loaded before it is verified. Maven's plugins, which download Kafka's,
are not in the lock: Maven alone checks them, by the checksums of its registry.

    python -m tests.support.jars            download Delta's, once
    python -m tests.support.jars --rewrite  download all of them again and write the lock
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).parents[2]
BUILD: Final = HOME / "build"
LOCK: Final = HOME / ".ci" / "jars.lock"
_IVY_SETTINGS: Final = HOME / ".ci" / "ivysettings.xml"
KAFKA_VERSION: Final = "4.3.1"
KAFKA_NEWEST: Final = "4.4.0"
"""Of which the decisions about configs and ACLs are. Its shell is not published."""
KAFKA_VERSIONS: Final = ("3.3.2", "3.5.2", "3.7.2", "3.9.2", "4.2.0", KAFKA_VERSION, KAFKA_NEWEST)
SCALA: Final = "2.13"
_CHUNK_BYTES: Final = 1 << 20
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>raftlog</groupId><artifactId>jars</artifactId><version>1</version><dependencies>
{dependencies}</dependencies></project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
    "<version>{}</version>{}</dependency>\n"
)


class JarError(Exception):
    """Jars that cannot be downloaded, or are not those of the lock."""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Jars in one directory below ``build``. ``download`` writes them into another one."""

    name: str
    download: Callable[[Path], None] = field(compare=False)


# --- sets -----------------------------------------------------------------------------------------


def kafka(version: str) -> JarSet:
    """Return the jars of a release of Kafka: 120 MB with its dependencies."""
    names = ["kafka_2.13", "kafka-tools"]
    if version != KAFKA_NEWEST:
        names.append("kafka-shell")
    wanted = [("org.apache.kafka", name, version, "") for name in names]
    wanted.append(("org.slf4j", "slf4j-simple", "1.7.36", ""))
    return JarSet(f"kafka/{version}", functools.partial(_by_maven, wanted, ()))


def tiered_storage() -> JarSet:
    """Return the jar with Kafka's ``LocalTieredStorage``, which is one of its tests."""
    test = "<classifier>test</classifier>"
    wanted = [("org.apache.kafka", "kafka-storage", KAFKA_VERSION, test)]
    download = functools.partial(_by_maven, wanted, ("-DexcludeTransitive=true",))
    return JarSet(f"kafka/{KAFKA_VERSION}-tiered", download)


def delta() -> JarSet:
    """Return the jars of the installed delta-spark for the installed pyspark."""
    version, spark = (importlib.metadata.version(name) for name in ("delta-spark", "pyspark"))
    artifact = f"delta-spark_{'.'.join(spark.split('.')[:2])}_{SCALA}"
    return _by_ivy("delta", "io.delta", artifact, version)


def spark_kafka_source() -> JarSet:
    """Return the jars of Spark's Kafka source, for the installed pyspark."""
    artifact = f"spark-sql-kafka-0-10_{SCALA}"
    return _by_ivy("spark", "org.apache.spark", artifact, importlib.metadata.version("pyspark"))


def all_sets() -> list[JarSet]:
    """Return the sets that the lock has."""
    return [delta(), *map(kafka, KAFKA_VERSIONS), tiered_storage(), spark_kafka_source()]


def spark_jars(jars: JarSet) -> str:
    """Return the verified jars of a set, as the setting ``spark.jars``."""
    return ",".join(map(str, sorted(verified(jars).glob("*.jar"))))


# --- downloads ------------------------------------------------------------------------------------


def _by_maven(
    wanted: list[tuple[str, str, str, str]], options: tuple[str, ...], directory: Path
) -> None:
    pom = directory / "pom.xml"
    pom.write_text(_POM.format(dependencies="".join(_DEPENDENCY.format(*one) for one in wanted)))
    command = ("mvn", "-q", "-B", "--strict-checksums", "-f", str(pom))
    _run(*command, "dependency:copy-dependencies", f"-DoutputDirectory={directory}", *options)


def _by_ivy(folder: str, group: str, artifact: str, version: str) -> JarSet:
    def download(directory: Path) -> None:
        pyspark = find_spec("pyspark")
        assert pyspark is not None
        assert pyspark.origin is not None
        (ivy,) = Path(pyspark.origin).with_name("jars").glob("ivy-*.jar")
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else "java"
        ivy_main = (java, "-cp", str(ivy), "org.apache.ivy.Main", "-settings", str(_IVY_SETTINGS))
        pattern = f"{directory}/[organisation]_[artifact]-[revision](-[classifier]).[ext]"
        wanted = ("-confs", "default", "-dependency", group, artifact, version)
        _run(*ivy_main, "-warn", *wanted, "-retrieve", pattern)
        for path in directory.glob("org.scala-lang_*.jar"):  # Spark has it, and spark-submit's Ivy
            path.unlink()  # excludes it

    return JarSet(f"{folder}/{artifact}-{version}", download)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise JarError(f"{command[0]} is not installed, which downloads jars") from None
    if done.returncode != 0:
        raise JarError(f"{command[0]} did not download the jars:\n{done.stdout}{done.stderr}")


# --- checksums ------------------------------------------------------------------------------------


def locked(lock: Path = LOCK) -> dict[str, str]:
    """Return the SHA-256 of each file of the lock, by its path below ``build``."""
    lines = lock.read_text().splitlines()
    return {path: checksum for checksum, path in (line.split("  ", 1) for line in lines)}


def sha256(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while data := file.read(_CHUNK_BYTES):
            found.update(data)
    return found.hexdigest()


def verify(directory: Path, name: str, expected: Mapping[str, str]) -> None:
    """Raise ``JarError`` unless a directory has the jars that a lock has of a set, and no other."""
    wanted = {
        path.rpartition("/")[2]: checksum
        for path, checksum in expected.items()
        if path.rpartition("/")[0] == name
    }
    if not wanted:
        raise JarError(
            f".ci/jars.lock has no jar of {name}, which the installed packages or the tests "
            "require: run `make jars`, and review the difference"
        )
    found = {path.name: sha256(path) for path in sorted(directory.glob("*.jar"))}
    wrong = [
        f"{jar} has the SHA-256 {found[jar]} instead of {wanted[jar]}"
        for jar in found.keys() & wanted.keys()
        if found[jar] != wanted[jar]
    ]
    wrong += [f"{jar} is not in the lock" for jar in found.keys() - wanted.keys()]
    wrong += [f"{jar} is missing" for jar in wanted.keys() - found.keys()]
    if wrong:
        raise JarError(
            f"jars of {name} are refused, because they are not those of .ci/jars.lock: "
            f"{'; '.join(sorted(wrong))}. Delete {directory} if it exists and try again. If the "
            "same is downloaded again, it is not what was reviewed: do not use it. After a change "
            "of a version run `make jars`, and review the difference"
        )


@functools.cache
def verified(jars: JarSet) -> Path:
    """Return the directory of a set, downloaded once and verified. Raises ``JarError``."""
    return installed(jars, BUILD, locked())


def installed(jars: JarSet, build: Path, expected: Mapping[str, str]) -> Path:
    """Return the verified directory of a set below ``build``. Raises ``JarError``."""
    directory = build / jars.name
    if not any(directory.glob("*.jar")):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".jars-", dir=directory.parent) as fresh:
            jars.download(Path(fresh))
            verify(Path(fresh), jars.name, expected)
            with contextlib.suppress(OSError):  # another process was first
                Path(fresh).rename(directory)
    verify(directory, jars.name, expected)
    return directory


def rewrite() -> None:
    """Download all sets again and write their checksums."""
    lines = []
    for jars in all_sets():
        with tempfile.TemporaryDirectory(prefix="raftlog-jars-") as fresh:
            jars.download(Path(fresh))
            paths = sorted(Path(fresh).glob("*.jar"))
            lines += [f"{sha256(path)}  {jars.name}/{path.name}\n" for path in paths]
    LOCK.write_text("".join(lines))


def main(arguments: list[str]) -> None:
    try:
        if arguments == ["--rewrite"]:
            rewrite()
        else:
            verified(delta())
    except JarError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
