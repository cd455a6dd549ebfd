"""Advisories about the crates that the compiled core is built from.

``python -m tests.packaging.advisories DIR`` writes the committed list from DIR, a git directory of
RustSec's database: neither the database nor cargo-deny is on the machines of CI.
"""

from __future__ import annotations

import operator
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

CRATE: Final = Path(__file__).parents[2] / "connector/native"
ADVISORIES: Final = CRATE / "advisories.tsv"
_HEADER: Final = "crate\tadvisory\tversions that are not affected, of RustSec's database at "
_NONE: Final = "-"
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}


class Advisory(NamedTuple):
    """Advisory about versions of a crate; each of ``unaffected`` is a requirement, as of cargo."""

    crate: str
    name: str
    unaffected: tuple[str, ...]

    def concerns(self, version: str) -> bool:
        """Return whether a version of the crate is affected."""
        return not any(_satisfies(version, requirement) for requirement in self.unaffected)


def locked_crates() -> dict[str, str]:
    """Return the version of each crate in ``Cargo.lock``, without raftlog's own."""
    locked = tomllib.loads((CRATE / "Cargo.lock").read_text())["package"]
    return {one["name"]: one["version"] for one in locked if "source" in one}


def advisories(text: str) -> dict[str, list[Advisory]]:
    """Return the advisories of each crate in the list's text, of some none."""
    header, *lines = text.splitlines()
    if not header.startswith(_HEADER):
        raise ValueError(f"{ADVISORIES.name} is not a list of advisories: {header!r}")
    found: dict[str, list[Advisory]] = {}
    for crate, name, versions in (line.split("\t") for line in lines):
        of_crate = found.setdefault(crate, [])
        if name != _NONE:
            of_crate.append(Advisory(crate, name, tuple(filter(None, versions.split("; ")))))
    return found


def _satisfies(version: str, requirement: str) -> bool:
    """Return whether a version satisfies all comparators of a requirement, such as
    ``>= 1.2.3, < 2``."""
    return all(_compares(version, one.strip()) for one in requirement.split(","))


def _compares(version: str, comparator: str) -> bool:
    found = re.fullmatch(r"(\^|>=|<=|>|<|=)?\s*(\d+(?:\.\d+){0,2})", comparator)
    if found is None:
        raise ValueError(f"the requirement {comparator!r} is not one that this module reads")
    known, bound = _numbers(version), _numbers(found[2])
    if found[1] in _COMPARISONS:
        return _COMPARISONS[found[1]](known, bound)
    fixed = next((at for at, number in enumerate(bound) if number), 2) + 1
    return known >= bound and known[:fixed] == bound[:fixed]  # caret, cargo's default


def _numbers(version: str) -> tuple[int, ...]:
    """Return three numbers. A version with a suffix is not ordered by them, and is refused."""
    numbers = [int(number) for number in version.split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def _database_rows(database: Path) -> Iterator[str]:
    def git(*arguments: str) -> str:
        command = ["git", f"--git-dir={database}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    yield _HEADER + git("log", "-1", "--format=%cs %H").strip()
    for crate in locked_crates():
        paths = git("ls-tree", "--name-only", "HEAD", f"crates/{crate}/").split()
        if not paths:
            yield f"{crate}\t{_NONE}\t"
        for path in paths:
            head = git("show", f"HEAD:{path}").split("```toml\n", 1)[1].split("```", 1)[0]
            advisory = tomllib.loads(head)
            versions = advisory["versions"]
            if "withdrawn" not in advisory["advisory"]:
                unaffected = [*versions.get("patched", ()), *versions.get("unaffected", ())]
                yield "\t".join((crate, advisory["advisory"]["id"], "; ".join(unaffected)))


if __name__ == "__main__":
    ADVISORIES.write_text("".join(f"{row}\n" for row in _database_rows(Path(sys.argv[1]))))
