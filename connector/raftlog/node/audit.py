"""Audit log of a node: connections, refusals, appends, changes of voters, rights and settings.

It has one JSON object per line, in its own file, which is rotated by size. The fields are ``time``
(UTC), ``node`` and ``event``, then the peer's ``principal``, ``certificate`` (serial number in
hex), ``listener`` and ``address``, then the event's own. It contains no values of records or
settings.

No event hides another one:

1. A change has two lines with the same ``id``: one before it is executed (``outcome`` is
   ``requested``) and one with its outcome. They are never merged. If its connection was closed
   before the outcome, a change has only the first line; it may have been executed. The active
   controller logs the requests of admin clients, even if a broker or a standby forwarded them; then
   ``address`` is ``forwarded by`` that node.
2. Connections and refusals, which a peer can repeat at will, are merged if all of their fields are
   equal: the first one is written, and after a minute a line with the number of ``repeated`` ones.
   If there are more than ``KEYS_MAX`` different ones in a minute, the others are only counted:
   separately for connections, for refusals of principals, and for refusals of other peers, whose
   limit is ``STRANGER_KEYS_MAX``.
3. A peer's appends are one line with their offset ranges, both ends inclusive, which is written
   after ten seconds or ``RANGES_MAX`` ranges. So every committed record has exactly one principal,
   except records of the last ten seconds before the process is killed.

A line that cannot be written is counted (``raftlog_audit_lines_lost``) and logged, but does not
stop the node.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from kio.schema.errors import ErrorCode

from raftlog.printable import printable

from .access import Principal
from .config import AuditConfig

REQUESTED: Final = "requested"
MERGED_S: Final = 60.0
"""Time from the first of several equal events until their number is written."""
APPENDS_S: Final = 10.0
"""Time from a peer's first append until its offsets are written."""
RANGES_MAX: Final = 300
"""Maximum ranges in a line; even with offsets of 19 digits it is below ``TEXT_LENGTH_MAX``."""
KEYS_MAX: Final = 10_000
"""Maximum number of distinct events of a kind within one window."""
STRANGER_KEYS_MAX: Final = 1_000
"""Maximum number of distinct refusals of peers without a principal; otherwise such peers could fill
the log until older lines are rotated away."""
AUTHORIZATION_ERRORS: Final = frozenset(
    (
        ErrorCode.topic_authorization_failed,
        ErrorCode.group_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.delegation_token_authorization_failed,
        ErrorCode.delegation_token_request_not_allowed,
    )
)
TEXT_LENGTH_MAX: Final = 16_384
"""Maximum characters of one fact; a longer one is replaced by its beginning as text."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Sender of a request, as named in the audit log."""

    principal: str | None
    certificate: str | None
    listener: str | None
    address: str

    @classmethod
    def of(cls, principal: Principal | None, where: str) -> Peer:
        """Return the peer at ``where`` (``host:port``); ``principal``: None if unauthenticated."""
        address = where.rpartition(":")[0] or where
        if principal is None:
            return cls(None, None, None, address)
        listener = str(principal.listener)
        return cls(principal.name, principal.certificate_serial, listener, address)

    def facts(self) -> dict[str, object]:
        """Return its fields in a line."""
        return {
            "principal": self.principal,
            "certificate": self.certificate,
            "listener": self.listener,
            "address": self.address,
        }


@dataclass(slots=True)
class _Repeated:
    """Equal events of one window."""

    began_s: float
    kind: object
    event: str
    facts: dict[str, object]
    count: int = 0


@dataclass(slots=True)
class _Appends:
    """Appends of one peer in one window."""

    began_s: float
    since: str
    ranges: list[list[int]]
    batch_count: int = 0


class AuditLog:
    """Audit log of one node, on its event loop. Without ``write`` every method does nothing."""

    def __init__(
        self,
        write: Callable[[str], None] | None,
        node_id: int,
        *,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self.is_written: Final = write is not None
        self._node_id = node_id
        self._now_s = now_s
        self._wall_s = wall_s
        self._last_id = 0
        self._repeated: dict[object, _Repeated] = {}
        """The oldest first."""
        self._repeated_counts: Counter[object] = Counter()
        """Number of distinct events, by kind."""
        self._appends: dict[Peer, _Appends] = {}
        """The oldest first."""

    # --- events -----------------------------------------------------------------------------------

    def log(self, event: str, **facts: object) -> None:
        """Write one line."""
        if self._write is None:
            return
        line = {"time": self._time(), "node": self._node_id, "event": event}
        line.update((name, _bounded(fact)) for name, fact in facts.items())
        self._write(printable(json.dumps(line, default=str, ensure_ascii=False)))

    def connected(self, principal: Principal, where: str) -> None:
        """Log an authenticated connection."""
        if self._write is not None:
            self._log_merged("connected", Peer.of(principal, where))

    def refused(
        self, principal: Principal | None, where: str, reason: str, request: str | None = None
    ) -> None:
        """Log a refused connection, or a refused request of a principal."""
        if self._write is None:
            return
        facts = {"reason": reason} if request is None else {"request": request, "reason": reason}
        self._log_merged("refused", Peer.of(principal, where), **facts)

    def change(
        self, principal: Principal, where: str, request: str, arguments: object
    ) -> Callable[[object], None]:
        """Log a request that changes something, before it is executed.

        Returns a function that logs the outcome: a text, or the error codes in a response.
        """
        if self._write is None:
            return lambda _: None
        self._last_id += 1
        facts = {"id": self._last_id, **Peer.of(principal, where).facts(), "request": request}
        self.log("change", **facts, arguments=arguments, outcome=REQUESTED)
        return lambda outcome: self.log("change", **facts, outcome=outcome_of(outcome))

    def answered(
        self, principal: Principal, where: str, request: str, arguments: object | None
    ) -> Callable[[object], None]:
        """Return a function that logs the response to a request.

        A request that changes something is logged as ``change`` does. Any other request, and every
        request of a principal that may not change anything, is logged only if it was denied, so
        that it cannot fill the log. ``arguments``: None if the request changes nothing.
        """
        if self._write is None:
            return lambda _: None
        if arguments is not None and principal.may_change:
            return self.change(principal, where, request, arguments)

        def ended(response: object) -> None:
            denial = denial_of(response)
            if denial is not None:
                self.refused(principal, where, denial, request)

        return ended

    def appended(
        self, principal: Principal, where: str, base_offset: int, last_offset: int
    ) -> None:
        """Log appended records, both offsets inclusive."""
        if self._write is None or last_offset < base_offset:
            return
        peer = Peer.of(principal, where)
        found = self._appends.get(peer)
        if found is None:
            if len(self._appends) >= KEYS_MAX:
                self._end_appends(next(iter(self._appends)))
            found = self._appends[peer] = _Appends(self._now_s(), self._time(), [])
        found.batch_count += 1
        if found.ranges and found.ranges[-1][1] + 1 == base_offset:
            found.ranges[-1][1] = last_offset
        else:
            found.ranges.append([base_offset, last_offset])
        if len(found.ranges) >= RANGES_MAX:
            self._end_appends(peer)

    # --- windows ----------------------------------------------------------------------------------

    def write_due(self) -> None:
        """Write the lines of the windows that have ended."""
        now_s = self._now_s()
        self._end_windows(merged_until_s=now_s - MERGED_S, appends_until_s=now_s - APPENDS_S)

    def close(self) -> None:
        """Write the lines of all windows."""
        now_s = self._now_s()
        self._end_windows(merged_until_s=now_s, appends_until_s=now_s)

    def _end_windows(self, *, merged_until_s: float, appends_until_s: float) -> None:
        """Write the lines of the windows that began at these times or earlier."""
        while self._appends:
            peer, appends = next(iter(self._appends.items()))
            if appends.began_s > appends_until_s:
                break
            self._end_appends(peer)
        while self._repeated:
            key, found = next(iter(self._repeated.items()))
            if found.began_s > merged_until_s:
                break
            del self._repeated[key]
            self._repeated_counts[found.kind] -= 1
            if found.count:
                self.log(found.event, **found.facts, repeated=found.count)

    def _end_appends(self, peer: Peer) -> None:
        found = self._appends.pop(peer)
        self.log(
            "appended",
            **peer.facts(),
            since=found.since,
            batches=found.batch_count,
            offsets=found.ranges,
        )

    def _log_merged(self, event: str, peer: Peer, **facts: object) -> None:
        """Write an event, or count it if an equal one was written in the same window.

        Above the maximum of different events, it is counted together with all others of its kind.
        """
        key: object = (event, peer, *facts.values())
        kind = event, peer.principal is None
        found = self._repeated.get(key)
        count_max = STRANGER_KEYS_MAX if peer.principal is None else KEYS_MAX
        if found is None and self._repeated_counts[kind] >= count_max:
            key, peer, facts = kind, Peer(None, None, None, "others"), {}
            found = self._repeated.get(key)
        if found is not None:
            found.count += 1
            return
        line = {**peer.facts(), **facts}
        self._repeated[key] = _Repeated(self._now_s(), kind, event, line)
        self._repeated_counts[kind] += 1
        self.log(event, **line)

    def _time(self) -> str:
        moment = datetime.fromtimestamp(self._wall_s(), UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def outcome_of(outcome: object) -> object:
    """Return a text as it is, a response's error codes, or that the request was forwarded."""
    if isinstance(outcome, str):
        return outcome
    if isinstance(outcome, bytes):
        return "forwarded to the leader"
    return sorted({one.name.upper() for one in _error_codes(outcome)})


def denial_of(response: object) -> str | None:
    """Return the first authorization error in a response, None without one."""
    return next((one.name for one in _error_codes(response) if one in AUTHORIZATION_ERRORS), None)


def _error_codes(response: object) -> Iterator[ErrorCode]:
    for field in getattr(response, "__dataclass_fields__", ()):
        value = getattr(response, field)
        if field == "error_code":
            yield ErrorCode(value)
        for part in value if isinstance(value, tuple) else ():
            yield from _error_codes(part)


NO_AUDIT: Final = AuditLog(None, -1)
"""Audit log without a file."""


def _bounded(fact: object) -> object:
    text = json.dumps(fact, default=str, ensure_ascii=False)
    return fact if len(text) <= TEXT_LENGTH_MAX else text[:TEXT_LENGTH_MAX] + "..."


class AuditFile:
    """File of mode 0600. When it is full it is renamed to ``NAME.1``, and that to ``NAME.2``.

    A line is complete or absent: if the disk is full, the part that was written is truncated.
    ``failed`` is called with the error if a line cannot be written. Raises ``OSError`` if the file
    cannot be opened.
    """

    def __init__(self, config: AuditConfig, failed: Callable[[str], None]) -> None:
        self._config = config
        self._failed = failed
        self._descriptor: int | None = _open_private(config.path)

    def write(self, line: str) -> None:
        """Write one line."""
        try:
            self._append(f"{line}\n".encode())
        except OSError as error:
            self._failed(error.strerror or repr(error))

    def reopen(self) -> None:
        """Open the file again before the next line: another program may have renamed it."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):  # the lines are already written: nothing is buffered
                os.close(descriptor)

    def _append(self, line: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = _open_private(self._config.path)
        byte_count = os.fstat(self._descriptor).st_size
        if byte_count and byte_count + len(line) > self._config.bytes_max:
            self._descriptor = self._rotated(self._descriptor)
            byte_count = os.fstat(self._descriptor).st_size
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
        except OSError:
            os.ftruncate(self._descriptor, byte_count)
            raise

    def _rotated(self, full: int) -> int:
        """Rename the files; return the descriptor of a new file that replaces the full one."""
        path = self._config.path
        names = [path, *(f"{path}.{at}" for at in range(1, self._config.files_max))]
        for name, next_name in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                os.replace(name, next_name)
        new = _open_private(path)
        os.close(full)
        return new


def _open_private(path: str) -> int:
    """Open a file to append lines. Raises ``OSError``."""
    # With O_NONBLOCK a FIFO without a reader is an error instead of a wait.
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
            os.write(descriptor, b"\n")  # after a line that a power loss cut off
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
