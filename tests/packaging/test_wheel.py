"""The wheel is complete: three packages, and Spark finds the source unregistered."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.support.spark_session import JVM_OPTIONS

from raftlog import __version__, compiled

HOME = Path(__file__).parents[2]
LOG = HOME / "tests/data/kraft-logs/three-nodes-4.3.1/node-100"

pytestmark = pytest.mark.xdist_group("wheel")
"""One worker builds the wheel: two builds write to the same directory of the sources."""

READ_UNREGISTERED = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", sys.argv[2]).getOrCreate()
import raftlog
print("from", raftlog.__file__)
print("rows", spark.read.format("raftlog").load(sys.argv[1]).count())
print("stream", spark.readStream.format("raftlog").load(sys.argv[1]).isStreaming)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(HOME)],
        check=True,
        capture_output=True,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_three_typed_packages_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {"raftlog", "raftlog_state", "pyspark_raftlog"}
    assert {f"{package}/py.typed" for package in packages} <= set(names)
    rules = (HOME / "state/raftlog_state/tables/invariants").glob("*.sql")
    assert {f"raftlog_state/tables/invariants/{rule.name}" for rule in rules} <= set(names)
    assert not [name for name in names if re.search(r"(^|/)(tests?|conftest|test_)", name)]


def without_cargo() -> dict[str, str]:
    """Return an environment in which no cargo is found."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    path = [folder for folder in folders if not (Path(folder) / "cargo").exists()]
    return {**os.environ, "PATH": os.pathsep.join(path)}


def pure_wheel_of_a_copy(copy: Path, folder: Path, *, time_s: int) -> Path:
    """Build a wheel of a copy of the sources as `make wheel` does, and without cargo."""
    left_out = shutil.ignore_patterns(".*", "target", "build", "tests", "*.so", "*.egg-info")
    shutil.copytree(HOME, copy, ignore=left_out)
    for path in copy.rglob("*"):
        os.utime(path, (time_s, time_s))
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(copy)]
    environment = without_cargo() | {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(pip, check=True, capture_output=True, env=environment)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def pure(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that is built without cargo."""
    home = tmp_path_factory.mktemp("pure")
    return pure_wheel_of_a_copy(home / "one", home / "wheel", time_s=1_600_000_000)


@pytest.mark.nightly
def test_a_wheel_without_cargo_is_for_every_platform_and_runs_in_python(
    pure: Path, tmp_path: Path
) -> None:
    """CI runs ``make pure``, which installs one and runs the quick tests with it."""
    assert pure.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]
    assert version_of(pure, tmp_path) == "(pure Python)"


@pytest.mark.slow
@pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")
def test_a_wheel_with_the_compiled_core_is_for_one_platform_and_every_python(
    wheel: Path, tmp_path: Path
) -> None:
    assert "-cp311-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if "_native" in name] == [
        "raftlog/_native.abi3.so",
        "raftlog/_native.pyi",
    ]
    assert version_of(wheel, tmp_path) == "(compiled core)"
    assert version_of(wheel, tmp_path, RAFTLOG_NATIVE="0") == "(pure Python)"


@pytest.mark.nightly
@pytest.mark.skipif(not compiled.is_native, reason="the compiled core is not built")
def test_a_build_in_another_directory_has_the_same_compiled_core(
    wheel: Path, tmp_path: Path
) -> None:
    copy, again = tmp_path / "sources", tmp_path / "wheel"
    left_out = shutil.ignore_patterns(".*", "target", "build", "tests", "*.so", "*.egg-info")
    shutil.copytree(HOME, copy, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(again), str(copy)]
    subprocess.run(pip, check=True, capture_output=True)
    (built,) = again.glob("*.whl")
    name = "raftlog/_native.abi3.so"
    assert zipfile.ZipFile(built).read(name) == zipfile.ZipFile(wheel).read(name)


@pytest.mark.nightly
def test_builds_of_two_copies_are_equal_to_the_byte(pure: Path, tmp_path: Path) -> None:
    """In other directories, and with other times of the files. The compiled core is compared by the
    test above, and both by each `make release`."""
    copy = tmp_path / "another-place"
    again = pure_wheel_of_a_copy(copy, tmp_path / "wheel", time_s=1_600_086_400)
    assert (again.name, again.read_bytes()) == (pure.name, pure.read_bytes())


def version_of(wheel: Path, site: Path, **environment: str) -> str:
    """Return which implementation the unpacked wheel runs."""
    zipfile.ZipFile(wheel).extractall(site)
    # The finder of an editable installation would find a module that the wheel lacks.
    program = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in str(f)]; "
    program += "from raftlog_state.cli.main import main; sys.exit(main(['--version']))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().removeprefix(f"raftlog {__version__} ")


@pytest.mark.slow
def test_the_command_line_runs_from_the_wheel_as_a_zip(wheel: Path, tmp_path: Path) -> None:
    """Executors get a zip archive: no module may need a file beside it."""
    archive = wheel.with_suffix(".zip")
    archive.write_bytes(wheel.read_bytes())
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from raftlog_state.cli.main import main; "
    )
    program += "import raftlog; assert '.zip' in raftlog.__file__; sys.exit(main(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(archive), "cat", "--to", "12", str(LOG)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"BEGIN_TRANSACTION_RECORD"' in done.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_spark_finds_the_source_in_an_installed_wheel_without_registration(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "-t", str(site), str(wheel)],
        check=True,
        capture_output=True,
    )
    environment = {**os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", READ_UNREGISTERED, str(LOG), JVM_OPTIONS],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"from {site}" in done.stdout
    assert "stream True" in done.stdout
    (rows,) = [line for line in done.stdout.splitlines() if line.startswith("rows")]
    assert int(rows.split()[1]) > 3000
