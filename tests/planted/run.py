"""Plant one bug after the other in a copy of the sources, and see that the tests find each.

``python -m tests.planted.run [WORD]``: only the bugs that the word occurs in. Exit code 1 if one is
not found, or if something else is wrong: tests fail without any bug, a plant does not fit, a run
ends in another way than by failing tests.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.planted.plant import Plant
from tests.planted.registry import EVERY_PLANT

HOME: Final = Path(__file__).parents[2]
COPIED: Final = ("connector", "state", "python_datasource", "tests", "pyproject.toml", "setup.cfg")
SOURCES: Final = COPIED[:3]
WORKERS_MAX: Final = 8
TIMEOUT_S: Final = 300
TIMEOUT_OF_ALL_S: Final = 1_800
"""For the tests of all bugs together."""
_FAILED: Final = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_TESTS_FAILED: Final = 1
"""pytest's exit code for that, and for nothing else that may go wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    """``test``: the first one that failed, None if none did. ``trouble``: why that says nothing."""

    test: str | None
    seconds: float
    trouble: str | None = None


class Copy:
    """A copy of the sources and tests, which alone is imported by what is run in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in COPIED:
            source = HOME / name
            if source.is_dir():
                shutil.copytree(source, home / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, home / name)
        self._check_that_it_is_imported()

    def run(self, tests: Sequence[str]) -> Result:
        """Run tests up to the first that fails."""
        command = [sys.executable, "-m", "pytest", "-x", "-rf", "--tb=no", "-p", "no:cacheprovider"]
        timeout_s = min(TIMEOUT_S * len(tests), TIMEOUT_OF_ALL_S)
        began = time.monotonic()
        try:
            ended = self._python([*command, *tests], timeout_s)
        except subprocess.TimeoutExpired:
            return Result(None, timeout_s, f"no end in {timeout_s} s")
        seconds = time.monotonic() - began
        if ended.returncode == 0:
            return Result(None, seconds)
        failed = _FAILED.search(ended.stdout)
        if ended.returncode != _TESTS_FAILED or failed is None:
            return Result(None, seconds, "the tests did not run:\n" + ended.stdout + ended.stderr)
        return Result(failed[1], seconds)

    def run_with(self, plant: Plant) -> Result:
        """Run the tests that must find a bug with the bug in place."""
        try:
            before = plant.apply(self.home)
        except ValueError as error:
            return Result(None, 0.0, str(error))
        try:
            return self.run(plant.tests)
        finally:
            (self.home / plant.path).write_text(before)

    def _python(
        self, command: list[str], timeout_s: int = TIMEOUT_S
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(self.home / name) for name in (*SOURCES, "."))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command,
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _check_that_it_is_imported(self) -> None:
        """An installed raftlog must not stand in front of the one with the bug."""
        code = "import raftlog, tests; print(raftlog.__file__, tests.__file__)"
        found = self._python([sys.executable, "-c", code]).stdout.split()
        wanted = self.home.resolve()
        if not found or not all(Path(one).resolve().is_relative_to(wanted) for one in found):
            raise SystemExit(f"what is imported in {self.home} is not the copy: {found}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def copies(count: int) -> Iterator[queue.Queue[Copy]]:
    """So many copies, to be taken and given back."""
    with tempfile.TemporaryDirectory(prefix="raftlog-planted-") as directory:
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(count):
            home = Path(directory) / str(number)
            home.mkdir()
            free.put(Copy(home))
        yield free


def run_all(plants: list[Plant]) -> bool:
    """Print the table; whether every bug was found."""
    workers = min(os.cpu_count() or 1, WORKERS_MAX)
    with copies(workers) as free, ThreadPoolExecutor(workers) as pool:

        def one(plant: Plant | None) -> Result:
            copy = free.get()
            try:
                if plant is None:
                    return copy.run(sorted({test for plant in plants for test in plant.tests}))
                return copy.run_with(plant)
            finally:
                free.put(copy)

        sound = pool.submit(one, None)
        width = max(len(plant.bug) for plant in plants)
        found = 0
        say(f"{'bug':{width}}  {'s':>5}  caught by")
        for plant, result in zip(plants, pool.map(one, plants), strict=True):
            found += result.test is not None
            words = result.test or result.trouble or "NOBODY"
            say(f"{plant.bug:{width}}  {result.seconds:5.1f}  {words}")
        without = sound.result()
    say(f"{found} of {len(plants)} caught")
    if without.test is not None or without.trouble is not None:
        say(f"without any bug: {without.test or without.trouble}")
        return False
    say(f"without any bug the same tests pass ({without.seconds:.1f} s)")
    return found == len(plants)


def main(word: str = "") -> int:
    plants = [plant for plant in EVERY_PLANT if word in plant.bug]
    if not plants:
        say(f"no planted bug has {word!r} in its name")
        return 1
    return 0 if run_all(plants) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
