"""Bugs in the limits of a node's callers: producer state, connections, descriptors."""

from __future__ import annotations

from typing import Final

from .plant import Plant

NODE: Final = "connector/raftlog/node"
BUDGETS: Final = "tests/node/test_memory_pool.py"
ACCOUNTS: Final = "tests/node/test_connection_resources.py"
MEMORY: Final = "tests/node/test_response_memory.py"
QUOTAS: Final = "tests/node/test_connection_quotas.py"
TLS_PORT: Final = "tests/node/test_tls_port.py"
DESCRIPTORS: Final = "tests/node/test_descriptors.py"
CONNECTIONS: Final = "tests/node/test_connections.py"
EVENT_LOOP: Final = "tests/node/test_event_loop.py"
METRICS: Final = "tests/node/test_metrics_server.py"

NODE_LIMIT_PLANTS: Final = (
    Plant(
        bug="bytes that TLS passes on while it is closed are received in a callback that flushes",
        path=f"{NODE}/connection.py",
        old="        if self._decoder is not None and not self._is_finishing:\n",
        new="        if True:\n",
        tests=(ACCOUNTS,),
    ),
    Plant(
        bug="memory of a frame is held before its bytes have arrived",
        path=f"{NODE}/connection.py",
        old="        self.memory.partial_byte_count = decoder.buffered_byte_count\n",
        new="        self.memory.partial_byte_count = decoder.expected_byte_count\n",
        tests=(ACCOUNTS, MEMORY),
    ),
    Plant(
        bug="a partial frame is not counted",
        path=f"{NODE}/connection.py",
        old="        self.memory.partial_byte_count = decoder.buffered_byte_count\n",
        new="",
        tests=(ACCOUNTS, MEMORY),
    ),
    Plant(
        bug="partial frames wait for each other",
        path=f"{NODE}/connection.py",
        old="share.has_room or share.may_overdraw(self._start_requests_soon)",
        new="share.has_room",
        tests=(MEMORY,),
    ),
    Plant(
        bug="each connection without rights starts requests in the same iteration",
        path=f"{NODE}/connection.py",
        old="""            self._start_next(1)
""",
        new="""            for _ in range(len(self._connections)):
                self._start_next(1)
""",
        tests=(f"{CONNECTIONS}::test_peers_without_rights_start_one_request_in_each_iteration",),
    ),
    Plant(
        bug="a connection without rights starts as many requests in an iteration as any other",
        path=f"{NODE}/connection.py",
        old="self._start_next(1)",
        new="self._start_next(REQUESTS_PER_TURN)",
        tests=(f"{CONNECTIONS}::test_peers_without_rights_start_one_request_in_each_iteration",),
    ),
    Plant(
        bug="a bug in a queued request ends the turns of all connections of its principal",
        path=f"{NODE}/connection.py",
        old="        _run_step(self._loop, connection, connection.start_queued, count_max)",
        new="        connection.start_queued(count_max)",
        tests=(
            "tests/node/test_connection_resources.py"
            "::test_a_bug_in_a_queued_request_ends_its_connection_and_delays_no_other",
        ),
    ),
    Plant(
        bug="each connection of a principal starts requests in every iteration",
        path=f"{NODE}/connection.py",
        old="                if self._loop.time() >= end_s:",
        new="                if self._loop.time() >= end_s + 60:",
        tests=(f"{CONNECTIONS}::test_all_connections_of_a_principal_share_its_turns",),
    ),
    Plant(
        bug="all peers without rights are served in the iteration in which their bytes arrive",
        path=f"{NODE}/event_loop.py",
        old="        if len(privileged) == len(found):\n",
        new="        if True:\n",
        tests=(
            f"{EVENT_LOOP}::test_one_restricted_socket_is_returned_while_there_is_no_other_work",
            f"{EVENT_LOOP}::test_a_client_is_answered_before_peers_without_rights_that_sent_earlier",
        ),
    ),
    Plant(
        bug="peers without rights are not served on a busy node",
        path=f"{NODE}/event_loop.py",
        old=" or now_s >= self._due_s:",
        new=":",
        tests=(
            f"{EVENT_LOOP}::test_beside_endless_work_restricted_sockets_have_a_share_of_the_time",
        ),
    ),
    Plant(
        bug="the end of a connection releases the next one with its descriptor",
        path=f"{NODE}/event_loop.py",
        old="        if self._restricted.get(descriptor) is restricted:\n",
        new="        if descriptor in self._restricted:\n",
        tests=(
            f"{EVENT_LOOP}::test_a_closed_socket_does_not_release_the_next_one_with_its_descriptor",
        ),
    ),
    Plant(
        bug="an address with many connections keeps others of its listener waiting",
        path=f"{NODE}/server.py",
        old="        restricted = self._restrict(peer, listener_socket, kind, entered.address)\n",
        new="        restricted = self._restrict(peer, listener_socket, kind)\n",
        tests=(f"{EVENT_LOOP}::test_sockets_are_restricted_by_their_address",),
    ),
    Plant(
        bug="a known address waits for a turn of each unknown one",
        path=f"{NODE}/server.py",
        old='        kind = "known" if entered.is_known else "unknown"\n',
        new='        kind = "unknown"\n',
        tests=(f"{EVENT_LOOP}::test_a_known_address_is_served_before_those_of_many_others",),
    ),
    Plant(
        bug="a known address waits in the backlog for a turn of each refused connection",
        path=f"{NODE}/server.py",
        old="            if self.quotas.is_full(listener_socket.listener):\n",
        new="            if False:\n",
        tests=(
            f"{EVENT_LOOP}"
            "::test_a_known_address_does_not_wait_for_a_turn_of_each_refused_connection",
        ),
    ),
    Plant(
        bug="a reload of the file keeps the quotas of the start",
        path=f"{NODE}/process.py",
        old="            self._apis.quotas.use(quotas)\n",
        new="            pass\n",
        tests=("tests/node/test_quota_port.py::test_quotas_are_reloaded_and_stay_after_a_mistake",),
    ),
    Plant(
        bug="a known address is refused while unknown ones use all connections",
        path=f"{NODE}/connection_quotas.py",
        old=" and not (is_known and not oldest.is_known):",
        new=":",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="known addresses leave no connection to unknown ones",
        path=f"{NODE}/connection_quotas.py",
        old="        return next(iter(others if len(own) < half and others else own))\n",
        new="        return next(iter(others if is_known and others else own or others))\n",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="each connection of a principal starts requests without the queue in every iteration",
        path=f"{NODE}/connection.py",
        old="        self._direct_left -= found\n",
        new="",
        tests=(
            f"{EVENT_LOOP}"
            "::test_all_connections_of_a_principal_share_the_requests_that_do_not_wait",
        ),
    ),
    Plant(
        bug="a socket stays restricted after its authentication",
        path=f"{NODE}/server.py",
        old="        if entered.pool is not None:\n            self._release(entered)\n",
        new="",
        tests=(f"{EVENT_LOOP}::test_connections_leave_no_restricted_sockets",),
    ),
    Plant(
        bug="a listener with SASL keeps what a failed handshake of TLS has used",
        path=f"{NODE}/server.py",
        old="        self._entered.pop(connection, None)\n",
        new="",
        tests=("tests/node/test_fuzzed_tls.py",),
    ),
    Plant(
        bug="a listener accepts all connections of its backlog in one iteration",
        path=f"{NODE}/server.py",
        old="            await self._wait_until_readable(listening)\n",
        new="",
        tests=(f"{CONNECTIONS}::test_one_connection_is_accepted_in_each_iteration",),
    ),
    Plant(
        bug="a server closes its sockets while its tasks have them in the event loop",
        path=f"{NODE}/server.py",
        old="            await asyncio.wait(tasks)\n",
        new="            pass\n",
        tests=(f"{CONNECTIONS}::test_the_tasks_of_a_server_end_before_its_descriptors_are_free",),
    ),
    Plant(
        bug="one principal uses all memory for requests",
        path=f"{NODE}/memory_pool.py",
        old="        return self._byte_count < self.pool.free_byte_count\n",
        new="        return self.pool.free_byte_count > 0\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="all frames of a principal are received without memory",
        path=f"{NODE}/memory_pool.py",
        old="        return self.overdrawn_by == resume\n",
        new="        return True\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="a byte now and then extends a peer's deadline",
        path=f"{NODE}/connection.py",
        old="            later_s = self.deadline_s + byte_count / self._bytes_per_second_min\n",
        new="            later_s = now_s + self.stalled_s\n",
        tests=(BUDGETS,),
    ),
    Plant(
        bug="a stalled connection keeps memory that others wait for",
        path=f"{NODE}/server.py",
        old="            self._free_memory(now_s)\n",
        new="",
        tests=(MEMORY,),
    ),
    Plant(
        bug="clients use the slots of voters",
        path=f"{NODE}/connection_quotas.py",
        old="        pool = self.voters if is_voter else self.clients\n",
        new="        pool = self.clients\n",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="a connection without rights is kept",
        path=f"{NODE}/connection_quotas.py",
        old="[at for at in strangers if now_s - at.began_s > self._handshake_s]",
        new="list[CountedConnection]()",
        tests=(QUOTAS, TLS_PORT),
    ),
    Plant(
        bug="a connection without rights counts as a client's",
        path=f"{NODE}/connection_quotas.py",
        old="        if principal.possible_rights is Rights.NONE:\n",
        new="        if False:\n",
        tests=(QUOTAS, TLS_PORT),
    ),
    Plant(
        bug="running handshakes use all slots",
        path=f"{NODE}/connection_quotas.py",
        old="        if self.is_full(listener):\n",
        new="        if False:\n",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="the connection rate of an address is unlimited",
        path=f"{NODE}/connection_quotas.py",
        old="        is_refused = rate <= 0 or count < 1\n",
        new="        is_refused = False\n",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="one principal uses all slots of clients",
        path=f"{NODE}/connection_quotas.py",
        old="self.by_principal[principal] >= self.per_principal_max",
        new="False",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="the slot of a closed connection stays occupied",
        path=f"{NODE}/connection_quotas.py",
        old="            connection.pool.count_one(connection.address, connection.principal, -1)\n",
        new="            pass\n",
        tests=(QUOTAS,),
    ),
    Plant(
        bug="reaching a limit is not logged",
        path=f"{NODE}/server.py",
        old='self._log_event("limit", limit,',
        new='(lambda *_: None)("limit", limit,',
        tests=(QUOTAS,),
    ),
    Plant(
        bug="the log has no reserved descriptors",
        path="connector/raftlog/storage/local.py",
        old="if error.errno not in NO_DESCRIPTOR or not self._spare:",
        new="if True:",
        tests=("tests/storage/test_reserved_descriptors.py", DESCRIPTORS),
    ),
    Plant(
        bug="connections are accepted with the descriptors of the log",
        path=f"{NODE}/server.py",
        old="            while not self._has_descriptors():\n",
        new="            while False:\n",
        tests=(DESCRIPTORS,),
    ),
    Plant(
        bug="a node starts without enough descriptors for its connections",
        path=f"{NODE}/process.py",
        old="    needed = descriptors_needed(config)\n",
        new="    needed = 0\n",
        tests=(DESCRIPTORS,),
    ),
    Plant(
        bug="slots of voters have no descriptors",
        path=f"{NODE}/process.py",
        old="        + limits.voters_connections_max\n",
        new="",
        tests=(DESCRIPTORS,),
    ),
    Plant(
        bug="idle connections for metrics are kept forever",
        path=f"{NODE}/metrics.py",
        old="                async with asyncio.timeout(self._timeout_s):\n",
        new="                async with asyncio.timeout(None):\n",
        tests=(METRICS,),
    ),
    Plant(
        bug="connections for metrics are unlimited",
        path=f"{NODE}/metrics.py",
        old="        if len(self._open) >= METRICS_CONNECTIONS_MAX:\n",
        new="        if False:\n",
        tests=(METRICS,),
    ),
    Plant(
        bug="metrics are served at every path",
        path=f"{NODE}/metrics.py",
        old="        if path not in (_METRICS, _HEALTH, _READY):\n",
        new="        if False:\n",
        tests=(METRICS,),
    ),
    Plant(
        bug="others can write the file with the access table",
        path=f"{NODE}/config.py",
        old="        rights = change_by_others(name)\n",
        new="        rights = None\n",
        tests=("tests/node/config/test_node_config.py",),
    ),
    Plant(
        bug="others can write a client's key",
        path="connector/raftlog/client/remote/tls.py",
        old="        _check_rights(options.key or options.certificate)\n",
        new="",
        tests=("tests/client/remote/test_nodes.py",),
    ),
    Plant(
        bug="others can write the directory of a key",
        path="connector/raftlog/storage/file_rights.py",
        old="        if others_may_replace_in(",
        new="        if False and others_may_replace_in(",
        tests=("tests/storage/test_file_permissions.py", "tests/node/config/test_node_tls.py"),
    ),
    Plant(
        bug="a key on a read-only mount is refused",
        path="connector/raftlog/storage/file_rights.py",
        old="    if mount_flags & os.ST_RDONLY or directory",
        new="    if directory",
        tests=("tests/storage/test_file_permissions.py",),
    ),
    Plant(
        bug="a group can write a key",
        path="connector/raftlog/storage/file_rights.py",
        old="    return bool(found.st_mode & group) and ",
        new="    return False and ",
        tests=("tests/storage/test_file_permissions.py",),
    ),
    Plant(
        bug="an epoch assigns producer ids of the next one",
        path=f"{NODE}/apis/produce.py",
        old="        if self._next >= 1 << _COUNTER_BITS:\n",
        new="        if False:\n",
        tests=("tests/node/apis/test_queries.py",),
    ),
)
