"""UpdateFeatures. ApiVersions describes features.

Either all features of a request are updated, or none.

Source: Kafka ``ControllerApis``, ``QuorumController.updateFeatures``.
"""

from __future__ import annotations

from typing import TypeAlias

from kio.schema.errors import ErrorCode

from raftlog.types import Operation
from raftlog.wire import latest_schemas
from raftlog_state.controller import ApiException
from raftlog_state.controller.features import FeatureUpdate, update_features

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message, timeout_ms

_Update: TypeAlias = ControllerRequest[latest_schemas.UpdateFeaturesRequest]


async def handle_update_features(
    controller: HostedController, request: _Update
) -> latest_schemas.UpdateFeaturesResponse:
    body = request.body
    if not request.principal.may(Operation.ALTER):
        return refuse_update_features(request, ErrorCode.cluster_authorization_failed, None)

    updates = [
        FeatureUpdate(one.feature, int(one.max_version_level), one.kind(request.version))
        for one in body.updates()
    ]
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
    return latest_schemas.UpdateFeaturesResponse.to(body, request.version, ErrorCode.none, None)


def refuse_update_features(
    request: _Update, code: ErrorCode, message: str | None
) -> latest_schemas.UpdateFeaturesResponse:
    return latest_schemas.UpdateFeaturesResponse.to(request.body, request.version, code, message)
