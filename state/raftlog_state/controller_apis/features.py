"""UpdateFeatures. Features are described by ApiVersions.

All features of a request are updated, or none.

Source: Kafka ``ControllerApis``, ``QuorumController.updateFeatures``.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v1 import response as responses_v1

from raftlog.wire import latest_schemas
from raftlog.wire.log_identity import duration
from raftlog_state.controller import ApiException, PendingState, SetFeature, write_change

from .hosted_controller import HostedController
from .requests import ControllerRequest, timeout_ms

_Update: TypeAlias = ControllerRequest[latest_schemas.UpdateFeaturesRequest]

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3
"""Kafka's ``FeatureUpdate.UpgradeType``."""
UPGRADE_TYPES_FROM: Final = 1
RESULTS_UNTIL: Final = 1


async def handle_update_features(
    controller: HostedController, request: _Update
) -> latest_schemas.UpdateFeaturesResponse:
    body = request.body
    if not request.principal.may_administer:
        return refuse_update_features(request, ErrorCode.cluster_authorization_failed, None)

    def operation(state: PendingState) -> None:
        for update in body.feature_updates:
            write_change(_change(update, request.version), state)

    try:
        await controller.write(
            "updateFeatures",
            operation,
            timeout_ms=timeout_ms(body.timeout),
            validate_only=body.validate_only,
        )
    except ApiException as refused:
        text = (
            "The update failed for all features since the following feature had an error: "
            f"{refused.reason}"
        )
        return refuse_update_features(request, ErrorCode(refused.kafka_code), text)
    return _response(request, ErrorCode.none, None)


def _change(update: latest_schemas.FeatureUpdate, version: int) -> SetFeature:
    if version < UPGRADE_TYPES_FROM:
        allow_downgrade = update.allow_downgrade
    elif int(update.upgrade_type) in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        allow_downgrade = int(update.upgrade_type) != UPGRADE
    else:
        reason = (
            f"Invalid update version {update.max_version_level} for feature {update.feature}. The "
            "controller does not support the given upgrade type."
        )
        remedy = "use UPGRADE, SAFE_DOWNGRADE or UNSAFE_DOWNGRADE"
        code = ErrorCode.invalid_update_version
        raise ApiException(f"feature {update.feature!r}", reason, remedy, code)
    return SetFeature(
        feature=update.feature,
        level=int(update.max_version_level),
        allow_downgrade=allow_downgrade,
    )


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
