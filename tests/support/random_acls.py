"""Random ACLs with few names, so that many are about the same request, and requests."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from raftlog.types import Operation, Resource, ResourceType
from raftlog_state.image import AclRow

NAMES = ("a", "ab", "abc", "b", "ba", "*", "*a", "kafka-cluster")
PRINCIPALS = ("User:a", "User:b", "User:a:b", "User:*")
HOSTS = ("*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1", "fe80:0:0:0:0:0:0:a1")


class Question(NamedTuple):
    """Request of a client."""

    principal: str
    host: str
    operation: Operation
    resource: Resource


def random_acl(rng: Random, number: int) -> AclRow:
    """Return an ACL; each number has another id."""
    return AclRow(
        acl_id=f"{number:022d}",
        resource_type=rng.choice(list(ResourceType)[:3]),
        resource_name=rng.choice(NAMES),
        pattern_type=rng.choice((3, 3, 4)),
        principal=rng.choice(PRINCIPALS),
        host=rng.choice((*HOSTS, "*", "*")),
        operation=rng.choice((*Operation, Operation.ALL, Operation.READ, Operation.ALTER_CONFIGS)),
        permission=rng.choice((2, 3, 3)),
    )


def random_question(rng: Random) -> Question:
    """Return a request about the names of ``random_acl``, except ``*a``: Kafka 4.3.1 does not find
    the ACLs of all resources for a name that begins with an asterisk."""
    usual = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.READ)
    operation = rng.choice((*list(Operation)[1:], *usual, *usual))
    names = [name for name in NAMES if name != "*a"]
    resource = Resource(rng.choice(list(ResourceType)[:3]), rng.choice(names))
    return Question(rng.choice(PRINCIPALS[:-1]), rng.choice(HOSTS[1:]), operation, resource)
