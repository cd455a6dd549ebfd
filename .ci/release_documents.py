"""Write the documents of a release into a directory with its distributions.

    release_documents.py ENVIRONMENT_SBOM COMMIT DIST

- ``raftlog-VERSION.cdx.json``: the SBOM (CycloneDX 1.6) of what a user installs. Python packages
  are the components of ENVIRONMENT_SBOM that ``requirements.lock`` has, with their licences and the
  lock's hashes, one for each distribution of the version; crates are those of ``Cargo.lock``, which
  the compiled core contains.
- ``raftlog-VERSION.intoto.json``: an in-toto statement with SLSA provenance (v1).
- ``SHA256SUMS``: of all files in the directory; `.ci/sign` signs it.

Equal inputs give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HOME = Path(__file__).parents[1]
REQUIREMENTS = HOME / ".ci/requirements.lock"
CARGO_LOCK = HOME / "connector/native/Cargo.lock"
RESOLVED = (REQUIREMENTS, HOME / ".ci/development.lock", CARGO_LOCK)
_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(.*(?:\n .*)*)", re.M)


def pin(name: str, version: str) -> str:
    """Return a requirement of one version, with the package's normalized name (PEP 503)."""
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def locked_hashes(text: str) -> dict[str, list[str]]:
    """Return the SHA-256 hashes of the distributions of each pinned version in a lock."""
    return {
        pin(name, version): re.findall(r"--hash=sha256:(\w+)", more)
        for name, version, more in _PINNED.findall(text)
    }


def sha256_hash(content: str) -> dict[str, str]:
    """Return a hash as CycloneDX has it."""
    return {"alg": "SHA-256", "content": content}


def crates(text: str) -> list[dict[str, Any]]:
    """Return the components of the crates from a registry in a ``Cargo.lock``."""
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:cargo/{one['name']}@{one['version']}",
            "name": one["name"],
            "version": one["version"],
            "purl": f"pkg:cargo/{one['name']}@{one['version']}",
            "hashes": [sha256_hash(one["checksum"])],
        }
        for one in tomllib.loads(text)["package"]
        if "checksum" in one
    ]


def bill_of_materials(environment: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the SBOM of raftlog, given that of an environment with more packages."""
    locked = locked_hashes(REQUIREMENTS.read_text())
    installed = {pin(one["name"], one["version"]): one for one in environment["components"]}
    components = [
        {**one, "hashes": [sha256_hash(content) for content in locked[name]]}
        for name, one in installed.items()
        if name in locked
    ]
    missing = locked.keys() - installed
    native = crates(CARGO_LOCK.read_text())
    references = {one["bom-ref"] for one in components}
    root = {
        "type": "library",
        "bom-ref": "raftlog",
        "name": "raftlog",
        "version": version,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": f"pkg:pypi/raftlog@{version}",
    }
    depends = [
        {"ref": one["ref"], "dependsOn": sorted(references.intersection(one.get("dependsOn", ())))}
        for one in environment["dependencies"]
        if one["ref"] in references
    ]
    everything = [*sorted(references), *(one["bom-ref"] for one in native)]
    return {
        "$schema": environment["$schema"],
        "bomFormat": "CycloneDX",
        "specVersion": environment["specVersion"],
        "version": 1,
        "metadata": {
            "component": root,
            # Of another platform or Python: locked, but not installed where the release is built.
            "properties": [
                {"name": "raftlog:not-installed", "value": name} for name in sorted(missing)
            ],
        },
        "components": [*components, *native],
        "dependencies": [{"ref": "raftlog", "dependsOn": everything}, *depends],
    }


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def base_images(directory: Path) -> list[dict[str, Any]]:
    """Return the base images of the image of a release, of one without an image none."""
    bases = directory / "raftlog.bases"
    lines = bases.read_text().splitlines() if bases.exists() else []
    found = (re.fullmatch(r"\w+=(\S+)@sha256:(\w+)", line) for line in lines)
    return [{"uri": f"docker://{one[1]}", "digest": {"sha256": one[2]}} for one in found if one]


def provenance(directory: Path, commit: str) -> dict[str, Any]:
    """Return the in-toto statement of the files in a directory."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.name, "digest": {"sha256": sha256(path)}}
            for path in sorted(directory.iterdir())
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:raftlog:make-release:v1",
                "externalParameters": {"command": "make release"},
                "resolvedDependencies": [
                    {"uri": "urn:raftlog:source", "digest": {"gitCommit": commit}},
                    *(
                        {
                            "uri": f"urn:raftlog:{path.relative_to(HOME)}",
                            "digest": {"sha256": sha256(path)},
                        }
                        for path in RESOLVED
                    ),
                    *base_images(directory),
                ],
            },
            "runDetails": {"builder": {"id": "urn:raftlog:local-build"}},
        },
    }


def main(environment: Path, commit: str, directory: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    (source,) = directory.glob("raftlog-*.tar.gz")
    stem = source.name.removesuffix(".tar.gz")
    bill = bill_of_materials(json.loads(environment.read_text()), stem.removeprefix("raftlog-"))
    text = json.dumps(bill, indent=2, sort_keys=True)
    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise SystemExit(f"the SBOM is not valid: {error}")
    (directory / f"{stem}.cdx.json").write_text(text + "\n")
    statement = json.dumps(provenance(directory, commit), indent=2, sort_keys=True)
    (directory / f"{stem}.intoto.json").write_text(statement + "\n")
    sums = [f"{sha256(path)}  {path.name}\n" for path in sorted(directory.iterdir())]
    (directory / "SHA256SUMS").write_text("".join(sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
