"""Local files: reading without effects on the node that writes them, writing, and locks.

Only this module accesses the files of a log. Every ``OSError`` is raised as an error of raftlog
with the path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import stat
import struct
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, TypeVar

from raftlog.errors import (
    DiskFailedError,
    DiskFullError,
    FileExistsLogError,
    LogAccessError,
    LogError,
    LogNotFoundError,
    NotALogError,
    SegmentDeletedError,
)

from .protocol import Closeable

_T = TypeVar("_T")

# --- Reading --------------------------------------------------------------------------------------
# Files are opened ``O_RDONLY`` and read with ``pread``. There are no locks and no shared position,
# and nothing is created.

_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


class LocalFile(Closeable):
    """Open file of this machine."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @property
    def path(self) -> str:
        return self._path

    def read_at(self, position: int, byte_count: int) -> bytes:
        """Read up to ``byte_count`` bytes; fewer only at the end of the file."""
        descriptor = self._open_descriptor()
        parts = []
        try:
            # Before the end of the file, one pread may return less: after a signal, or at 2 GiB.
            while byte_count > 0 and (part := os.pread(descriptor, byte_count, position)):
                parts.append(part)
                position += len(part)
                byte_count -= len(part)
        except OSError as error:
            raise _read_error(self._path, error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def byte_count(self) -> int:
        """Return the current size of the file."""
        try:
            return os.fstat(self._descriptor or self._open_descriptor()).st_size
        except OSError as error:
            raise _read_error(self._path, error) from None

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open_descriptor(self) -> int:
        assert self._descriptor is not None, f"{self._path} was closed"
        return self._descriptor


class LocalStorage:
    """Files of this machine. Stateless, so it may be shared, copied and pickled."""

    def list_names(self, directory: str) -> list[str]:
        """Return the names in ``directory``, sorted."""
        with _errors_of(directory, _read_error):
            return sorted(self._with_descriptor(lambda: os.listdir(directory)))

    def open_file(self, path: str) -> LocalFile:
        """Open a regular file for reading. Raises ``NotALogError`` for anything else."""
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise NotALogError(path=path, reason="a file was expected there")
            return LocalFile(path, self._with_descriptor(lambda: os.open(path, _READ_FLAGS)))
        except OSError as error:
            raise _read_error(path, error) from None
        except ValueError:  # a null byte in the path
            raise LogNotFoundError(path=repr(path)) from None

    def is_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory. Raises ``LogNotFoundError`` if it is absent."""
        try:
            return stat.S_ISDIR(os.stat(path).st_mode)
        except OSError as error:
            raise _read_error(path, error) from None
        except ValueError:  # a null byte in the path
            raise LogNotFoundError(path=repr(path)) from None

    def join(self, directory: str, name: str) -> str:
        """Return the path of ``name`` in ``directory``."""
        return os.path.join(directory, name)

    def split(self, path: str) -> tuple[str, str]:
        """Return the directory and the name of ``path`` in its absolute form."""
        return os.path.split(os.path.abspath(path))

    def _with_descriptor(self, opened: Callable[[], _T]) -> _T:
        """Return the result of a call that opens a descriptor."""
        return opened()

    def expand(self, pattern: str) -> list[str]:
        """Return the paths that match a shell pattern, sorted.

        Raises ``LogAccessError`` if there are none because a directory of the path cannot be
        listed.
        """
        with _errors_of(pattern, _read_error):
            found = sorted(glob.glob(pattern))  # it treats such a directory as empty
        directory = pattern
        while not found and glob.has_magic(directory):
            directory = os.path.dirname(directory)
        if not found and directory != pattern:
            with contextlib.suppress(LogNotFoundError, NotALogError):
                self.list_names(directory or os.curdir)
        return found


@contextmanager
def _errors_of(path: str, translate: Callable[[str, OSError], LogError]) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise FileExistsLogError(path=path) from None
    except OSError as error:
        raise translate(path, error) from None
    except ValueError:  # a null byte in the path
        raise LogNotFoundError(path=repr(path)) from None


def _read_error(path: str, error: OSError) -> LogError:
    """Return raftlog's error for an operating system error during a read."""
    match error.errno:
        case errno.ENOENT | errno.ENAMETOOLONG:
            return LogNotFoundError(path=path)
        case errno.ENOTDIR:
            return NotALogError(path=path, reason="a directory was expected there")
        case errno.EISDIR:
            return NotALogError(path=path, reason="a file was expected there")
        case errno.ESTALE:
            return SegmentDeletedError(path=path)
        case errno.EMFILE | errno.ENFILE:
            remedy = "close files, or raise the limit of open files (ulimit -n)"
            return LogAccessError(path=path, reason=_reason(error), remedy=remedy)
        case _:
            return LogAccessError(path=path, reason=_reason(error))


# --- Writing --------------------------------------------------------------------------------------
# Invariants:
#
# 1. Only ``create_file``, ``make_directory`` and ``try_lock`` create files. A descriptor that was
#    opened for reading is never written.
# 2. Only ``sync`` and ``sync_directory`` make anything durable. Neither is ever retried, here or by
#    a caller, because the kernel may drop the dirty pages after a failed fsync
#    (``DiskFailedError``).
# 3. A file has no permission that its directory does not have, so that files of a private directory
#    are private from their creation. If a directory has no permissions for others, its group
#    permissions apply to new files whatever the umask is; otherwise the umask applies.
# 4. Symbolic links are not written through, because they may point out of the log's directory.

_WRITE_FLAGS: Final = (
    os.O_RDWR | os.O_NOFOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
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
        descriptor = self._descriptor or self._open_descriptor()
        rest = data if type(data) is bytes else memoryview(data).cast("B")
        try:
            # One pwrite may write less: after a signal, at 2 GiB, or on a full disk.
            while rest:
                written = os.pwrite(descriptor, rest, position)
                if written == len(rest):
                    return
                position += written
                rest = memoryview(rest)[written:]
        except OSError as error:
            raise _write_error(self.path, error) from None

    def truncate(self, byte_count: int) -> None:
        """Truncate the file, or extend it with zeros."""
        try:
            os.ftruncate(self._open_descriptor(), byte_count)
        except OSError as error:
            raise _write_error(self.path, error) from None

    def is_in_place(self) -> bool:
        """Return whether the path still leads to the open file."""
        try:
            at_path, opened = os.stat(self.path), os.fstat(self._open_descriptor())
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _write_error(self.path, error) from None
        return os.path.samestat(at_path, opened)

    def sync(self) -> None:
        """Flush bytes and length to the device. Raises ``DiskFailedError`` for any error."""
        _sync(self._open_descriptor(), self.path)


class WritableLocalStorage(LocalStorage):
    """Files of this machine, for reading and writing.

    ``directory_mode`` is the mode for directories that are created, or that exist and are empty. If
    it is None, the umask applies.
    """

    file_mode: ClassVar[int] = 0o666

    def __init__(self, *, directory_mode: int | None = None) -> None:
        self._directory_mode = directory_mode

    def create_file(self, path: str) -> WritableLocalFile:
        """Create an empty file. Raises ``FileExistsLogError``."""
        return WritableLocalFile(path, self._create(path, os.O_CREAT | os.O_EXCL))

    def open_for_writing(self, path: str) -> WritableLocalFile:
        """Open an existing regular file. Raises ``NotALogError`` for anything else."""
        with _errors_of(path, _read_error):
            is_file = stat.S_ISREG(os.stat(path).st_mode)
        if not is_file:
            raise NotALogError(path=path, reason="a file was expected there")
        return WritableLocalFile(path, self._open(path))

    def make_directory(self, path: str) -> bool:
        """Create a directory; return False if it exists."""
        with _errors_of(path, _write_error):
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

    def remove_directory(self, path: str) -> bool:
        """Delete an empty directory; return False if it has entries or does not exist."""
        with _errors_of(path, _write_error):
            try:
                os.rmdir(path)
            except OSError as error:
                if os.path.isfile(path):
                    reason = "a directory was expected there"
                    raise NotALogError(path=path, reason=reason) from None
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
                    return False
                raise
        return True

    def rename(self, path: str, new_path: str) -> None:
        """Rename atomically, replacing a file with the new name."""
        assert os.path.dirname(path) == os.path.dirname(new_path), (
            "both names must be in one directory"
        )
        with _errors_of(path, _write_error):
            os.replace(path, new_path)

    def unlink(self, path: str) -> None:
        """Remove a file's name from its directory."""
        with _errors_of(path, _write_error):
            if os.path.isdir(path):  # Linux would return EISDIR, others EPERM
                raise NotALogError(path=path, reason="a file was expected there")
            os.unlink(path)

    def set_read_only(self, path: str, *, owner_only: bool = False) -> None:
        """Remove all write permissions, as Kafka does for a frozen snapshot."""
        removed = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
        if owner_only:
            removed |= stat.S_IRWXG | stat.S_IRWXO
        with _errors_of(path, _write_error):
            os.chmod(path, os.stat(path).st_mode & ~removed)

    def sync_directory(self, directory: str) -> None:
        """Flush the names in a directory to the device."""
        if not self.is_directory(directory):
            raise NotALogError(path=directory, reason="a directory was expected there")
        with _errors_of(directory, _write_error):
            descriptor = self._with_descriptor(lambda: os.open(directory, _READ_FLAGS))
        try:
            _sync(descriptor, directory, is_directory=True)
        finally:
            os.close(descriptor)

    def try_lock(self, path: str) -> LocalLock | None:
        """Lock a file, created if absent; return None if another opening has the lock."""
        descriptor = self._create(path, os.O_CREAT)
        is_locked = False
        try:
            with _errors_of(path, _write_error):
                is_locked = lock_descriptor(descriptor)
        finally:
            if not is_locked:
                os.close(descriptor)
        return LocalLock(descriptor) if is_locked else None

    def _create(self, path: str, flags: int) -> int:
        """Open a file, created if absent, with the permissions that its directory allows."""
        with _errors_of(path, _write_error):
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
        """Return the random id of this boot from Linux or macOS. Raises ``LogAccessError``."""
        try:
            if sys.platform == "linux":
                with self._with_descriptor(lambda: open(_LINUX_BOOT_ID, encoding="ascii")) as file:
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
        with _errors_of(path, _write_error):
            return self._with_descriptor(lambda: os.open(path, _WRITE_FLAGS | more_flags, mode))


class PrivateLocalStorage(WritableLocalStorage):
    """Files of a node. New files and directories are accessible only to their owner."""

    file_mode = _PRIVATE_FILE_MODE

    def __init__(self) -> None:
        super().__init__(directory_mode=_OWNER_MODE)


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


def _write_error(path: str, error: OSError) -> LogError:
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
            return _read_error(path, error)


def _reason(error: OSError) -> str:
    return (error.strerror or "the operating system gave no reason").lower()


# --- Files of a node, with file descriptors in reserve --------------------------------------------
# When the process has no free descriptor, files of the log are opened with reserved ones. The node
# then accepts no connections until the reserve is full again.

SPARE_DESCRIPTORS: Final = 16
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)


class ReservedDescriptorStorage(PrivateLocalStorage, Closeable):
    """Files of this machine, with descriptors in reserve after the first ``refill``."""

    def __init__(self, count: int = SPARE_DESCRIPTORS) -> None:
        super().__init__()
        self._count_max = count
        self._spare: list[int] = []

    def refill(self) -> bool:
        """Fill the reserve with the descriptors available; return whether it is full."""
        try:
            while len(self._spare) < self._count_max:
                self._spare.append(os.open(os.devnull, _READ_FLAGS))
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Close the descriptors in reserve."""
        while self._spare:
            os.close(self._spare.pop())

    def _with_descriptor(self, opened: Callable[[], _T]) -> _T:
        while True:
            try:
                return opened()
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._spare:
                    raise
                os.close(self._spare.pop())


# --- Exclusive locks on files, between processes and within one -----------------------------------
# On Linux these are open-file-description locks, which belong to one opening of the file. Two
# openings in one process exclude each other. Closing another opening does not release the lock,
# whereas it would release a process's POSIX locks. Unlike ``flock``, these locks exclude Java's.
# Elsewhere ``flock`` is used, which belongs to one opening too.
#
# A lock covers the whole file and is never waited for. A forked child shares the opening and would
# keep the lock after its parent was killed, so the child closes its copy first. ``release`` unlocks
# before it closes, since a child may not have closed its copy yet.

_OFD_SETLK: Final = 37
"""F_OFD_SETLK of Linux on every architecture. Python lacks it if libc's headers did."""
_FLOCK: Final = struct.Struct("@hhqqi4x")
"""``struct flock`` with 64-bit offsets: type, whence, start, length, process id (must be 0)."""
_LOCK_ALL: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCK_ALL: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_HELD_BY_ANOTHER: Final = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK)


def lock_descriptor(descriptor: int) -> bool:
    """Lock the whole file; False if another opening of it has a lock. Raises ``OSError``."""
    try:
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, _OFD_SETLK, _LOCK_ALL)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            return False
        raise
    return True


def _unlock_descriptor(descriptor: int) -> None:
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, _OFD_SETLK, _UNLOCK_ALL)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


class LocalLock(Closeable):
    """Lock that is held until it is released or until no process has its opening."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor
        _held.add(self)

    def release(self) -> None:
        """Unlock and close. No-op in a forked child, whose parent has the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        with contextlib.suppress(OSError):  # closing releases it unless a child shares it
            _unlock_descriptor(descriptor)
        os.close(descriptor)

    def close_in_child(self) -> None:
        """Close a forked child's copy; the parent keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Release the lock."""
        self.release()


_held: Final[weakref.WeakSet[LocalLock]] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for lock in list(_held):
        lock.close_in_child()


os.register_at_fork(after_in_child=_close_all_in_child)
