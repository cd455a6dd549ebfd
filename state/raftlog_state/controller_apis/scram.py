"""AlterUserScramCredentials and DescribeUserScramCredentials.

Source: Kafka ``ControllerApis``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from kio.schema.alter_user_scram_credentials.v0 import request as alter_requests
from kio.schema.alter_user_scram_credentials.v0 import response as alter_responses
from kio.schema.describe_user_scram_credentials.v0 import request as describe_requests
from kio.schema.describe_user_scram_credentials.v0 import response as describe_responses
from kio.schema.errors import ErrorCode

from raftlog.types import Operation
from raftlog.wire.log_identity import duration, int8, int32
from raftlog_state.controller import ApiException
from raftlog_state.controller.scram import (
    ScramDeletion,
    ScramUpsertion,
    alter_user_scram_credentials,
    describe_user_scram_credentials,
    iterations_by_user,
)
from raftlog_state.image import ScramRow

from .hosted_controller import HostedController
from .requests import ControllerRequest, code_and_message, map_in_steps

_Alter: TypeAlias = ControllerRequest[alter_requests.AlterUserScramCredentialsRequest]
_Describe: TypeAlias = ControllerRequest[describe_requests.DescribeUserScramCredentialsRequest]
_UNAUTHORIZED = ErrorCode.cluster_authorization_failed


async def handle_alter_user_scram_credentials(
    controller: HostedController, request: _Alter
) -> alter_responses.AlterUserScramCredentialsResponse:
    if not request.principal.may(Operation.ALTER):
        return refuse_alter_user_scram_credentials(request, _UNAUTHORIZED, None)
    deletions = [ScramDeletion(one.name, int(one.mechanism)) for one in request.body.deletions]
    upsertions = [
        ScramUpsertion(
            user=one.name,
            mechanism=int(one.mechanism),
            iterations=int(one.iterations),
            salt=one.salt,
            salted_password=one.salted_password,
        )
        for one in request.body.upsertions
    ]
    refused = await controller.write_in_steps(
        "alterUserScramCredentials",
        lambda state: alter_user_scram_credentials(deletions, upsertions, state),
    )
    return _altered((user, *code_and_message(error)) for user, error in refused.items())


def refuse_alter_user_scram_credentials(
    request: _Alter, code: ErrorCode, message: str | None
) -> alter_responses.AlterUserScramCredentialsResponse:
    users = [one.name for one in request.body.deletions]
    users += [one.name for one in request.body.upsertions]
    return _altered((user, code, message) for user in dict.fromkeys(users))


def _altered(
    results: Iterable[tuple[str, ErrorCode, str | None]],
) -> alter_responses.AlterUserScramCredentialsResponse:
    return alter_responses.AlterUserScramCredentialsResponse(
        throttle_time=duration(0),
        results=tuple(
            alter_responses.AlterUserScramCredentialsResult(
                user=user, error_code=code, error_message=message
            )
            for user, code, message in results
        ),
    )


async def handle_describe_user_scram_credentials(
    controller: HostedController, request: _Describe
) -> describe_responses.DescribeUserScramCredentialsResponse:
    if not request.principal.may(Operation.DESCRIBE, is_sensitive=True):
        return refuse_describe_user_scram_credentials(request, _UNAUTHORIZED, None)
    name, users = "describeUserScramCredentials", [one.name for one in request.body.users or ()]
    found: dict[str, dict[int, int] | ApiException] = {}
    if users:
        found |= await controller.read(
            name, lambda state: describe_user_scram_credentials(users, state)
        )
    else:
        found |= iterations_by_user(await controller.rows_in_steps(name, ScramRow))
    results = await map_in_steps(_result, list(found.items()))
    return describe_responses.DescribeUserScramCredentialsResponse(
        throttle_time=duration(0),
        error_code=ErrorCode.none,
        error_message=None,
        results=tuple(results),
    )


def _result(
    found: tuple[str, dict[int, int] | ApiException],
) -> describe_responses.DescribeUserScramCredentialsResult:
    user, one = found
    if isinstance(one, ApiException):
        return _described(user, *code_and_message(one), {})
    return _described(user, ErrorCode.none, None, one)


def refuse_describe_user_scram_credentials(
    request: _Describe, code: ErrorCode, message: str | None
) -> describe_responses.DescribeUserScramCredentialsResponse:
    return describe_responses.DescribeUserScramCredentialsResponse(
        throttle_time=duration(0), error_code=code, error_message=message, results=()
    )


def _described(
    user: str, code: ErrorCode, message: str | None, iterations: dict[int, int]
) -> describe_responses.DescribeUserScramCredentialsResult:
    return describe_responses.DescribeUserScramCredentialsResult(
        user=user,
        error_code=code,
        error_message=message,
        credential_infos=tuple(
            describe_responses.CredentialInfo(mechanism=int8(at), iterations=int32(count))
            for at, count in sorted(iterations.items())
        ),
    )
