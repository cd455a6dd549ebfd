"""Local files, written. Only this module, ``local`` and ``local_locks`` access local files.

Invariants:

1. Only ``create_file``, ``make_directory`` and ``try_lock`` create files; a descriptor that was
   opened for reading is never written.
2. Only ``sync`` and ``sync_directory`` make anything durable. Neither is ever retried, here or by a
   caller: after a failed fsync the kernel may drop the dirty pages (``DiskFailedError``).
3. Every ``OSError`` is raised as an error of raftlog with the path.
4. A file has no permission that its directory does not have, so that files of a private directory
   are private from their creation. If a directory has no permissions for others, its group
   permissions apply to new files whatever the umask is; otherwise the umask applies.
5. Symbolic links are not written through: they may point out of the log's directory.
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
    """Open file of this machine that may be written."""

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        """Write all of ``data``, in as many calls as needed."""
        descriptor = self._open_descriptor()
        rest = memoryview(data).cast("B")
        try:
            # One pwrite may write less: after a signal, at 2 GiB, or on a full disk.
            while rest:
                written = os.pwrite(descriptor, rest, position)
                position += written
                rest = rest[written:]
        except OSError as error:
            raise _translated(self.path, error) from None

    def truncate(self, byte_count: int) -> None:
        """Truncate the file, or extend it with zeros."""
        try:
            os.ftruncate(self._open_descriptor(), byte_count)
        except OSError as error:
            raise _translated(self.path, error) from None

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the open file."""
        try:
            at_path, opened = os.stat(self.path), os.fstat(self._open_descriptor())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _translated(self.path, error) from None
        return os.path.samestat(at_path, opened)

    def sync(self) -> None:
        """Flush bytes and length to the device. Raises ``DiskFailedError`` for any error."""
        _sync(self._open_descriptor(), self.path)


class WritableLocalStorage(LocalStorage):
    """Files of this machine, for reading and writing.

    ``directory_mode`` is the mode of directories that are created, or exist and are empty; None for
    the umask's.
    """

    file_mode: ClassVar[int] = 0o666

    def __init__(self, *, directory_mode: int | None = None) -> None:
        self._directory_mode = directory_mode

    def create_file(self, path: str) -> WritableLocalFile:
        """Create an empty file. Raises ``FileExistsLogError``."""
        return WritableLocalFile(path, self._create(path, os.O_CREAT | os.O_EXCL))

    def open_for_writing(self, path: str) -> WritableLocalFile:
        """Open an existing regular file; ``NotALogError`` for anything else."""
        if self.is_directory(path) or not os.path.isfile(path):
            raise NotALogError(path=path, reason="a file was expected there")
        return WritableLocalFile(path, self._open(path))

    def make_directory(self, path: str) -> bool:
        """Create a directory; False if it exists."""
        with _errors_of(path):
            try:
                os.mkdir(path, _ANY_MODE if self._directory_mode is None else _OWNER_MODE)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise NotALogError(path=path, reason="a directory was expected there") from None
                if not os.listdir(path):
                    self._set_directory_mode(path)
                return False
            self._set_directory_mode(path)  # the umask may have removed permissions
        return True

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically, replacing a file with the new name."""
        assert os.path.dirname(path) == os.path.dirname(new_path), (
            "both names must be in one directory"
        )
        with _errors_of(path):
            os.replace(path, new_path)

    def unlink(self, path: str) -> None:
        """Remove a file's name from its directory."""
        with _errors_of(path):
            if os.path.isdir(path):  # Linux would return EISDIR, others EPERM
                raise NotALogError(path=path, reason="a file was expected there")
            os.unlink(path)

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Remove all write permissions, as Kafka does with a frozen snapshot."""
        removed = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
        if owner_only:
            removed |= stat.S_IRWXG | stat.S_IRWXO
        with _errors_of(path):
            os.chmod(path, os.stat(path).st_mode & ~removed)

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
        """Lock a file, created if absent; None if another opening has the lock."""
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
        """Open a file, created if absent, with the permissions that its directory allows."""
        with _errors_of(path):
            allowed = stat.S_IMODE(os.stat(os.path.dirname(path) or os.curdir).st_mode)
        mode = self.file_mode & allowed
        descriptor = self._open(path, flags, mode)
        if mode & _GROUP_BITS and not allowed & _OTHERS_BITS:
            with contextlib.suppress(OSError):  # another user of the group created the lock file
                os.fchmod(descriptor, mode)
        return descriptor

    def _set_directory_mode(self, path: str) -> None:
        """Set a directory's mode.

        A directory of another user, such as the root of a mounted volume, keeps its mode if the
        files in it are private anyway.
        """
        mode = self._directory_mode
        if mode is None or stat.S_IMODE(os.stat(path).st_mode) & _ANY_MODE == mode:
            return
        try:
            os.chmod(path, mode)
        except PermissionError:
            if self.file_mode & ~_OWNER_MODE:
                raise  # the files would be as accessible as the directory

    def boot_id(self) -> str:
        """Return the random id of this boot, by Linux or macOS. Raises ``LogAccessError``."""
        try:
            if sys.platform == "linux":
                with open(_LINUX_BOOT_ID, encoding="ascii") as file:
                    return file.read().strip()
            answer = subprocess.run(_MACOS_BOOT_ID, capture_output=True, check=True, text=True)
            return answer.stdout.strip()
        except (OSError, subprocess.SubprocessError):
            raise LogAccessError(
                path=_LINUX_BOOT_ID if sys.platform == "linux" else " ".join(_MACOS_BOOT_ID),
                reason="the system has no boot id",
                remedy="write logs on Linux or macOS, with /proc mounted",
            ) from None

    def _open(self, path: str, more_flags: int = 0, mode: int = 0) -> int:
        with _errors_of(path):
            return self._with_descriptor(lambda: os.open(path, _FLAGS | more_flags, mode))


class PrivateLocalStorage(WritableLocalStorage):
    """Files of a node: new files and directories are accessible to their owner only."""

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
    except ValueError:  # a null byte in the path
        raise LogNotFoundError(path=repr(path)) from None


def _sync(descriptor: int, path: str, *, is_directory: bool = False) -> None:
    try:
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # fsync does not flush the drive's cache
        elif is_directory:
            os.fsync(descriptor)
        else:
            os.fdatasync(descriptor)  # flushes a changed length too
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
                remedy="remove the link: raftlog writes to regular files only",
            )
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return LogAccessError(path=path, reason=_reason(error), to_write=True)
        case _:
            return translated(path, error)


def _reason(error: OSError) -> str:
    return (error.strerror or "the operating system gave no reason").lower()
