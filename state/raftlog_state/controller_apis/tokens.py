"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken.

Only authenticated principals have tokens. The anonymous principal, and principals that were
themselves authenticated with a token, have none. A token for another owner requires the right to
administer, or an ACL for CREATE_TOKENS on that user. Other principals' tokens are described with an
ACL for DESCRIBE on the token, or for DESCRIBE_TOKENS on its owner.

Source: Kafka ``ControllerApis``, ``KafkaApis`` (allowTokenRequests, handleDescribeTokensRequest);
KIP-48, KIP-373.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from kio.schema.create_delegation_token.v3 import request as create_requests
from kio.schema.create_delegation_token.v3 import response as create_responses
from kio.schema.describe_delegation_token.v3 import request as describe_requests
from kio.schema.describe_delegation_token.v3 import response as describe_responses
from kio.schema.errors import ErrorCode
from kio.schema.expire_delegation_token.v2 import request as expire_requests
from kio.schema.expire_delegation_token.v2 import response as expire_responses
from kio.schema.renew_delegation_token.v2 import request as renew_requests
from kio.schema.renew_delegation_token.v2 import response as renew_responses
from kio.static.primitive import TZAware

from raftlog.types import Operation, Resource, ResourceType
from raftlog.wire.log_identity import duration, int64, milliseconds
from raftlog_state.controller.tokens import DelegationToken
from raftlog_state.image import TokenRow

from .hosted_controller import HostedController
from .requests import USER, ControllerRequest, map_in_steps, principal_text

_Create: TypeAlias = ControllerRequest[create_requests.CreateDelegationTokenRequest]
_Renew: TypeAlias = ControllerRequest[renew_requests.RenewDelegationTokenRequest]
_Expire: TypeAlias = ControllerRequest[expire_requests.ExpireDelegationTokenRequest]
_Describe: TypeAlias = ControllerRequest[describe_requests.DescribeDelegationTokenRequest]

_NOT_ALLOWED: Final = ErrorCode.delegation_token_request_not_allowed
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MS_MAX: Final = 253_402_300_799_999
"""Last millisecond of the year 9999."""
_NO_TIME: Final = -1


def timestamp(time_ms: int) -> TZAware:
    """Return a token's time as kio's type; a log may have times after Python's last year."""
    capped_ms = min(time_ms, _TIME_MS_MAX)
    found: TZAware = _EPOCH + timedelta(milliseconds=capped_ms)  # type: ignore[assignment]
    return found


async def handle_create_delegation_token(
    controller: HostedController, request: _Create
) -> create_responses.CreateDelegationTokenResponse:
    body, principal = request.body, request.principal
    if not principal.may_have_tokens:
        return refuse_create_delegation_token(request, _NOT_ALLOWED, None)
    requester, owner = principal_text(principal.name), None
    if body.owner_principal_name:
        owner = f"{body.owner_principal_type or USER}:{body.owner_principal_name}"
        if owner != requester and not principal.may(
            Operation.CREATE_TOKENS, Resource(ResourceType.USER, owner)
        ):
            code = ErrorCode.delegation_token_authorization_failed
            return refuse_create_delegation_token(request, code, None)
    token = await controller.write(
        "createDelegationToken",
        lambda state: controller.tokens.create(
            state,
            requester=requester,
            owner=owner,
            renewers=tuple(f"{one.principal_type}:{one.principal_name}" for one in body.renewers),
            max_lifetime_ms=milliseconds(body.max_lifetime),
            now_ms=controller.time_ms(),
        ),
    )
    owner_type, owner_name = _parts(token.row.owner)
    requester_type, requester_name = _parts(token.row.requester or token.row.owner)
    return create_responses.CreateDelegationTokenResponse(
        error_code=ErrorCode.none,
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=timestamp(token.row.issue_timestamp_ms),
        expiry_timestamp=timestamp(token.row.expiration_timestamp_ms),
        max_timestamp=timestamp(token.row.max_timestamp_ms),
        token_id=token.row.token_id,
        hmac=token.hmac,
        throttle_time=duration(0),
    )


def refuse_create_delegation_token(
    request: _Create, code: ErrorCode, message: str | None
) -> create_responses.CreateDelegationTokenResponse:
    kind, name = _parts(principal_text(request.principal.name))
    return create_responses.CreateDelegationTokenResponse(
        error_code=code,
        principal_type=kind,
        principal_name=name,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp=timestamp(_NO_TIME),
        expiry_timestamp=timestamp(_NO_TIME),
        max_timestamp=timestamp(_NO_TIME),
        token_id="",
        hmac=b"",
        throttle_time=duration(0),
    )


async def handle_renew_delegation_token(
    controller: HostedController, request: _Renew
) -> renew_responses.RenewDelegationTokenResponse:
    body, principal = request.body, request.principal
    if not principal.may_have_tokens:
        return refuse_renew_delegation_token(request, _NOT_ALLOWED, None)
    expiry_ms = await controller.write(
        "renewDelegationToken",
        lambda state: controller.tokens.renew(
            state,
            hmac=body.hmac,
            principal=principal_text(principal.name),
            renew_period_ms=milliseconds(body.renew_period),
            now_ms=controller.time_ms(),
        ),
    )
    return renew_responses.RenewDelegationTokenResponse(
        error_code=ErrorCode.none, expiry_timestamp=timestamp(expiry_ms), throttle_time=duration(0)
    )


def refuse_renew_delegation_token(
    request: _Renew, code: ErrorCode, message: str | None
) -> renew_responses.RenewDelegationTokenResponse:
    return renew_responses.RenewDelegationTokenResponse(
        error_code=code, expiry_timestamp=timestamp(_NO_TIME), throttle_time=duration(0)
    )


async def handle_expire_delegation_token(
    controller: HostedController, request: _Expire
) -> expire_responses.ExpireDelegationTokenResponse:
    body, principal = request.body, request.principal
    if not principal.may_have_tokens:
        return refuse_expire_delegation_token(request, _NOT_ALLOWED, None)
    expiry_ms = await controller.write(
        "expireDelegationToken",
        lambda state: controller.tokens.expire(
            state,
            hmac=body.hmac,
            principal=principal_text(principal.name),
            expiry_period_ms=milliseconds(body.expiry_time_period),
            now_ms=controller.time_ms(),
        ),
    )
    return expire_responses.ExpireDelegationTokenResponse(
        error_code=ErrorCode.none, expiry_timestamp=timestamp(expiry_ms), throttle_time=duration(0)
    )


def refuse_expire_delegation_token(
    request: _Expire, code: ErrorCode, message: str | None
) -> expire_responses.ExpireDelegationTokenResponse:
    return expire_responses.ExpireDelegationTokenResponse(
        error_code=code, expiry_timestamp=timestamp(_NO_TIME), throttle_time=duration(0)
    )


async def handle_describe_delegation_token(
    controller: HostedController, request: _Describe
) -> describe_responses.DescribeDelegationTokenResponse:
    owners, principal = request.body.owners, request.principal
    if not principal.may_have_tokens:
        return refuse_describe_delegation_token(request, _NOT_ALLOWED, None)
    wanted = None
    if owners is not None:
        wanted = {f"{one.principal_type}:{one.principal_name}" for one in owners}
    tokens = controller.tokens

    def is_allowed(row: TokenRow) -> bool:
        # Without an authorizer, Kafka describes all tokens to every principal.
        return principal.has_acls and any(
            principal.may(operation, Resource(kind, name), is_sensitive=True)
            for operation, kind, name in (
                (Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, row.token_id),
                (Operation.DESCRIBE_TOKENS, ResourceType.USER, row.owner),
            )
        )

    described_to = tokens.described_to(
        principal_text(principal.name), wanted, is_allowed=is_allowed
    )
    rows = await controller.rows_in_steps("describeDelegationToken", TokenRow, described_to)
    described = await map_in_steps(lambda row: _described(tokens.token_of(row)), rows)
    return describe_responses.DescribeDelegationTokenResponse(
        error_code=ErrorCode.none, tokens=tuple(described), throttle_time=duration(0)
    )


def refuse_describe_delegation_token(
    request: _Describe, code: ErrorCode, message: str | None
) -> describe_responses.DescribeDelegationTokenResponse:
    return describe_responses.DescribeDelegationTokenResponse(
        error_code=code, tokens=(), throttle_time=duration(0)
    )


def _described(token: DelegationToken) -> describe_responses.DescribedDelegationToken:
    row = token.row
    owner_type, owner_name = _parts(row.owner)
    requester_type, requester_name = _parts(row.requester or row.owner)
    return describe_responses.DescribedDelegationToken(
        principal_type=owner_type,
        principal_name=owner_name,
        token_requester_principal_type=requester_type,
        token_requester_principal_name=requester_name,
        issue_timestamp=int64(row.issue_timestamp_ms),
        expiry_timestamp=int64(row.expiration_timestamp_ms),
        max_timestamp=int64(row.max_timestamp_ms),
        token_id=row.token_id,
        hmac=token.hmac,
        renewers=tuple(
            describe_responses.DescribedDelegationTokenRenewer(
                principal_type=kind, principal_name=name
            )
            for kind, name in map(_parts, row.renewers)
        ),
    )


def _parts(principal: str) -> tuple[str, str]:
    """Return type and name of a principal's text."""
    kind, _, name = principal.partition(":")
    return kind, name
