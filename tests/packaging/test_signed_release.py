"""A release is signed so that its users can verify it by the commands of SECURITY.md."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
IDENTITY = "releases@raftlog"
pytestmark = pytest.mark.skipif(
    not shutil.which("ssh-keygen"), reason="ssh-keygen of OpenSSH is not installed"
)


class Release:
    """A directory with files and their checksums, and the keys of a maker of releases."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.dist = home / "dist"
        self.signers = self.dist / "release.signers"  # where SECURITY.md has it
        self.dist.mkdir()
        self.wheel = self.dist / "raftlog-1.0-py3-none-any.whl"
        self.wheel.write_bytes(b"a wheel")
        self.write_sums()
        self.key = self.new_key("release")
        self.signers.write_text(f'{IDENTITY} namespaces="raftlog-release" {public(self.key)}\n')

    def write_sums(self) -> None:
        checksum = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        (self.dist / "SHA256SUMS").write_text(f"{checksum}  {self.wheel.name}\n")

    def new_key(self, name: str) -> Path:
        path = self._home / name
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
        subprocess.run(command, check=True)
        return path

    def sign(self, key: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(HOME / ".ci" / "sign"), str(key or self.key), str(self.dist)]
        return run([*command, str(self.signers)])

    def is_verified(self) -> bool:
        """Return whether the commands of SECURITY.md succeed."""
        command = documented(r"^```sh\n(ssh-keygen .*?)^```$")
        return run(["sh", "-c", command], self.dist).returncode == 0

    def pulled(self) -> str:
        """Return the image that the command of SECURITY.md pulls; empty for none."""
        command = documented(r"^```sh\n(.*?podman pull .*?)^```$")
        return run(["sh", "-c", command.replace("podman pull", "echo")], self.dist).stdout.strip()


def documented(pattern: str) -> str:
    """Return the commands of SECURITY.md that match."""
    page = (HOME / "SECURITY.md").read_text()
    found = re.search(pattern, page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1].rpartition("```sh\n")[2]


def public(key: Path) -> str:
    return key.with_suffix(".pub").read_text().strip()


def run(command: list[str], where: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    return Release(tmp_path)


def test_a_signed_release_is_verified(release: Release) -> None:
    assert release.sign().returncode == 0
    assert release.is_verified()


@pytest.mark.parametrize("are_sums_changed", [False, True])
def test_a_changed_file_is_found_also_with_its_checksum(
    release: Release, *, are_sums_changed: bool
) -> None:
    release.sign()
    release.wheel.write_bytes(b"another wheel")
    if are_sums_changed:
        release.write_sums()
    assert not release.is_verified()


def test_an_image_that_the_checksums_do_not_name_is_not_pulled(release: Release) -> None:
    """The checksums of a release without an image are valid beside any name of one."""
    release.sign()
    image = release.dist / "raftlog.image"
    image.write_text("registry.example/raftlog@sha256:00\n")
    assert release.is_verified()
    assert not release.pulled()
    checksum = hashlib.sha256(image.read_bytes()).hexdigest()
    with (release.dist / "SHA256SUMS").open("a") as sums:
        sums.write(f"{checksum}  {image.name}\n")
    release.sign()
    assert release.is_verified()
    assert release.pulled() == "registry.example/raftlog@sha256:00"


def test_a_release_without_a_signature_is_not_verified(release: Release) -> None:
    assert not release.is_verified()


def test_a_signature_by_another_key_is_refused_by_the_recipe(release: Release) -> None:
    done = release.sign(release.new_key("other"))
    assert done.returncode == 1
    assert "does not have the key" in done.stderr
    assert not (release.dist / "SHA256SUMS.sig").exists()


def test_a_signature_for_another_purpose_is_refused(release: Release) -> None:
    """As one of a commit by the same key."""
    sums = release.dist / "SHA256SUMS"
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(release.key), "-n", "git", str(sums)]
    subprocess.run(command, check=True)
    assert not release.is_verified()


def test_the_recipe_signs_what_it_has_summed_up_at_last() -> None:
    recipe = (HOME / ".ci" / "release").read_text()
    steps = ["cyclonedx-py", ".ci/image", "release_documents.py", ".ci/sign"]
    assert recipe.index(steps[1]) < recipe.index(steps[2]) < recipe.index(steps[3])
    assert '"SHA256SUMS"' in (HOME / ".ci" / "release_documents.py").read_text()
