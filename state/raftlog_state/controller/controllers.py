"""Registration of controllers.

Source: Kafka 4.3 ``ClusterControlManager.registerController``.
"""

from __future__ import annotations

from raftlog_state.image.record_versions import LEVEL_CONTROLLERS
from raftlog_state.records import RegisterControllerRecord

from .api_exception import INVALID_REQUEST, UNSUPPORTED_VERSION, ApiException
from .pending_state import PendingState


def register_controller(record: RegisterControllerRecord, state: PendingState) -> None:
    """Write the registration of a controller. Raises ``ApiException``."""
    what = f"controller {record.controller_id}"
    if state.current.level < LEVEL_CONTROLLERS:
        reason = "The current MetadataVersion is too old to support controller registrations."
        remedy = f"upgrade metadata.version to {LEVEL_CONTROLLERS} or higher first"
        raise ApiException(what, reason, remedy, UNSUPPORTED_VERSION)
    if not record.end_points:
        raise ApiException(what, "No listeners specified", "set listeners", INVALID_REQUEST)
    state.write(record)
