"""Bugs in the quotas of clients."""

from __future__ import annotations

from typing import Final

from .plant import Plant

NODE: Final = "connector/raftlog/node"
RATES: Final = "tests/node/test_client_quotas.py"
PORT: Final = "tests/node/test_quota_port.py"
CLIENT: Final = "connector/raftlog/client/remote"
LOG: Final = "tests/state/publishing/test_access_publisher.py"

QUOTA_PLANTS: Final = (
    Plant(
        bug="the quota of a user with any client id is looked up after that of the user",
        path=f"{NODE}/client_quotas.py",
        old="    (_Names.EXACT, _Names.DEFAULT),\n    (_Names.EXACT, _Names.ABSENT),\n",
        new="    (_Names.EXACT, _Names.ABSENT),\n    (_Names.EXACT, _Names.DEFAULT),\n",
        tests=(RATES,),
    ),
    Plant(
        bug="a default quota is one rate for all users",
        path=f"{NODE}/client_quotas.py",
        old="user = None if user_names is _Names.ABSENT else client.user",
        new="user = client.user if user_names is _Names.EXACT else None",
        tests=(RATES,),
    ),
    Plant(
        bug="a rate is never removed",
        path=f"{NODE}/client_quotas.py",
        old="            is_old = now_ms - self._rates[oldest].recorded_ms >= _WINDOW_MS\n",
        new="            is_old = False\n",
        tests=(RATES,),
    ),
    Plant(
        bug="the number of rates is unlimited",
        path=f"{NODE}/client_quotas.py",
        old=" or len(self._rates) >= RATES_MAX",
        new="",
        tests=(RATES,),
    ),
    Plant(
        bug="a sample leaves the window when it began before it",
        path=f"{NODE}/client_quotas.py",
        old="            if now_ms - one.last_ms >= _WINDOW_MS:\n",
        new="            if now_ms - one.start_ms >= _WINDOW_MS:\n",
        tests=("tests/node/test_kafkas_quotas.py",),
    ),
    Plant(
        bug="a client that exceeds a quota is not muted",
        path=f"{NODE}/client_quotas.py",
        old="            self._raft_node.throttle(request.connection, throttle_ms)\n",
        new="",
        tests=(PORT,),
    ),
    Plant(
        bug="a client takes a throttle time for a lost node",
        path=f"{CLIENT}/connection.py",
        old="        if throttle_time:\n",
        new="        if False:\n",
        tests=(PORT,),
    ),
    Plant(
        bug="a batch in flight is not awaited for the throttle time of the one before it",
        path=f"{CLIENT}/connection.py",
        old="            if left_s > 0:\n                timer",
        new="            if False:\n                timer",
        tests=(PORT,),
    ),
    Plant(
        bug="a client sends to a leader that throttles it",
        path=f"{CLIENT}/metadata.py",
        old="        return min(left_s, THROTTLE_CHECK_S)\n",
        new="        return 0.0\n",
        tests=(PORT,),
    ),
    Plant(
        bug="a muted connection starts requests that were received",
        path=f"{NODE}/connection.py",
        old=" and not self._is_muted\n",
        new="\n",
        tests=(PORT,),
    ),
    Plant(
        bug="a muted connection that is lost is kept",
        path=f"{NODE}/server.py",
        old="        self._raft_node.throttled.remove(connection)\n",
        new="",
        tests=(PORT,),
    ),
    Plant(
        bug="a shorter throttle time unmutes a connection",
        path=f"{NODE}/purgatory.py",
        old="        if before_ms >= deadline_ms or",
        new="        if",
        tests=(RATES,),
    ),
    Plant(
        bug="a throttled fetch has its records",
        path=f"{NODE}/apis/fetch.py",
        old="            if not has_records:\n",
        new="            if False:\n",
        tests=(PORT,),
    ),
    Plant(
        bug="a batch that is larger than its quota is never fetched",
        path=f"{NODE}/client_quotas.py",
        old="(not bytes_ms or is_first)",
        new="not bytes_ms",
        tests=(PORT,),
    ),
    Plant(
        bug="brokers are throttled",
        path=f"{NODE}/client_quotas.py",
        old=" or request.header.api_key in _NODE_APIS",
        new="",
        tests=("tests/state/controller_apis/test_quotas_of_nodes.py",),
    ),
    Plant(
        bug="a removed quota of the log still applies",
        path="state/raftlog_state/publishing/access_publisher.py",
        old="self._quotas.remove(change.before)",
        new="pass",
        tests=(LOG,),
    ),
)
