"""Event loop of a node: sockets of peers without any right are served after all others.

An iteration serves at most one of them, and only if no other socket is ready and no callback waits.
If there is always other work, one is served after a pause: ``SHARE`` times the length of the
iteration that served the last one, including the other work in it, and at most ``_PAUSE_S_MAX``. So
a flood of handshakes and refusals delays a client by at most one of their steps, and a new
connection can still be established on a busy node.

Groups of sockets take turns. So do the addresses in a group, and the sockets of an address. A
listener has three groups (``server``): itself, with the connections that wait to be accepted; the
peers of known addresses; and all other peers. So clients do not keep voters out, one address does
not keep others out, and no number of addresses keeps out those that had a connection with a right.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
SHARE: Final = 4
"""Pause after an iteration with such a socket, as a multiple of the iteration's time."""
_PAUSE_S_MAX: Final = 0.01
NO_DESCRIPTOR: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class RestrictedSocket:
    """Socket of an address in a group, whose events are returned after those of other sockets.

    asyncio closes a TLS connection's socket before it notifies the protocol. In between, the next
    accepted socket may get the same descriptor.
    """

    descriptor: int
    group: Hashable
    address: str | None


class PrivilegedFirstSelector(selectors.DefaultSelector):
    """Selector that returns at most one restricted socket at a time, after all others."""

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        super().__init__()
        self._now_s = now_s
        self._restricted: dict[int, RestrictedSocket] = {}
        """By descriptor."""
        self._orders: dict[Hashable, dict[str | None, dict[int, None]]] = {}
        """Descriptors by group and address; at each level, the last returned one is at the end."""
        self.last_descriptor = NO_DESCRIPTOR
        """Descriptor of the last event that the last call returned."""
        self._began_s: float | None = None
        """When the last restricted socket was returned; cleared by the next call."""
        self._due_s = 0.0
        self.call_count = 0
        """Number of calls; asyncio calls it once per iteration."""

    def restrict(
        self, descriptor: int, group: Hashable, address: str | None = None
    ) -> RestrictedSocket:
        """Return a socket's events after those of all unrestricted sockets."""
        before = self._restricted.get(descriptor)
        if before is not None:
            self.release(before)
        found = self._restricted[descriptor] = RestrictedSocket(descriptor, group, address)
        addresses = self._orders.setdefault(group, {})
        addresses.setdefault(address, {})[descriptor] = None
        return found

    def release(self, restricted: RestrictedSocket) -> None:
        """Return a socket's events immediately, unless another socket has its descriptor."""
        descriptor, group, address = restricted.descriptor, restricted.group, restricted.address
        if self._restricted.get(descriptor) is restricted:
            addresses = self._orders[group]
            del self._restricted[descriptor], addresses[address][descriptor]
            if not addresses[address]:
                del addresses[address]
            if not addresses:
                del self._orders[group]

    @property
    def restricted_count(self) -> int:
        return len(self._restricted)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.call_count += 1
        if self._began_s is not None:
            now_s = self._now_s()
            self._due_s = now_s + min(SHARE * (now_s - self._began_s), _PAUSE_S_MAX)
            self._began_s = None
        found = super().select(timeout)
        self.last_descriptor = last = found[-1][0].fd if found else NO_DESCRIPTOR
        if not self._restricted or (len(found) == 1 and last not in self._restricted):
            return found
        privileged = [one for one in found if one[0].fd not in self._restricted]
        if len(privileged) == len(found):
            return found
        now_s = self._now_s()
        has_other_work = bool(privileged) or timeout == 0  # asyncio's, while callbacks wait
        if not has_other_work or now_s >= self._due_s:
            privileged.append(self._take_one({one[0].fd: one for one in found}))
            self._began_s = now_s
        self.last_descriptor = privileged[-1][0].fd if privileged else NO_DESCRIPTOR
        return privileged

    def _take_one(
        self, found: dict[int, tuple[selectors.SelectorKey, int]]
    ) -> tuple[selectors.SelectorKey, int]:
        """Return the restricted socket whose group, address in the group, and descriptor were
        returned the longest time ago."""
        for group, addresses in self._orders.items():
            for address, order in addresses.items():
                for descriptor in order:
                    if descriptor in found:
                        _move_to_end(order, descriptor)
                        _move_to_end(addresses, address)
                        _move_to_end(self._orders, group)
                        return found[descriptor]
        raise AssertionError("one of them is restricted")


def _move_to_end(items: dict[K, V], key: K) -> None:
    items[key] = items.pop(key)


class NodeEventLoop(asyncio.SelectorEventLoop):
    """Event loop with restricted sockets, which are served only in time that others leave."""

    time = staticmethod(time.monotonic)
    """Like asyncio's, which calls it within a method."""

    def __init__(self) -> None:
        self._privileged_first: Final = PrivilegedFirstSelector()
        super().__init__(self._privileged_first)

    def restrict(
        self, descriptor: int, group: Hashable, address: str | None = None
    ) -> RestrictedSocket:
        """Serve a socket after all others. The members of a group are treated equally."""
        return self._privileged_first.restrict(descriptor, group, address)

    @property
    def restricted_count(self) -> int:
        """Return the number of restricted sockets."""
        return self._privileged_first.restricted_count

    def iteration(self) -> int:
        """Return the number of the current iteration."""
        return self._privileged_first.call_count

    @property
    def last_descriptor(self) -> int:
        """Return the descriptor of the last socket that is served in this iteration."""
        return self._privileged_first.last_descriptor

    def release(self, restricted: RestrictedSocket) -> None:
        """Serve a socket like any other again."""
        self._privileged_first.release(restricted)
