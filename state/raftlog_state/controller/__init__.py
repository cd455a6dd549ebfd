"""Changes of a cluster's metadata: image and changes in, records out, and no I/O.

This is what an active controller decides with: a row of a batch job, or later a request.
"""

from __future__ import annotations

from . import access, brokers, configs, features, partitions, topics
from .changes import (
    CHANGE_TYPES,
    AddAcl,
    AddPartitions,
    Change,
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
from .columns import change_of
from .draft import Chance
from .features import KNOWN_FEATURES
from .plan import TRANSACTION_NAME, Plan, plan_changes
from .writing import write

assert set(write.registry) >= set(CHANGE_TYPES.values()), "every change has its writer"

__all__ = [
    "access",
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
    "Chance",
    "Change",
    "CreateTopic",
    "DeleteConfig",
    "DeleteTopic",
    "ElectLeader",
    "FenceBroker",
    "Plan",
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
    "change_of",
    "plan_changes",
]
