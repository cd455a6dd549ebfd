"""The last named commit of each application id, to recognize retries of a commit.

A commit is checked before its log token: a retry of an append that succeeded must get its offsets
although the log's end has moved on. Names are compared as a whole: the same version under another
query id is another commit.

Beyond ``COMMITS_MAX`` application ids the least recently used one is evicted. Nothing expires by
age: no clock proves that an application will not retry, and a wrong clock would let a repeated
commit be appended twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from raftlog.errors import ForeignCommitError, StaleCommitError
from raftlog.limits import COMMITS_MAX

from .batch_metadata import CommitName
from .producers import Duplicate


@dataclass(frozen=True, slots=True)
class LastCommit:
    """The last commit of an application id: its batch's offsets (inclusive) and its log time.

    ``timestamp_ms`` is -1 in a client's answer if retention has deleted the batch.
    """

    name: CommitName
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Commits:
    """The last commits of one log, by application id."""

    def __init__(self, last: Iterable[LastCommit] = ()) -> None:
        self._last = {commit.name.application_id: commit for commit in last}

    def __len__(self) -> int:
        return len(self._last)

    def __iter__(self) -> Iterator[LastCommit]:
        """Iterate over the last commits, oldest first."""
        return iter(self._last.values())

    def get(self, application_id: str) -> LastCommit | None:
        return self._last.get(application_id)

    def copy(self) -> Commits:
        copied = Commits()
        copied._last = self._last.copy()
        return copied

    def check(self, name: CommitName, *, take_over_from: str | None = None) -> Duplicate | None:
        """Return None if the commit may be appended, or the offsets that it already has.

        ``take_over_from``: the query id of the last commit. Then another query may start under the
        application id, with any version. Raises ``StaleCommitError`` for a version older than the
        last, ``ForeignCommitError`` for another query id.
        """
        last = self._last.get(name.application_id)
        if last is None:
            return None
        if name == last.name:
            return Duplicate(last.base_offset, last.last_offset)
        if name.query_id != last.name.query_id:
            if take_over_from == last.name.query_id:
                return None
            raise ForeignCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_query_id=last.name.query_id,
                last_version=last.name.version,
            )
        if name.version < last.name.version:
            raise StaleCommitError(
                application_id=name.application_id,
                query_id=name.query_id,
                version=name.version,
                last_version=last.name.version,
            )
        return None

    def append(self, commit: LastCommit) -> None:
        """Record an appended commit as the last one of its application id, whatever its version."""
        self._last.pop(commit.name.application_id, None)
        self._last[commit.name.application_id] = commit
        if len(self._last) > COMMITS_MAX:
            del self._last[next(iter(self._last))]
