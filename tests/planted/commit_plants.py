"""Bugs of producer state and named commits, and of the rights to use them."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

WRITING: Final = "connector/raftlog/log/writing"
NODE: Final = "connector/raftlog/node"
OWNERS: Final = "tests/node/apis/test_commit_owners.py"
FETCHING: Final = "tests/node/apis/test_fetching.py"
DRIVER: Final = "tests/node/test_driver.py"
TURNS: Final = "tests/node/test_append_turns.py"
PURGATORY: Final = "tests/node/test_purgatory.py"
DELAYED: Final = "tests/node/test_delayed_fetches.py"
ASKING: Final = "tests/node/apis/test_queries.py"
KRAFT_RETENTION: Final = "tests/node/test_retention_of_kraft_logs.py"
SENT: Final = "tests/client/remote/test_sent_batches.py"
GROUPS: Final = "tests/client/embedded/test_group_commit.py"
REMOTE: Final = "connector/raftlog/client/remote"
AFTER_RETENTION: Final = "tests/client/remote/test_commits_after_retention.py"
FOLLOWED: Final = "tests/client/remote/test_followed_records.py"
GROUP_OFFSETS: Final = "tests/log/producer_state/test_group_offsets.py"
COMMITTING: Final = "tests/node/apis/test_group_offsets.py"
REMEMBERING: Final = "tests/log/writing/test_producer_state_without_clock.py"

COMMIT_PLANTS: Final = (
    Plant(
        bug="a snapshot has no offsets of groups",
        path=f"{WRITING}/group_offsets.py",
        old="        if not self._groups:\n            return ()\n",
        new="        if self._groups:\n            return ()\n",
        tests=(GROUP_OFFSETS,),
    ),
    Plant(
        bug="a consumer has to read the commits after the last record",
        path=f"{WRITING}/group_offsets.py",
        old="return end_offset if data_end_offset <= offset <= end_offset else offset",
        new="return offset",
        tests=(GROUP_OFFSETS, COMMITTING),
    ),
    Plant(
        bug="an unchanged offset is confirmed before the earlier commit is committed",
        path=f"{NODE}/apis/group_offsets.py",
        old="    return _error_of(await _appended(cache, () if",
        new="    if is_unchanged:\n        return ErrorCode.none\n"
        "    return _error_of(await _appended(cache, () if",
        tests=(COMMITTING,),
    ),
    Plant(
        bug="a member of a group is not fenced",
        path=f"{NODE}/apis/group_offsets.py",
        old="    if body.generation_id_or_member_epoch < 0:\n",
        new="    if body.generation_id_or_member_epoch < 5:\n",
        tests=(COMMITTING,),
    ),
    Plant(
        bug="a committed offset requires no right to the group",
        path=f"{NODE}/apis/group_offsets.py",
        old="    if not request.principal.may(Operation.READ, Resource("
        "ResourceType.GROUP, group)):\n",
        new="    if not request.principal.possible_rights:\n",
        tests=(COMMITTING,),
    ),
    Plant(
        bug="a refused OffsetFetch has the metadata of the group",
        path=f"{NODE}/apis/group_offsets.py",
        old="        commit = _Committed()\n    topics",
        new="        pass\n    topics",
        tests=(COMMITTING,),
    ),
    Plant(
        bug="a followed read waits for records on the connection of the appends",
        path=f"{REMOTE}/commit_waiter.py",
        old="        found = self._connection\n        if found is None",
        new="        if leader.connection.is_open:\n"
        "            return leader.connection\n"
        "        found = self._connection\n"
        "        if found is None",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a deletion of records forgets the commits before the snapshot that its log starts at",
        path="connector/raftlog/log/writing/segments.py",
        old="        if producer_state is None or producer_state.end_offset < first:\n",
        new="        if producer_state is None or producer_state.end_offset <= first:\n",
        tests=("tests/log/writing/test_quorum_log.py",),
    ),
    Plant(
        bug="a damaged response that was waited for is read again",
        path=f"{REMOTE}/log.py",
        old="            quorum.forget_awaited()  # the next read fetches again\n",
        new="            pass\n",
        tests=("tests/client/remote/test_invalid_responses.py",),
    ),
    Plant(
        bug="records that were waited for are transferred twice",
        path=f"{REMOTE}/log.py",
        old="                fetched = self._awaited(offset)\n",
        new="                pass\n",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a followed read asks for a connection at each poll, of a node that refuses it",
        path=f"{REMOTE}/commit_waiter.py",
        old="            self._connect_at_s = now_s + RECONNECT_S\n",
        new="",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="a client appends nothing more after an error of the function for tokens",
        path=f"{REMOTE}/sender.py",
        old="        self._producer.fail_waiting(error)\n        return None\n",
        new="        raise error\n",
        tests=("tests/client/remote/test_sasl_client.py",),
    ),
    Plant(
        bug="a client returns to a deposed leader of an older epoch",
        path=f"{REMOTE}/metadata.py",
        old="        if info.epoch < self._newest_epoch:\n",
        new="        if info.epoch < 0:\n",
        tests=("tests/client/remote/test_reelected_leader.py",),
    ),
    Plant(
        bug="a read from the start skips records that are deleted while it runs",
        path="connector/raftlog/client/followed_records.py",
        old="is_unread = end.read_up_to is None and next_offset == self.start_offset\n",
        new="is_unread = True\n",
        tests=(FOLLOWED,),
    ),
    Plant(
        bug="each fetch of a follower is decoded as a whole",
        path="connector/raftlog/wire/replica_fetch.py",
        old="                self._received[found.directory] = found\n",
        new="                pass\n",
        tests=(TURNS,),
    ),
    Plant(
        bug="the leader syncs records before it sends them to followers",
        path=f"{NODE}/driver.py",
        old="            self._flush_queue.run(work, *args, **kwargs)\n",
        new="            work(*args, **kwargs)\n",
        tests=(DRIVER,),
    ),
    Plant(
        bug="an append is written before the others of its iteration are received",
        path=f"{NODE}/connection.py",
        old="            if self._work is not None and self._is_last:\n",
        new="            if self._work is not None:\n",
        tests=(TURNS,),
    ),
    Plant(
        bug="responses are written in the next iteration of the event loop",
        path=f"{NODE}/connection.py",
        old="        if not self._connections and not self._is_running:\n",
        new="        if not self._connections:\n",
        tests=(TURNS,),
    ),
    Plant(
        bug="a named batch keeps its bytes although a later record has a header of raftlog",
        path=f"{NODE}/apis/produced_batch.py",
        old="    if compression is not Compression.NONE or prefix_count != 1:\n",
        new="    if compression is not Compression.NONE:\n",
        tests=("tests/node/apis/test_produced_batch.py",),
    ),
    Plant(
        bug="a named batch keeps its bytes although the log encodes the name otherwise",
        path=f"{NODE}/apis/produced_batch.py",
        old="commit is not None and commit_header(commit) == headers[0] else None\n",
        new="commit is not None else None\n",
        tests=("tests/node/apis/test_produced_batch.py",),
    ),
    Plant(
        bug="what a voter set is for a replica is derived in each step",
        path="connector/raftlog/quorum/state.py",
        old="        if own.voter_set is not self.voters.latest:\n",
        new="        if True:\n",
        tests=(TURNS,),
    ),
    Plant(
        bug="what a voter set is for a replica stays that of an older set",
        path="connector/raftlog/quorum/state.py",
        old="        if own.voter_set is not self.voters.latest:\n",
        new="        if own is None:\n",
        tests=("tests/simulation/test_membership.py",),
    ),
    Plant(
        bug="a follower syncs, and fetches again, in the next iteration of the event loop",
        path=f"{NODE}/driver.py",
        old="            return  # called again at the end of ``_run``\n",
        new="            pass\n",
        tests=(TURNS,),
    ),
    Plant(
        bug="long syncs run on the event loop",
        path=f"{NODE}/durations.py",
        old="        return self._share >= 0.5\n",
        new="        return True\n",
        tests=(DRIVER,),
    ),
    Plant(
        bug="a record with a future timestamp evicts all commits by age",
        path=f"{WRITING}/producer_state.py",
        old="        self.end_offset = metadata.last_offset + 1\n        return tuple(aborted)\n",
        new="        self.end_offset = metadata.last_offset + 1\n"
        "        week_ms = 7 * 24 * 60 * 60 * 1000\n"
        "        self._commits = {\n"
        "            name: one\n"
        "            for name, one in self._commits.items()\n"
        "            if one.timestamp_ms + week_ms >= self.log_time_ms\n"
        "        }\n"
        "        return tuple(aborted)\n",
        tests=(REMEMBERING,),
    ),
    Plant(
        bug="a record with a future timestamp evicts all producers by age",
        path=f"{WRITING}/producer_state.py",
        old="        self.end_offset = metadata.last_offset + 1\n        return tuple(aborted)\n",
        new="        self.end_offset = metadata.last_offset + 1\n"
        "        week_ms = 7 * 24 * 60 * 60 * 1000\n"
        "        self._producers = {\n"
        "            number: one\n"
        "            for number, one in self._producers.items()\n"
        "            if one.timestamp_ms + week_ms >= self.log_time_ms\n"
        "        }\n"
        "        return tuple(aborted)\n",
        tests=(REMEMBERING,),
    ),
    Plant(
        bug="the last commit is not returned once its batch is deleted",
        path=f"{REMOTE}/handle.py",
        old="            timestamp_ms = self._timestamp_of(appended, deadline_ms)\n",
        new="            timestamp_ms = self._timestamp_of(appended, deadline_ms)\n"
        "            if timestamp_ms < 0:\n"
        "                continue\n",
        tests=(AFTER_RETENTION,),
    ),
    Plant(
        bug="a principal commits under the application ids of others",
        path=f"{NODE}/apis/produce.py",
        old="    if not principal.may_commit(name):\n",
        new="    if Rights.APPEND not in principal.rights:\n",
        tests=(OWNERS,),
    ),
    Plant(
        bug="without an access table any principal may use the names of others",
        path="connector/raftlog/node/access.py",
        old="(self.commits is None and is_one_party)",
        new="self.commits is None",
        tests=(OWNERS,),
    ),
    Plant(
        bug="every caller is shown the commits of others",
        path=f"{NODE}/apis/group_offsets.py",
        old="        is_allowed = principal.may_read_commit(group_id.removeprefix("
        "COMMIT_GROUP_PREFIX))\n",
        new="        is_allowed = bool(principal.possible_rights)\n",
        tests=(OWNERS,),
    ),
    Plant(
        bug="invalid names of one principal evict those of others",
        path=f"{NODE}/apis/produce.py",
        old="    if commits is None or memory.last_commit(name) is not None:\n",
        new="    if commits is None or memory.last_commit(name) is None:\n",
        tests=(OWNERS,),
    ),
    Plant(
        bug="a partition repeated in a fetch is read again",
        path=f"{NODE}/apis/fetch.py",
        old="            found[(topic.topic_id, topic.name, one.partition)] = _Part(\n",
        new="            found[(len(found),)] = _Part(\n",
        tests=(FETCHING,),
    ),
    Plant(
        bug="delayed fetches of one principal are unbounded",
        path=f"{NODE}/purgatory.py",
        old="        offset = _OFFSET_MAX if is_one_too_many else fetch.awaited_offset\n",
        new="        offset = fetch.awaited_offset\n",
        tests=(FETCHING,),
    ),
    Plant(
        bug="delayed fetches are checked at every step of the replica",
        path=f"{NODE}/purgatory.py",
        old="        if lowest is not None and lowest < (bound := self._bound()):\n",
        new="        if lowest is not None and (bound := _OFFSET_MAX + 1):\n",
        tests=(PURGATORY,),
    ),
    Plant(
        bug="all delayed fetches are checked in one turn of the event loop",
        path=f"{NODE}/purgatory.py",
        old="        for _ in range(min(len(self._due), FETCHES_PER_TURN_MAX)):\n",
        new="        for _ in range(len(self._due)):\n",
        tests=(PURGATORY,),
    ),
    Plant(
        bug="a request whose end raises an exception delays the others of its deadline forever",
        path=f"{NODE}/purgatory.py",
        old="                self.add(now_ms, item)\n",
        new="                pass\n",
        tests=(PURGATORY,),
    ),
    Plant(
        bug="delayed fetches are not answered on a change of leaders",
        path=f"{NODE}/purgatory.py",
        old="        is_changed = self._look() != self._seen\n",
        new="        is_changed = False\n",
        tests=(PURGATORY, FETCHING),
    ),
    Plant(
        bug="a delayed fetch of a lost connection is kept until its deadline",
        path=f"{NODE}/apis/fetch.py",
        old="        self._cache.raft_node.fetches.remove(self)\n",
        new="",
        tests=(DELAYED,),
    ),
    Plant(
        bug="a delayed fetch whose check fails delays the others",
        path=f"{NODE}/apis/fetch.py",
        old="        is_due = self._request.attempt(self._check)\n",
        new="        is_due: bool | None = self._check()\n",
        tests=(DELAYED,),
    ),
    Plant(
        bug="numbers of removed requests are kept forever",
        path=f"{NODE}/purgatory.py",
        old="            if len(self._numbers) > 2 * len(self._buckets) + _EMPTY_MAX:\n",
        new="            if False:\n",
        tests=(PURGATORY,),
    ),
    Plant(
        bug="a transactional producer gets an authorization error instead of an unsupported one",
        path=f"{NODE}/apis/groups.py",
        old="            error, text = ErrorCode.unsupported_version if is_java else denied, "
        "NO_TRANSACTIONS\n",
        new="            error, text = denied, None\n",
        tests=(ASKING,),
    ),
    Plant(
        bug="a node does not linger",
        path=f"{NODE}/raft_node.py",
        old="        if config.linger_ms and request.records:\n",
        new="        if config.linger_ms < 0 and request.records:\n",
        tests=(DRIVER,),
    ),
    Plant(
        bug="an append without records waits for the linger time",
        path=f"{NODE}/raft_node.py",
        old="        if config.linger_ms and request.records:\n",
        new="        if config.linger_ms:\n",
        tests=(DRIVER,),
    ),
    Plant(
        bug="retention configured for a kraft log is ignored without a warning",
        path=f"{NODE}/process.py",
        old="        self._warn_of_retention()\n",
        new="",
        tests=(KRAFT_RETENTION,),
    ),
    Plant(
        bug="an append without records is uncertain when its response is lost",
        path=f"{REMOTE}/producer_batches.py",
        old="        return self.record_count > 0\n",
        new="        return self.record_count >= 0\n",
        tests=(SENT,),
    ),
    Plant(
        bug="an append without records is uncertain when the disk fails",
        path="connector/raftlog/client/embedded/writer.py",
        old="failed(unknown if request.writes else problem)",
        new="failed(unknown)",
        tests=(GROUPS,),
    ),
)
