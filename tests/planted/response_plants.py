"""Bugs of a node's responses and requests, and of what its clients send."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

NODE: Final = "connector/raftlog/node"
APIS: Final = "connector/raftlog/node/apis"
SENDER: Final = "connector/raftlog/client/remote/sender.py"
SENT: Final = "tests/client/remote/test_sent_batches.py"
ACCOUNTS: Final = "tests/node/test_connection_resources.py"
MEMORY: Final = "tests/node/test_response_memory.py"
PRODUCING: Final = "tests/node/apis/test_producing.py"
FETCHING: Final = "tests/node/apis/test_fetching.py"
OFFSETS: Final = "tests/node/apis/test_offsets.py"
ASKING: Final = "tests/node/apis/test_queries.py"
PACKED: Final = "tests/records/test_encoding.py"
REFUSALS: Final = "tests/wire/test_append_errors.py"

ANSWER_PLANTS: Final = (
    Plant(
        bug="consumers read above the high watermark",
        path=f"{APIS}/fetch.py",
        old="        return cache.high_watermark\n",
        new="        return cache.driver.replica.log.end_offset\n",
        tests=(FETCHING,),
    ),
    Plant(
        bug="read_committed reads into an open transaction",
        path=f"{APIS}/fetch.py",
        old="    return cache.driver.replica.log.producer_state.last_stable_offset("
        "cache.high_watermark)\n",
        new="    return cache.high_watermark\n",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a fetch from inside a batch returns nothing",
        path=f"{APIS}/fetch.py",
        old="        data = log.read_bytes(log.base_offset_at(offset), byte_count_max)\n",
        new="        pass\n",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a consumer gets a partial batch",
        path=f"{APIS}/fetch.py",
        old="if not is_batch or base_offset >= end_offset or after > len(data):",
        new="if not is_batch or base_offset >= end_offset:",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a fetch is answered before its minimum of bytes is available",
        path=f"{APIS}/fetch.py",
        old="    return any(is_cut) or ",
        new="    return True or ",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a fetch waits for more bytes than its maximum",
        path=f"{APIS}/fetch.py",
        old="    return any(is_cut) or sum(",
        new="    return sum(",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a request in an unknown session is served",
        path=f"{APIS}/fetch.py",
        old="if body.session_epoch not in _FIRST_EPOCHS:",
        new="if False:",
        tests=(FETCHING,),
    ),
    Plant(
        bug="consumers do not get the divergence of logs",
        path=f"{APIS}/fetch.py",
        old="if part.partition.last_fetched_epoch >= 0:",
        new="if False:",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a client without the right to read reads",
        path=f"{APIS}/fetch.py",
        old="if Rights.READ not in request.principal.rights:",
        new="if False:",
        tests=(FETCHING,),
    ),
    Plant(
        bug="a client without the right to append appends",
        path=f"{APIS}/produce.py",
        old="\n    if Rights.APPEND not in request.principal.rights:",
        new="\n    if False:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="an append with acks=0 fails without closing the connection",
        path=f"{APIS}/produce.py",
        old="        _raise_if_failed(topics)\n        return None",
        new="        return None",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="an append that times out is reported as refused",
        path=f"{APIS}/produce.py",
        old="return failed(AppendUnknownError(path=cache.driver.replica.log.path, reason=reason))",
        new="return failed(InvalidAppendError(reason=reason))",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="the required offset of a request is not checked",
        path=f"{APIS}/produced_batch.py",
        old="header.base_offset if has_epoch and header.base_offset >= 0 else None",
        new="None",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="the epoch of a request is not checked",
        path=f"{APIS}/produced_batch.py",
        old="epoch=header.leader_epoch if has_epoch else None",
        new="epoch=None",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="a stock producer's base offset is taken for a required offset",
        path=f"{APIS}/produced_batch.py",
        old="has_epoch = header.leader_epoch >= 1",
        new="has_epoch = header.leader_epoch >= 0",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="a batch corrupted in transit is appended",
        path=f"{APIS}/produced_batch.py",
        old="if crc32c(memoryview(data)[CRC_START:]) != crc:",
        new="if False:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="clients write control records",
        path=f"{APIS}/produced_batch.py",
        old="if attributes & CONTROL_BIT:",
        new="if False:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="of two batches in a request one is lost",
        path=f"{APIS}/produced_batch.py",
        old="if byte_count < len(data):",
        new="if False:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="a commit name is accepted in any record of any principal",
        path=f"{APIS}/produced_batch.py",
        old="if any(name.startswith(HEADER_PREFIX) for name in names):",
        new="if False:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="the header of a take-over is left in the log",
        path=f"{APIS}/produced_batch.py",
        old="    if commit is not None or take_over_from is not None:\n",
        new="    if False:\n",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="a record without a timestamp is in 1969",
        path=f"{APIS}/produced_batch.py",
        old="if base_ms == NO_TIMESTAMP or batch.base_timestamp_ms < NO_TIMESTAMP:",
        new="if batch.base_timestamp_ms < NO_TIMESTAMP:",
        tests=(PRODUCING,),
    ),
    Plant(
        bug="packed records keep deltas to another base timestamp",
        path="connector/raftlog/records/encoding.py",
        old="if first_delta == 0 and packed.base_timestamp_ms in (None, base_timestamp_ms):",
        new="if first_delta == 0:",
        tests=(PACKED,),
    ),
    Plant(
        bug="packed records share a batch with others",
        path="connector/raftlog/records/builder.py",
        old="if standalone or has_required_offset or producer is not None or is_packed:",
        new="if standalone or has_required_offset or producer is not None:",
        tests=(PACKED,),
    ),
    Plant(
        bug="a node that does not lead assigns producer ids",
        path=f"{APIS}/produce.py",
        old="        if not cache.is_leader:\n            request.closes_connection",
        new="        if False:\n            request.closes_connection",
        tests=(ASKING,),
    ),
    Plant(
        bug="two producers get one id",
        path=f"{APIS}/produce.py",
        old="self._next += 1",
        new="self._next += 0",
        tests=(ASKING,),
    ),
    Plant(
        bug="a commit is returned before it is committed",
        path=f"{APIS}/groups.py",
        old="    error = await _confirmed(cache, request)\n",
        new="    error = ErrorCode.none\n",
        tests=(ASKING,),
    ),
    Plant(
        bug="a new leader returns an unconfirmed committed end",
        path=f"{APIS}/offsets.py",
        old="if not cache.has_committed_in_epoch:",
        new="if False:",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="an uncommitted record is found by timestamp",
        path=f"{APIS}/offsets.py",
        old="if record.offset >= end_offset:",
        new="if False:",
        tests=(OFFSETS,),
    ),
    Plant(
        bug="requests of an older epoch are served",
        path=f"{APIS}/metadata_cache.py",
        old="if 0 <= epoch < self.core.epoch:",
        new="if False:",
        tests=(FETCHING, OFFSETS),
    ),
    Plant(
        bug="a follower does not redirect queries of the quorum",
        path=f"{APIS}/cluster.py",
        old="request.closes_connection = True",
        new="request.closes_connection = False",
        tests=(ASKING,),
    ),
    Plant(
        bug="a stale epoch makes its writer search for another leader",
        path="connector/raftlog/wire/produce_error_messages.py",
        old="if isinstance(error, NotLeaderError) and error.epoch < error.current_epoch:",
        new="if False:",
        tests=(REFUSALS, PRODUCING),
    ),
    Plant(
        bug="a client sees a path of the node",
        path="connector/raftlog/wire/produce_error_messages.py",
        old='if isinstance(facts.get("path"), str):',
        new="if False:",
        tests=(REFUSALS,),
    ),
    Plant(
        bug="unread responses are not counted",
        path=f"{NODE}/connection.py",
        old="            self.memory.unread_byte_count = self._transport.get_write_buffer_size()\n",
        new="            pass\n",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a response is read without waiting for memory",
        path=f"{APIS}/fetch.py",
        old="            await request.session.memory.wait_for_room()\n",
        new="            pass\n",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a second fetch of one connection starts immediately",
        path=f"{NODE}/connection.py",
        old="            _api_key(data) in _LARGE_RESPONSES\n",
        new="            False\n",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a closed connection holds its memory forever",
        path=f"{NODE}/connection.py",
        old="        self.memory.clear()\n",
        new="",
        tests=(ACCOUNTS,),
    ),
    Plant(
        bug="queued frames are not counted",
        path=f"{NODE}/connection.py",
        old="            self.memory.queued_byte_count += sum(map(len, frames))\n",
        new="            self.memory.queued_byte_count += 0 * sum(map(len, frames))\n",
        tests=(ACCOUNTS,),
    ),
    Plant(
        bug="a request is held until earlier ones are answered too",
        path=f"{NODE}/connection.py",
        old="        self.memory.in_flight_byte_count += request.byte_count - before\n",
        new="        self.memory.in_flight_byte_count += request.byte_count\n",
        tests=(ACCOUNTS,),
    ),
    Plant(
        bug="a TLS connection is closed twice",
        path=f"{NODE}/connection.py",
        old="not self._transport.is_closing():\n            self._transport.close()\n",
        new="True:\n            self._transport.close()\n",
        tests=(ACCOUNTS,),
    ),
    Plant(
        bug="an append overtakes a larger one of its connection",
        path=f"{APIS}/produce.py",
        old="    async with request.session.append_lock:\n",
        new="    if True:\n",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a large batch is decoded on the event loop",
        path=f"{APIS}/produce.py",
        old="    return await asyncio.get_running_loop().run_in_executor(cache.executor, read)\n",
        new="    return read()\n",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a small append overtakes one without disk space",
        path=f"{NODE}/pending_appends.py",
        old="results.append(failed(refusal) if refusal else group.process(request))",
        new="results.append(group.process(request))",
        tests=("tests/node/test_leader_appends.py", "tests/node/apis/test_producing.py"),
    ),
    Plant(
        bug="an append without disk space is refused forever",
        path="connector/raftlog/append/requests.py",
        old="        if identity in self._refused:\n            self._clear()\n",
        new="",
        tests=("tests/node/test_leader_appends.py", "tests/node/apis/test_producing.py"),
    ),
    Plant(
        bug="a sender without a retry is refused forever",
        path="connector/raftlog/append/requests.py",
        old="        if len(self._refused) == REFUSED_MAX:\n",
        new="        if len(self._refused) < 0:\n",
        tests=("tests/node/test_leader_appends.py",),
    ),
    Plant(
        bug="clients and voters share their memory",
        path=f"{NODE}/server.py",
        old="self.voters_memory if principal.rights & Rights.VOTE",
        new="self.voters_memory if False",
        tests=(MEMORY,),
    ),
    Plant(
        bug="a batch of an append is sent before the response to the previous one",
        path=SENDER,
        old="            if split is not None and any(",
        new="            if False and any(",
        tests=(SENT,),
    ),
    Plant(
        bug="a shared batch that may be written is sent as separate ones",
        path=SENDER,
        old="        elif batch.may_be_appended:\n",
        new="        elif False:\n",
        tests=(SENT,),
    ),
    Plant(
        bug="an impossible offset is sent without an epoch",
        path=SENDER,
        old="        if leader.epoch < 1 and batch.is_conditional:\n",
        new="        if False:\n",
        tests=(SENT,),
    ),
    Plant(
        bug="a request sent on a response closes its connection",
        path=f"{NODE}/network_channel.py",
        old="        del self._in_flight[outgoing.node_id]\n",
        new="",
        tests=("tests/node/test_network_channel.py",),
    ),
)
