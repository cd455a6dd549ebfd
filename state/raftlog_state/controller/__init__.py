"""Validation of changes of a cluster's metadata: image and changes in, records out, without I/O.

The counterpart of the control managers of Kafka's ``QuorumController``.
"""

from __future__ import annotations

from . import acls, brokers, configs, features, partitions, topics
from .change_requests import (
    CHANGE_TYPES,
    AddAcl,
    AddPartitions,
    ChangeRequest,
    CreateTopic,
    DeleteConfig,
    DeleteTopic,
    ElectLeader,
    FenceBroker,
    ReassignPartition,
    RegisterBroker,
    RemoveAcl,
    RemoveQuota,
    RemoveScram,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    SetScram,
    UnfenceBroker,
    UnregisterBroker,
)
from .columns import parse_change
from .dispatch import write
from .features import KNOWN_FEATURES
from .pending_state import Random
from .plan import TRANSACTION_NAME, ControllerResult, plan_changes

assert set(write.registry) >= set(CHANGE_TYPES.values()), "every change is handled"

__all__ = [
    "acls",
    "brokers",
    "configs",
    "features",
    "partitions",
    "topics",
    "CHANGE_TYPES",
    "KNOWN_FEATURES",
    "TRANSACTION_NAME",
    "AddAcl",
    "AddPartitions",
    "Random",
    "ChangeRequest",
    "CreateTopic",
    "DeleteConfig",
    "DeleteTopic",
    "ElectLeader",
    "FenceBroker",
    "ControllerResult",
    "ReassignPartition",
    "RegisterBroker",
    "RemoveAcl",
    "RemoveQuota",
    "RemoveScram",
    "SetConfig",
    "SetFeature",
    "SetIsr",
    "SetQuota",
    "SetScram",
    "UnfenceBroker",
    "UnregisterBroker",
    "parse_change",
    "plan_changes",
]
