"""The controller of a cluster's metadata, without I/O.

``plan_changes`` validates changes of an image and returns records. ``QuorumController`` is a
quorum's state machine: it replays the log, and writes to it while its node is the leader.

Source: Kafka ``QuorumController`` and its control managers.
"""

from __future__ import annotations

from . import (
    acls,
    brokers,
    configs,
    directories,
    features,
    partitions,
    producer_ids,
    quotas,
    reassignments,
    scram,
    tokens,
    topics,
)
from .active import ControllerListener, ControllerMetrics, QuorumController
from .api_exception import ApiException
from .broker_control import BrokerControl, BrokerHeartbeatReply
from .brokers import BrokerRegistration
from .change_requests import (
    CHANGE_TYPES,
    AddAcl,
    AddPartitions,
    AppendConfig,
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
    RemoveToken,
    SetConfig,
    SetFeature,
    SetIsr,
    SetQuota,
    SetScram,
    SetToken,
    SubtractConfig,
    UnfenceBroker,
    UnregisterBroker,
)
from .columns import parse_change
from .controller_state import ControllerState
from .deferred_events import Write
from .features import KNOWN_FEATURES
from .heartbeats import BrokerHeartbeat
from .pending_state import Operation, OperationInSteps, PendingState, Random, write_in_steps
from .plan import (
    TRANSACTION_NAME,
    ControllerResult,
    plan_changes,
    write_change,
    write_change_in_steps,
    write_changes,
)

assert set(write_in_steps.registry) >= set(CHANGE_TYPES.values()), "every change is handled"

__all__ = [
    "acls",
    "brokers",
    "configs",
    "directories",
    "features",
    "partitions",
    "producer_ids",
    "quotas",
    "reassignments",
    "scram",
    "tokens",
    "topics",
    "CHANGE_TYPES",
    "KNOWN_FEATURES",
    "TRANSACTION_NAME",
    "AddAcl",
    "AddPartitions",
    "AppendConfig",
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
    "RemoveToken",
    "SetConfig",
    "SetFeature",
    "SetIsr",
    "SetQuota",
    "SetScram",
    "SetToken",
    "SubtractConfig",
    "UnfenceBroker",
    "UnregisterBroker",
    "ApiException",
    "BrokerControl",
    "BrokerHeartbeat",
    "BrokerHeartbeatReply",
    "BrokerRegistration",
    "ControllerListener",
    "ControllerMetrics",
    "ControllerState",
    "Operation",
    "OperationInSteps",
    "PendingState",
    "QuorumController",
    "Write",
    "parse_change",
    "plan_changes",
    "write_change",
    "write_change_in_steps",
    "write_changes",
]
