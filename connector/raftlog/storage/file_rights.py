"""Permissions of other users on keys, configurations and logs with secrets.

A group's permissions count unless the owner is its only member (as in Debian's OpenSSH). A group
may read a key that root owns, since services get keys this way (as in PostgreSQL). Write permission
on a directory allows replacing its files, unless it is sticky. For a symbolic link, the directories
of both the link and its target are checked.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from typing import Final

_ROOT: Final = 0


def change_by_others(path: str) -> str | None:
    """Return how users other than the owner may change or replace a file; None if they cannot.

    Raises ``OSError`` if the file does not exist.
    """
    found = os.stat(path)
    if _others_may(found, stat.S_IWGRP, stat.S_IWOTH):
        return f"other users may change {path}: remove that permission (chmod go-w, or chmod 600)"
    for directory in dict.fromkeys(
        os.path.dirname(os.path.abspath(one)) for one in (path, os.path.realpath(path))
    ):
        if others_may_replace_in(os.stat(directory), os.statvfs(directory).f_flag):
            return (
                f"other users may replace it: remove write permission on {directory} (chmod go-w)"
            )
    return None


def others_may_replace_in(directory: os.stat_result, mount_flags: int) -> bool:
    """Return whether users other than the owner may replace files of a directory.

    ``mount_flags`` are those of its file system (``statvfs``): on a read-only volume, such as a
    Kubernetes ConfigMap, the permissions of the directory do not matter.
    """
    if mount_flags & os.ST_RDONLY or directory.st_mode & stat.S_ISVTX:
        return False
    return _others_may(directory, stat.S_IWGRP, stat.S_IWOTH)


def read_by_others(path: str) -> str | None:
    """Return how users other than the owner may read a key; None if they cannot.

    Raises ``OSError`` if the file does not exist.
    """
    found = os.stat(path)
    group = 0 if found.st_uid == _ROOT else stat.S_IRGRP
    if _others_may(found, group, stat.S_IROTH):
        return f"other users may read the key {path}: remove that permission (chmod 600)"
    return None


def others_may_read_in(directory: str, name: str) -> bool:
    """Return whether users other than the owner and its group may read a file of a directory.

    Raises ``OSError`` if the file does not exist.
    """
    if not os.stat(directory).st_mode & stat.S_IXOTH:
        return False
    return bool(os.stat(os.path.join(directory, name)).st_mode & stat.S_IROTH)


def _others_may(found: os.stat_result, group: int, others: int) -> bool:
    if found.st_mode & others:
        return True
    return bool(found.st_mode & group) and not _is_alone(found.st_uid, found.st_gid)


def _is_alone(user_id: int, group_id: int) -> bool:
    """Return whether a group has the owner's name and no other members."""
    try:
        user, group = pwd.getpwuid(user_id).pw_name, grp.getgrgid(group_id)
    except KeyError:
        return False
    return group.gr_name == user and all(member == user for member in group.gr_mem)
