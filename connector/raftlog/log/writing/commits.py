"""What a log remembers of named commits: the last one of each application id.

Rules of this file:

1. ``check`` is asked before an append, and before its token is looked at: a retry of an append that
   won must get its own offsets back, although the log's end has moved on. It changes nothing.
2. A name is compared whole. The same version under another query id is another commit.
3. Kept in the order of the log, so that the one that has been silent longest is first: beyond
   ``COMMITS_MAX`` application ids it is forgotten. Nothing is forgotten by age: no clock proves
   that an application will not retry, and a wrong one would make the log append a repeat again.
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

    ``timestamp_ms`` is -1 where a client asks after retention has deleted the batch.
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
        """The last commits, the oldest first."""
        return iter(self._last.values())

    def get(self, application_id: str) -> LastCommit | None:
        return self._last.get(application_id)

    def copy(self) -> Commits:
        copied = Commits()
        copied._last = self._last.copy()
        return copied

    def check(self, name: CommitName, *, take_over_from: str | None = None) -> Duplicate | None:
        """Whether a commit may be appended: None, or the offsets that it has already.

        With ``take_over_from``, the query id of the last commit, another one may begin under the
        application id, with any version.
        Raises ``StaleCommitError`` for a version older than the last, and ``ForeignCommitError``
        for another query id.
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
        """Note a commit that lies in the log: it is the last one, whatever its version."""
        self._last.pop(commit.name.application_id, None)
        self._last[commit.name.application_id] = commit
        if len(self._last) > COMMITS_MAX:
            del self._last[next(iter(self._last))]
