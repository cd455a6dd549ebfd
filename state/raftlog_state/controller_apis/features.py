"""UpdateFeatures. Features are described by ApiVersions.

All features of a request are updated, or none.

Source: Kafka ``ControllerApis``, ``QuorumController.updateFeatures``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1 import response as responses_v1

from raftlog.types import Operation
from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration
from raftlog_state.controller import ApiException
from raftlog_state.controller.features import FeatureUpdate, UpgradeType, update_features

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message, timeout_ms

_Update: TypeAlias = ControllerRequest[latest_schemas.UpdateFeaturesRequest]

UPGRADE_TYPES_FROM: Final = 1
RESULTS_UNTIL: Final = 1


async def handle_update_features(
    controller: HostedController, request: _Update
) -> latest_schemas.UpdateFeaturesResponse:
    body = request.body
    if not request.principal.may(Operation.ALTER):
        return refuse_update_features(request, ErrorCode.cluster_authorization_failed, None)

    updates = [_update(one, request.version) for one in body.feature_updates]
    try:
        await controller.write(
            "updateFeatures",
            lambda state: update_features(updates, state),
            timeout_ms=timeout_ms(body.timeout),
            validate_only=body.validate_only,
        )
    except ApiException as refused:
        text = (
            "The update failed for all features since the following feature had an error: "
            f"{code_and_message(refused)[1]}"
        )
        return refuse_update_features(request, ErrorCode(refused.kafka_code), text)
    return _response(request, ErrorCode.none, None)


def _update(update: latest_schemas.FeatureUpdate, version: int) -> FeatureUpdate:
    upgrade_type = int(update.upgrade_type)
    if version < UPGRADE_TYPES_FROM:
        is_downgrade = update.allow_downgrade
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if is_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(update.feature, int(update.max_version_level), upgrade_type)


def refuse_update_features(
    request: _Update, code: ErrorCode, message: str | None
) -> latest_schemas.UpdateFeaturesResponse:
    return _response(request, code, message)


def _response(
    request: _Update, code: ErrorCode, message: str | None
) -> latest_schemas.UpdateFeaturesResponse:
    has_results = request.version <= RESULTS_UNTIL and code is ErrorCode.none
    return latest_schemas.UpdateFeaturesResponse(
        throttle_time=duration(0),
        error_code=code,
        error_message=message,
        results=tuple(
            responses_v1.UpdatableFeatureResult(
                feature=update.feature, error_code=ErrorCode.none, error_message=None
            )
            for update in (request.body.feature_updates if has_results else ())
        ),
    )
