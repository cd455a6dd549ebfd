"""Bugs of a node's audit log: events that are hidden, lost or have no principal."""

from __future__ import annotations

from typing import Final

from tests.planted.plant import Plant

NODE: Final = "connector/raftlog/node"
AUDIT: Final = "tests/node/test_audit.py"
CHANGES: Final = "tests/state/controller_apis/test_audited_changes.py"
MATRIX: Final = "tests/node/test_access_matrix.py"

AUDIT_PLANTS: Final = (
    Plant(
        bug="of equal events of different certificates only one is logged",
        path=f"{NODE}/audit.py",
        old="key: object = (event, peer, *facts.values())",
        new="key: object = (event, peer.principal, peer.address, *facts.values())",
        tests=(AUDIT,),
    ),
    Plant(
        bug="values of configs are in the audit log",
        path="state/raftlog_state/controller_apis/audited_changes.py",
        old=" if name in _GROUPS or name in _PUBLIC",
        new="",
        tests=(CHANGES,),
    ),
    Plant(
        bug="a forwarded change that a standby refuses has no outcome in the audit log",
        path="state/raftlog_state/controller_apis/envelope.py",
        old="        ended(refused)\n",
        new="",
        tests=(CHANGES,),
    ),
    Plant(
        bug="forwarded changes are not in the audit log",
        path="state/raftlog_state/controller_apis/envelope.py",
        old="    ended(response)\n",
        new="",
        tests=(CHANGES,),
    ),
    Plant(
        bug="ranges of appended offsets swallow those of another principal",
        path=f"{NODE}/audit.py",
        old="if found.ranges and found.ranges[-1][1] + 1 == base_offset:",
        new="if found.ranges:",
        tests=(AUDIT,),
    ),
    Plant(
        bug="denied requests of clients are not in the audit log",
        path=f"{NODE}/apis/client_apis.py",
        old="        ended(response)\n",
        new="",
        tests=(MATRIX,),
    ),
    Plant(
        bug="denied requests of replicas are not in the audit log",
        path=f"{NODE}/raft_request_handler.py",
        old="            self._audit.refused(request.principal, connection.where, message.reason, "
        "key.name)\n",
        new="",
        tests=(MATRIX,),
    ),
    Plant(
        bug="denied appends are not in the audit log",
        path=f"{NODE}/apis/produce.py",
        old="        if refusal.error in AUTHORIZATION_ERRORS:",
        new="        if False:",
        tests=(MATRIX,),
    ),
    Plant(
        bug="appends are not in the audit log",
        path=f"{NODE}/apis/produce.py",
        old="        if audit.is_written and isinstance(result, Done)",
        new="        if False",
        tests=(AUDIT,),
    ),
    Plant(
        bug="the audit log is written through a planted link",
        path=f"{NODE}/audit.py",
        old="os.O_CREAT | os.O_NOFOLLOW |",
        new="os.O_CREAT |",
        tests=(AUDIT,),
    ),
    Plant(
        bug="refusals of unknown peers hide those of principals",
        path=f"{NODE}/audit.py",
        old="""        kind = event, peer.principal is None
        found = self._repeated.get(key)
        count_max = STRANGER_KEYS_MAX if peer.principal is None else KEYS_MAX
""",
        new="""        kind = event
        found = self._repeated.get(key)
        count_max = KEYS_MAX
""",
        tests=(AUDIT,),
    ),
    Plant(
        bug="refusals of principals hide connections",
        path=f"{NODE}/audit.py",
        old="        kind = event, peer.principal is None\n",
        new='        kind = "any", peer.principal is None\n',
        tests=(AUDIT,),
    ),
    Plant(
        bug="after a full disk a line continues another one",
        path=f"{NODE}/audit.py",
        old="            os.ftruncate(self._descriptor, byte_count)\n",
        new="",
        tests=(AUDIT,),
    ),
    Plant(
        bug="offsets of a line are cut off",
        path=f"{NODE}/audit.py",
        old="RANGES_MAX: Final = 300",
        new="RANGES_MAX: Final = 1_000",
        tests=(AUDIT,),
    ),
)
