"""AlterClientQuotas and DescribeClientQuotas.

Source: Kafka ``ControllerApis``, ``KafkaApis`` (handleDescribeClientQuotas).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, cast

from kio.schema.alter_client_quotas.v1 import request as alter_requests
from kio.schema.alter_client_quotas.v1 import response as alter_responses
from kio.schema.describe_client_quotas.v1 import request as describe_requests
from kio.schema.describe_client_quotas.v1 import response as describe_responses
from kio.schema.errors import ErrorCode
from kio.static.primitive import f64

from raftlog.types import Operation
from raftlog.wire.log_identity import duration
from raftlog_state.controller.quotas import (
    QuotaAlteration,
    QuotaComponent,
    QuotaEntity,
    QuotaFilter,
    alter_client_quotas,
    quotas_by_entity,
)
from raftlog_state.image import QuotaRow

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message, map_in_steps

_Alter: TypeAlias = ControllerRequest[alter_requests.AlterClientQuotasRequest]
_Describe: TypeAlias = ControllerRequest[describe_requests.DescribeClientQuotasRequest]
_UNAUTHORIZED = ErrorCode.cluster_authorization_failed


async def handle_alter_client_quotas(
    controller: HostedController, request: _Alter
) -> alter_responses.AlterClientQuotasResponse:
    if not request.principal.may(Operation.ALTER_CONFIGS):
        return refuse_alter_client_quotas(request, _UNAUTHORIZED, None)
    alterations = [
        QuotaAlteration(
            _entity(entry),
            [(op.key, None if op.remove else float(op.value)) for op in entry.ops],
        )
        for entry in request.body.entries
    ]

    refused = await controller.write_in_steps(
        "alterClientQuotas",
        lambda state: alter_client_quotas(alterations, state),
        validate_only=request.body.validate_only,
    )
    return _altered((entity, *code_and_message(error)) for entity, error in refused.items())


def refuse_alter_client_quotas(
    request: _Alter, code: ErrorCode, message: str | None
) -> alter_responses.AlterClientQuotasResponse:
    return _altered((_entity(entry), code, message) for entry in request.body.entries)


def _entity(entry: alter_requests.EntryData) -> QuotaEntity:
    return tuple((part.entity_type, part.entity_name) for part in entry.entity)


def _altered(
    results: Iterable[tuple[QuotaEntity, ErrorCode, str | None]],
) -> alter_responses.AlterClientQuotasResponse:
    return alter_responses.AlterClientQuotasResponse(
        throttle_time=duration(0),
        entries=tuple(
            alter_responses.EntryData(
                error_code=code,
                error_message=message,
                entity=tuple(
                    alter_responses.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
            )
            for entity, code, message in results
        ),
    )


async def handle_describe_client_quotas(
    controller: HostedController, request: _Describe
) -> describe_responses.DescribeClientQuotasResponse:
    if not request.principal.may(Operation.DESCRIBE_CONFIGS):
        return refuse_describe_client_quotas(request, _UNAUTHORIZED, None)
    components = [
        QuotaComponent(one.entity_type, int(one.match_type), one.match)
        for one in request.body.components
    ]
    wanted = QuotaFilter(components, strict=request.body.strict)
    rows = await controller.rows_in_steps("describeClientQuotas", QuotaRow, wanted.matches)
    entries = await map_in_steps(_described, list(quotas_by_entity(rows).items()))
    return describe_responses.DescribeClientQuotasResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        error_message=None,
        entries=tuple(entries),
    )


def _described(found: tuple[QuotaEntity, dict[str, float]]) -> describe_responses.EntryData:
    entity, quotas = found
    return describe_responses.EntryData(
        entity=tuple(
            describe_responses.EntityData(entity_type=kind, entity_name=name)
            for kind, name in entity
        ),
        values=tuple(
            describe_responses.ValueData(key=key, value=cast("f64", value))
            for key, value in quotas.items()
        ),
    )


def refuse_describe_client_quotas(
    request: _Describe, code: ErrorCode, message: str | None
) -> describe_responses.DescribeClientQuotasResponse:
    return describe_responses.DescribeClientQuotasResponse(
        throttle_time=duration(0), error_code=code, error_message=message, entries=None
    )
