"""Handler of UpdateFeatures on a node without a controller: kraft.version, of the quorum itself.

The leader appends the version and the voters, and responds when they are committed. After a timeout
they may still be committed later. All other features belong to a controller, whose handler replaces
this one.

Source: Kafka ``FeatureControlManager``, ``KafkaRaftClient.upgradeKRaftVersion``.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from raftlog.errors import (
    DiskFullError,
    InvalidUpdateVersionError,
    LogClosedError,
    NotLeaderError,
)
from raftlog.node.request import Request
from raftlog.types import Operation
from raftlog.wire import latest_schemas
from raftlog.wire.api_versions import KRAFT_VERSION
from raftlog.wire.log_identity import milliseconds

from .metadata_cache import MetadataCache

_FAILED: Final = "The update failed for all features since the following feature had an error: "
_Request = Request[latest_schemas.UpdateFeaturesRequest]


async def handle_update_features(
    cache: MetadataCache, request: _Request
) -> latest_schemas.UpdateFeaturesResponse:
    code, message = await _update(cache, request)
    return latest_schemas.UpdateFeaturesResponse.to(request.body, request.version, code, message)


def describe_update(request: _Request) -> object | None:
    """Return the arguments for the audit log; None if the features may not be updated."""
    if not request.principal.may(Operation.ALTER) or request.body.validate_only:
        return None
    return {str(one.feature): int(one.max_version_level) for one in request.body.updates()}


async def _update(cache: MetadataCache, request: _Request) -> tuple[ErrorCode, str | None]:
    if not request.principal.may(Operation.ALTER):
        return ErrorCode.cluster_authorization_failed, None
    if not cache.has_committed_in_epoch or cache.leader_error(-1) is not ErrorCode.none:
        # Kafka's tools find the controller again and repeat the request
        return ErrorCode.not_controller, "this node is not the leader, or has just become it"
    epoch, body = cache.core.epoch, request.body
    for update in body.updates():
        reason = _refusal(cache, update, request.version)
        if reason is not None:
            return ErrorCode.invalid_update_version, (
                f"{_FAILED}Invalid update version {update.max_version_level} for feature "
                f"{update.feature}. {reason}"
            )
    end_offset = 0
    for update in body.updates():  # at most one, of kraft.version
        try:
            end_offset = cache.raft_node.raft_client.upgrade_kraft_version(
                epoch,
                int(update.max_version_level),
                required_base_offset=cache.raft_node.replica.log.end_offset,
                validate_only=body.validate_only,
            )
        except InvalidUpdateVersionError as error:
            return ErrorCode.invalid_update_version, _FAILED + error.reason
        except (NotLeaderError, LogClosedError) as error:
            return ErrorCode.not_controller, error.message()
        except DiskFullError as error:
            return ErrorCode.kafka_storage_error, error.message()
    if body.validate_only:
        return ErrorCode.none, None
    return await _wait(cache, end_offset, epoch, milliseconds(body.timeout))


def _refusal(
    cache: MetadataCache, update: latest_schemas.FeatureUpdate, version: int
) -> str | None:
    """Return why an update is refused before it is passed to the quorum, or None."""
    if update.feature != KRAFT_VERSION:
        return f"Feature {update.feature} not found; this node hosts no controller"
    if (
        update.kind(version) != latest_schemas.FEATURE_UPGRADE
        and update.max_version_level != cache.core.kraft_version
    ):
        return "Can't downgrade the version of this feature."
    return None


async def _wait(
    cache: MetadataCache, end_offset: int, epoch: int, timeout_ms: int
) -> tuple[ErrorCode, str | None]:
    """Wait until the records below ``end_offset`` are committed."""

    def is_over() -> bool:
        is_leader = cache.leader_error(epoch) is ErrorCode.none
        return not is_leader or cache.high_watermark >= end_offset

    is_done = await cache.raft_node.wait_until(is_over, timeout_ms=timeout_ms)
    if cache.leader_error(epoch) is not ErrorCode.none:
        return ErrorCode.not_controller, "the leader has changed: the update may be committed"
    if not is_done:
        return ErrorCode.request_timed_out, "the update is not committed yet, and may be later"
    return ErrorCode.none, None
