"""Plant one bug after the other in a copy of the sources, and check that the tests find each.

``python -m tests.planted.run [WORD]``: only the bugs that the word occurs in. With ``--since
COMMIT`` only those that were added, or whose file or tests were changed, since that commit. With
``--seeds 20`` a second column has how many random seeds of the simulator find the bug, without any
test that was written for it. Exit code 1 if a test does not find its bug, or on any other problem:
tests fail without any bug, a plant does not fit, a run ends in another way than by failing tests.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.planted.plant import Plant
from tests.planted.registry import EVERY_PLANT

HOME: Final = Path(__file__).parents[2]
COPIED: Final = (
    "connector",
    "state",
    "python_datasource",
    "tests",
    ".ci",  # with the checksums of jars
    "pyproject.toml",
    "setup.cfg",
)
NOT_COPIED: Final = ("__pycache__", "target")
CRATE: Final = "connector/native"
BUILT: Final = "connector/raftlog/_native.abi3.so"
SOURCES: Final = COPIED[:3]
WORKERS_MAX: Final = 8
TIMEOUT_S: Final = 300
TIMEOUT_OF_ALL_S: Final = 1_800
"""For the tests of all bugs together."""
SEEDS_TIMEOUT_S: Final = 60
"""For one seed: with a bug a run may never end."""
FIRST_SEED: Final = 40_000_000
"""No test runs these seeds."""
_FAILED_SEEDS: Final = re.compile(r": (\d+) of \d+ failed")
_FAILED: Final = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_TESTS_FAILED: Final = 1
"""pytest's exit code of failed tests, and of no other problem."""


@dataclass(frozen=True, slots=True)
class Result:
    """``test``: the first one that failed, None if none did. ``trouble``: why there is no result.

    ``seeds``: how many random seeds found the bug, as text; "-" if the simulator runs other code.
    """

    test: str | None
    seconds: float
    trouble: str | None = None
    seeds: str = ""


class Copy:
    """Copy of the sources and tests; runs in it import no other raftlog."""

    def __init__(self, home: Path) -> None:
        self.home = home
        for name in COPIED:
            source = HOME / name
            if source.is_dir():
                ignore = shutil.ignore_patterns(*NOT_COPIED)
                shutil.copytree(source, home / name, ignore=ignore)
            else:
                shutil.copy(source, home / name)
        self._check_imports()
        self._simulated: frozenset[str] | None = None

    def run(self, tests: Sequence[str], *, pure: bool = False) -> Result:
        """Run tests up to the first that fails; with ``pure`` without the compiled core."""
        command = [sys.executable, "-m", "pytest", "-x", "-rf", "--tb=no", "-p", "no:cacheprovider"]
        timeout_s = min(TIMEOUT_S * len(tests), TIMEOUT_OF_ALL_S)
        began = time.monotonic()
        try:
            ended = self._python([*command, *tests], timeout_s, pure=pure)
        except subprocess.TimeoutExpired:
            return Result(None, timeout_s, f"no end in {timeout_s} s")
        seconds = time.monotonic() - began
        if ended.returncode == 0:
            return Result(None, seconds)
        failed = _FAILED.search(ended.stdout)
        if ended.returncode != _TESTS_FAILED or failed is None:
            return Result(None, seconds, "the tests did not run:\n" + ended.stdout + ended.stderr)
        return Result(failed[1], seconds)

    def run_with(self, plant: Plant, seed_count: int) -> Result:
        """Run the tests of a bug with the bug in place, then this number of random seeds."""
        is_simulated = seed_count > 0 and plant.path in self._simulated_files()
        try:
            before = plant.apply(self.home)
        except ValueError as error:
            return Result(None, 0.0, str(error))
        is_compiled = plant.path.startswith(CRATE)
        try:
            if is_compiled and (trouble := self._build()) is not None:
                return Result(None, 0.0, trouble)
            result = self.run(plant.tests)
            if result.test is None and result.trouble is None and not is_compiled:
                result = self.run(plant.tests, pure=True)  # the core may have hidden it
            seeds = self._failing_seeds(seed_count) if is_simulated else "-"
            return replace(result, seeds=seeds)
        finally:
            (self.home / plant.path).write_text(before)
            if is_compiled and (HOME / BUILT).exists():
                shutil.copy(HOME / BUILT, self.home / BUILT)

    def _build(self) -> str | None:
        """Build the compiled core of the copy; return why that failed, or None."""
        command = ["cargo", "build", "--release", "--locked", "--offline", "--quiet"]
        try:
            ended = subprocess.run(
                command, cwd=self.home / CRATE, capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            return "a bug of the compiled core needs cargo"
        if ended.returncode != 0:
            return "the compiled core was not built:\n" + ended.stderr
        built = self.home / CRATE / "target/release/libraftlog_native.so"
        shutil.copy(built, self.home / BUILT)
        return None

    def _failing_seeds(self, count: int) -> str:
        """Return how many of these random seeds violate a guarantee, as ``3 of 20``."""
        command = [sys.executable, "-m", "tests.simulation.running", "--workers", "1"]
        command += ["--first", str(FIRST_SEED), "--seeds", str(count)]
        try:
            ended = self._python(command, SEEDS_TIMEOUT_S * count)
        except subprocess.TimeoutExpired:
            return "a run without end"
        failed = _FAILED_SEEDS.search(ended.stdout)
        return "a run that crashes" if failed is None else f"{failed[1]} of {count}"

    def _simulated_files(self) -> frozenset[str]:
        """Return the files that the simulator imports, relative to the copy."""
        if self._simulated is None:
            code = "import sys, tests.simulation.running\n"
            code += "for one in sys.modules.values(): print(getattr(one, '__file__', None))"
            files = self._python([sys.executable, "-c", code]).stdout.splitlines()
            home = f"{self.home.resolve()}{os.sep}"
            self._simulated = frozenset(one.removeprefix(home) for one in files)
        return self._simulated

    def _python(
        self, command: list[str], timeout_s: int = TIMEOUT_S, *, pure: bool = False
    ) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(str(self.home / name) for name in (*SOURCES, "."))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        if pure:
            environment["RAFTLOG_NATIVE"] = "0"
        return subprocess.run(
            command,
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _check_imports(self) -> None:
        """Check that an installed raftlog is not imported instead of the one with the bug."""
        code = "import raftlog, tests; print(raftlog.__file__, tests.__file__)"
        found = self._python([sys.executable, "-c", code]).stdout.split()
        wanted = self.home.resolve()
        if not found or not all(Path(one).resolve().is_relative_to(wanted) for one in found):
            raise SystemExit(f"what is imported in {self.home} is not the copy: {found}")


def print_line(line: str) -> None:
    """Print a line and flush it."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@contextmanager
def copies(count: int) -> Iterator[queue.Queue[Copy]]:
    """Provide this number of copies, to be acquired and released."""
    with tempfile.TemporaryDirectory(prefix="raftlog-planted-") as directory:
        free: queue.Queue[Copy] = queue.Queue()
        for number in range(count):
            home = Path(directory) / str(number)
            home.mkdir()
            free.put(Copy(home))
        yield free


def run_all(plants: list[Plant], seed_count: int) -> bool:
    """Print the table; return whether every bug was found."""
    workers = min(os.cpu_count() or 1, WORKERS_MAX)
    with copies(workers) as free, ThreadPoolExecutor(workers) as pool:

        def one(plant: Plant | None) -> Result:
            copy = free.get()
            try:
                if plant is None:
                    return copy.run(sorted({test for plant in plants for test in plant.tests}))
                return copy.run_with(plant, seed_count)
            finally:
                free.put(copy)

        unchanged = pool.submit(one, None)
        width = max(len(plant.bug) for plant in plants)
        found = 0
        print_line(f"{'bug':{width}}  {'s':>5}  {'random seeds':12}  caught by")
        for plant, result in zip(plants, pool.map(one, plants), strict=True):
            found += result.test is not None
            words = result.test or result.trouble or "NO TEST"
            print_line(f"{plant.bug:{width}}  {result.seconds:5.1f}  {result.seeds:12}  {words}")
        without = unchanged.result()
    print_line(f"{found} of {len(plants)} caught")
    if without.test is not None or without.trouble is not None:
        print_line(f"without any bug: {without.test or without.trouble}")
        return False
    print_line(f"without any bug the same tests pass ({without.seconds:.1f} s)")
    return found == len(plants)


def git_diff(*arguments: str) -> str:
    """Return the differences between a commit and the work tree. Exits if git has none."""
    command = ["git", "diff", *arguments]
    ended = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise SystemExit(ended.stderr.strip())
    return ended.stdout


def changed_since(commit: str) -> list[Plant]:
    """Return the bugs that are new, or whose file or tests were changed, since a commit."""
    files = git_diff("--name-only", commit, "--").splitlines()
    lines = git_diff("--unified=0", commit, "--", "tests/planted").splitlines()
    new = "\n".join(line for line in lines if line.startswith("+"))

    def is_changed(plant: Plant) -> bool:
        paths = (plant.path, *(test.partition("::")[0] for test in plant.tests))
        return plant.bug in new or any(
            Path(file).is_relative_to(p) for p in paths for file in files
        )

    return [plant for plant in EVERY_PLANT if is_changed(plant)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="make planted")
    parser.add_argument("word", nargs="?", default="", help="only bugs with it in their names")
    parser.add_argument("--since", metavar="COMMIT", help="only bugs whose code or tests changed")
    parser.add_argument("--seeds", type=int, default=0, help="how many random seeds to run as well")
    chosen = parser.parse_args()
    plants = changed_since(chosen.since) if chosen.since else list(EVERY_PLANT)
    plants = [plant for plant in plants if chosen.word in plant.bug]
    if not plants:
        print_line("no planted bug is selected")
        return 1
    return 0 if run_all(plants, chosen.seeds) else 1


if __name__ == "__main__":
    sys.exit(main())
