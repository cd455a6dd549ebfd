"""Real files, written. With ``local`` and ``local_locks`` the only modules that touch any.

Rules of this file:

1. Nothing is created but by ``create_file``, ``make_directory`` and ``try_lock``; nothing is
   written through a descriptor that was opened for reading.
2. Only ``sync`` and ``sync_directory`` make anything durable. Neither is ever retried: not here,
   and not by a caller (``DiskFailedError``).
3. Every ``OSError`` becomes an error of raftlog's that names the path.
4. A file has no right that its directory does not have: in a private directory it is private from
   the start. A directory for its owner and group alone gives the group its rights to new files
   whatever the umask is. The rest is left to the umask.
5. No symbolic link is written through: it may lead out of the log's directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

from raftlog.errors import (
    DiskFailedError,
    DiskFullError,
    FileExistsLogError,
    LogAccessError,
    LogError,
    LogNotFoundError,
    NotALogError,
)

from .local import LocalFile, LocalStorage, translated
from .local_locks import LocalLock, lock_descriptor

_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ANY_MODE: Final = 0o777
_OWNER_MODE: Final = 0o700
_GROUP_BITS: Final = 0o070
_OTHERS_BITS: Final = 0o007
_PRIVATE_FILE_MODE: Final = 0o600
_LINUX_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MACOS_BOOT_ID: Final = ("sysctl", "-n", "kern.bootsessionuuid")


class WritableLocalFile(LocalFile):
    """An open file of this machine that may be written."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data``, by as many calls as that takes."""
        descriptor = self._open_descriptor()
        rest = memoryview(data).cast("B")
        try:
            # One pwrite may stop short: by a signal, at 2 GiB, or where the disk is full.
            while rest:
                written = os.pwrite(descriptor, rest, position)
                position += written
                rest = rest[written:]
        except OSError as error:
            raise _translated(self.path, error) from None

    def truncate(self, byte_count: int) -> None:
        """Cut the file, or make it longer with zeros."""
        try:
            os.ftruncate(self._open_descriptor(), byte_count)
        except OSError as error:
            raise _translated(self.path, error) from None

    def is_in_place(self) -> bool:
        """Whether the path still leads to the file that is open."""
        try:
            at_path, opened = os.stat(self.path), os.fstat(self._open_descriptor())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _translated(self.path, error) from None
        return os.path.samestat(at_path, opened)

    def sync(self) -> None:
        """Flush bytes and length to the device; whatever goes wrong is ``DiskFailedError``."""
        _sync(self._open_descriptor(), self.path)


class WritableLocalStorage(LocalStorage):
    """The files of this machine, for reading and writing.

    ``directory_mode`` is that of the directories that it makes, and of those that were there and
    empty; without one the umask decides.
    """

    file_mode: ClassVar[int] = 0o666

    def __init__(self, *, directory_mode: int | None = None) -> None:
        self._directory_mode = directory_mode

    def create_file(self, path: str) -> WritableLocalFile:
        """Make an empty file that was not there."""
        return WritableLocalFile(path, self._create(path, os.O_CREAT | os.O_EXCL))

    def open_for_writing(self, path: str) -> WritableLocalFile:
        """Open a file that is there; a directory, a pipe or a device is refused."""
        if self.is_directory(path) or not os.path.isfile(path):
            raise NotALogError(path=path, reason="a file was expected there")
        return WritableLocalFile(path, self._open(path))

    def make_directory(self, path: str) -> bool:
        """Make one directory; False if it was there."""
        with _errors_of(path):
            try:
                os.mkdir(path, _ANY_MODE if self._directory_mode is None else _OWNER_MODE)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise NotALogError(path=path, reason="a directory was expected there") from None
                if not os.listdir(path):
                    self._set_directory_mode(path)
                return False
            self._set_directory_mode(path)  # the umask may have taken some of it
        return True

    def rename(self, path: str, new_path: str) -> None:
        """Rename in one step, replacing a file that has the new name."""
        assert os.path.dirname(path) == os.path.dirname(new_path), "one directory can be synced"
        with _errors_of(path):
            os.replace(path, new_path)

    def unlink(self, path: str) -> None:
        """Take a file out of its directory."""
        with _errors_of(path):
            if os.path.isdir(path):  # Linux would say EISDIR, others EPERM
                raise NotALogError(path=path, reason="a file was expected there")
            os.unlink(path)

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Take away all rights to write, as Kafka does with a frozen snapshot."""
        gone = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
        if owner_only:
            gone |= stat.S_IRWXG | stat.S_IRWXO
        with _errors_of(path):
            os.chmod(path, os.stat(path).st_mode & ~gone)

    def sync_directory(self, directory: str) -> None:
        """Flush the names in a directory to the device."""
        if not self.is_directory(directory):
            raise NotALogError(path=directory, reason="a directory was expected there")
        with _errors_of(directory):
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
            descriptor = self._with_descriptor(lambda: os.open(directory, flags))
        try:
            _sync(descriptor, directory, is_directory=True)
        finally:
            os.close(descriptor)

    def try_lock(self, path: str) -> LocalLock | None:
        """Lock a file, made if need be; None if somebody holds it."""
        descriptor = self._create(path, os.O_CREAT)
        is_locked = False
        try:
            with _errors_of(path):
                is_locked = lock_descriptor(descriptor)
        finally:
            if not is_locked:
                os.close(descriptor)
        return LocalLock(descriptor) if is_locked else None

    def _create(self, path: str, flags: int) -> int:
        """Open a file that is created if need be, with the rights that its directory allows."""
        with _errors_of(path):
            allowed = stat.S_IMODE(os.stat(os.path.dirname(path) or os.curdir).st_mode)
        mode = self.file_mode & allowed
        descriptor = self._open(path, flags, mode)
        if mode & _GROUP_BITS and not allowed & _OTHERS_BITS:
            with contextlib.suppress(OSError):  # a lock that another user of the group made
                os.fchmod(descriptor, mode)
        return descriptor

    def _set_directory_mode(self, path: str) -> None:
        """Give a directory its mode. That of another user, such as the root of a mounted volume,
        stays as it is if its files are private all the same."""
        mode = self._directory_mode
        if mode is None or stat.S_IMODE(os.stat(path).st_mode) & _ANY_MODE == mode:
            return
        try:
            os.chmod(path, mode)
        except PermissionError:
            if self.file_mode & ~_OWNER_MODE:
                raise  # its files would be as open as the directory

    def boot_id(self) -> str:
        """Linux's random id of this boot; macOS's on macOS. Raises ``LogAccessError``."""
        try:
            if sys.platform == "linux":
                with open(_LINUX_BOOT_ID, encoding="ascii") as file:
                    return file.read().strip()
            answer = subprocess.run(_MACOS_BOOT_ID, capture_output=True, check=True, text=True)
            return answer.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            raise LogAccessError(
                path=_LINUX_BOOT_ID if sys.platform == "linux" else " ".join(_MACOS_BOOT_ID),
                reason="this system does not say which boot it is in",
                remedy="write logs on Linux or macOS, with /proc mounted",
            ) from None

    def _open(self, path: str, more_flags: int = 0, mode: int = 0) -> int:
        with _errors_of(path):
            return self._with_descriptor(lambda: os.open(path, _FLAGS | more_flags, mode))


class PrivateLocalStorage(WritableLocalStorage):
    """The same, whose new files and directories are for their owner alone: a node's."""

    file_mode = _PRIVATE_FILE_MODE

    def __init__(self) -> None:
        super().__init__(directory_mode=_OWNER_MODE)


@contextmanager
def _errors_of(path: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise FileExistsLogError(path=path) from None
    except OSError as error:
        raise _translated(path, error) from None
    except ValueError:  # a zero byte in the path
        raise LogNotFoundError(path=repr(path)) from None


def _sync(descriptor: int, path: str, *, is_directory: bool = False) -> None:
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # its fsync leaves bytes in the drive
        elif is_directory:
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)  # flushes the length too, where it changed
    except OSError as error:
        raise DiskFailedError(path=path, reason=_reason(error)) from None


def _translated(path: str, error: OSError) -> LogError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return DiskFullError(path=path, reason=_reason(error))
        case errno.EIO:
            return DiskFailedError(path=path, reason=_reason(error))
        case errno.ELOOP:
            return LogAccessError(
                path=path,
                reason="it is a symbolic link",
                to_write=True,
                remedy="a log is written in files of its own: remove the link",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return LogAccessError(path=path, reason=_reason(error), to_write=True)
        case _:
            return translated(path, error)


def _reason(error: OSError) -> str:
    return (error.strerror or "the operating system gave no reason").lower()
