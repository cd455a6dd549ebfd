"""Quotas of clients: which one applies, for how long it throttles, and what is in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from raftlog.node.client_quotas import (
    NO_QUOTAS,
    RATES_MAX,
    ClientQuota,
    ClientQuotaManager,
    QuotaClient,
    QuotaEntity,
    QuotaTable,
    QuotaType,
)
from raftlog.node.purgatory import EXPIRED_PER_TURN_MAX, ThrottledChannels

PRODUCE, REQUEST = QuotaType.PRODUCE, QuotaType.REQUEST
ALICE = QuotaClient("alice", "app")
ENTITIES: list[QuotaEntity] = [
    (("client-id", "app"), ("user", "alice")),
    (("client-id", None), ("user", "alice")),
    (("user", "alice"),),
    (("client-id", "app"), ("user", None)),
    (("client-id", None), ("user", None)),
    (("user", None),),
    (("client-id", "app"),),
    (("client-id", None),),
]
"""Of alice's app, the most specific one first."""


class Quotas:
    """Manager at a time that the test sets."""

    def __init__(self, *quotas: tuple[QuotaEntity, float], quota: QuotaType = PRODUCE) -> None:
        self.now_ms = 5_000
        self.quota = quota
        self.manager = ClientQuotaManager(NO_QUOTAS, lambda: self.now_ms)
        self.set(*quotas)

    def set(self, *quotas: tuple[QuotaEntity, float]) -> None:
        limits = QuotaTable(ClientQuota(one, self.quota, value) for one, value in quotas)
        self.manager.limits = limits

    def record(self, value: float, client: QuotaClient = ALICE) -> int:
        return self.manager.record(self.quota, client, value)


def test_the_most_specific_quota_applies() -> None:
    values = {entity: 100.0 * at for at, entity in enumerate(ENTITIES, 1)}
    while values:
        here = Quotas(*values.items())
        assert here.manager.value_max(PRODUCE, ALICE) == 10 * min(values.values())
        del values[next(iter(values))]
    assert here.manager.value_max(QuotaType.FETCH, ALICE) == math.inf


@pytest.mark.parametrize("entity", ENTITIES)
def test_those_share_a_rate_that_the_quota_does_not_distinguish(entity: QuotaEntity) -> None:
    kinds = dict(entity)
    for other, kind in (
        (QuotaClient("bob", "app"), "user"),
        (QuotaClient("alice", "x"), "client-id"),
    ):
        here = Quotas((entity, 100))
        assert here.record(1_001) > 0
        is_of_another = kinds.get(kind, "absent") != "absent"  # or the quota is not about it at all
        assert (here.record(1, other) == 0) is is_of_another


def test_ten_seconds_of_bytes_are_not_throttled_and_more_are_for_the_throttle_time() -> None:
    here = Quotas((ENTITIES[0], 100))
    assert here.record(1_000) == 0
    assert here.record(50) == 500  # 1,050 bytes in 10 s are 105 a second: 5 / 100 of 10 s
    here.now_ms += 499
    assert here.record(0) == 1
    here.now_ms += 1
    assert here.record(0) == 0, "the throttle time is over"
    assert here.record(1) > 0
    here.now_ms += 11_000
    assert here.record(999) == 0, "what is older is not in the window"


def test_an_unrecorded_value_is_not_counted() -> None:
    here = Quotas((ENTITIES[0], 100))
    assert here.record(2_000) > 0
    assert not here.manager.is_zero(PRODUCE, ALICE)
    here.manager.unrecord(PRODUCE, ALICE, 2_000)
    assert here.manager.is_zero(PRODUCE, ALICE)
    assert here.record(1_000) == 0


def test_request_time_throttles_for_a_second_at_most() -> None:
    here = Quotas((ENTITIES[5], 10), quota=REQUEST)
    assert here.record(100) == 0
    assert here.record(4) == 400
    assert here.record(1e9) == 1_000


def test_a_changed_quota_applies_to_what_was_recorded() -> None:
    here = Quotas((ENTITIES[2], 100))
    assert here.record(1_000) == 0
    here.set((ENTITIES[2], 50))
    assert here.record(0) == 10_000
    here.set()
    assert here.record(1e9) == 0


def test_a_throttle_time_fits_into_a_response() -> None:
    here = Quotas((ENTITIES[2], 1e-9))
    assert here.record(1e9) == 2**31 - 1
    here.set((ENTITIES[2], 0))  # not accepted by controllers, but a log may have it
    assert here.record(1) == 2**31 - 1


def test_rates_are_bounded_and_removed_after_the_window() -> None:
    here = Quotas((ENTITIES[7], 100))
    for at in range(RATES_MAX + 50):
        here.record(1, QuotaClient("alice", f"{at}"))
    assert here.manager.rate_count == RATES_MAX
    here.now_ms += 11_000
    for _ in range(RATES_MAX):
        here.record(1)
    assert here.manager.rate_count == 1
    assert here.record(1_000) > 0, "the rate that is used stays, although it was old"


def test_names_of_any_length_have_keys_of_a_bounded_length() -> None:
    here = Quotas((ENTITIES[7], 100))
    long = "x" * 32_000
    assert here.record(2_000, QuotaClient("alice", long)) > 0
    assert here.record(1, QuotaClient("alice", f"{long}y")) == 0, "another client id"
    assert here.record(1, QuotaClient("alice", long)) > 0
    assert max(len(part or "") for key in here.manager._rates for part in key) < 300


# --- muted connections ----------------------------------------------------------------------------


class Channel:
    """Connection that notes what is called."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.calls: list[str] = []
        self._is_open = is_open

    def mute(self) -> bool:
        self.calls.append("mute")
        return self._is_open

    def unmute(self) -> None:
        self.calls.append("unmute")


def _expired(channels: ThrottledChannels, *times_ms: int) -> Iterator[int]:
    for now_ms in times_ms:
        channels.expire(now_ms)
        yield len(channels)


def test_a_connection_is_muted_until_the_last_of_its_throttle_times() -> None:
    channels, one = ThrottledChannels(), Channel()
    for deadline_ms in (100, 300, 300, 200):
        channels.add(one, deadline_ms)
    assert channels.deadlines.lowest == 300
    assert list(_expired(channels, 100, 299, 300, 301)) == [1, 1, 0, 0]
    assert one.calls == ["mute", "unmute"]
    channels.add(one, 400)
    assert one.calls == ["mute", "unmute", "mute"]


def test_a_lost_connection_is_not_kept() -> None:
    channels, one, lost = ThrottledChannels(), Channel(), Channel(is_open=False)
    channels.add(lost, 10**9)
    channels.add(one, 10**9)
    assert len(channels) == 1
    channels.remove(one)
    assert (len(channels), channels.deadlines.lowest) == (0, None)
    channels.expire(10**9)
    assert (one.calls, lost.calls) == (["mute"], ["mute"])


def test_many_connections_are_unmuted_in_several_turns() -> None:
    channels = ThrottledChannels()
    for _ in range(EXPIRED_PER_TURN_MAX + 1):
        channels.add(Channel(), 7)
    assert list(_expired(channels, 6, 7, 7)) == [EXPIRED_PER_TURN_MAX + 1, 1, 0]
