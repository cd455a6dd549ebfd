"""Random ACLs with few names, so that many are about the same request, and requests."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from raftlog.types import Operation, Resource, ResourceType
from raftlog_state.image import AclRow

NAMES = ("a", "ab", "abc", "b", "ba", "*", "*a", "kafka-cluster")
PRINCIPALS = ("User:a", "User:b", "User:a:b", "User:*")
HOSTS = ("*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1", "fe80:0:0:0:0:0:0:a1")
RANGES = (
    *("10.0.0.0/8", "10.0.0.1/32", "10.0.0.0/30", "010.0.0.7/31", "0.0.0.0/0", "9.0.0.0/8"),
    *("::/0", "::1/128", "[::]/127", "FE80::/10", "fe80::a2/+127", "2001:db8::/32"),
    *("00000fe80::/10", "::0010.0.0.1/-0"),
    *("10.0.0.1/33", "10.0.0/8", "::ffff:10.0.0.0/104", "::/129", "10.0.0.1/"),
    *("4:a000000/8", "6:0/0"),
)
"""Ranges of addresses, since Kafka 4.4. The last ones are invalid, and contain no address."""


class Question(NamedTuple):
    """Request of a client."""

    principal: str
    host: str
    operation: Operation
    resource: Resource


def random_acl(rng: Random, number: int, ranges: Sequence[str] = RANGES) -> AclRow:
    """Return an ACL; each number has another id."""
    return AclRow(
        acl_id=f"{number:022d}",
        resource_type=rng.choice(list(ResourceType)[:3]),
        resource_name=rng.choice(NAMES),
        pattern_type=rng.choice((3, 3, 4)),
        principal=rng.choice(PRINCIPALS),
        host=rng.choice((*HOSTS, "*", "*", *rng.choices(ranges or ("*",), k=3))),
        operation=rng.choice((*Operation, Operation.ALL, Operation.READ, Operation.ALTER_CONFIGS)),
        permission=rng.choice((2, 3, 3)),
    )


def random_question(rng: Random) -> Question:
    """Return a request about the names of ``random_acl``, except ``*a``: Kafka does not find
    the ACLs of all resources for a name that begins with an asterisk."""
    usual = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ)
    operation = rng.choice((*list(Operation)[1:], *usual, *usual))
    names = [name for name in NAMES if name != "*a"]
    resource = Resource(rng.choice(list(ResourceType)[:3]), rng.choice(names))
    return Question(rng.choice(PRINCIPALS[:-1]), rng.choice(HOSTS[1:]), operation, resource)
