"""Hosts of ACLs: an address, ``*``, or, since Kafka 4.4, a range of addresses in CIDR notation.

If a range's address has bits after the prefix, as in ``10.0.0.7/8``, only the prefix counts. An
address of one IP version is in no range of the other version. Everything that Kafka's parsers
accept is accepted here, because otherwise a DENY would have no effect: leading zeros, IPv6 brackets
and zones, and a length with a sign. (Kafka rejects zones that its own machine does not have.)

Source: Kafka 4.4 ``CidrUtils``, ``StandardAuthorizerData``.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

WILDCARD: Final = "*"
_IPV4_RANGE: Final = re.compile(
    r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})", re.ASCII
)
_LENGTH: Final = re.compile(r"[+-]?\d+")
_LEADING_ZEROS: Final = re.compile(r"(?<![0-9A-Fa-f])0+(?=[0-9A-Fa-f])")
_EMBEDDED_IPV4_MAX: Final = 15
"""Length of the text of an IPv4 address at the end of an IPv6 address."""
_BITS: Final = {4: 32, 6: 128}


def is_range(host: str) -> bool:
    """Return whether the host of an ACL is meant as a range, which may be invalid."""
    return "/" in host


def invalid_range_reason(host: str) -> str | None:
    """Return why a range is invalid, or None if it is valid."""
    try:
        _parsed(host)
    except ValueError as error:
        return f"Invalid CIDR notation '{host}': {error}"
    return None


class AclHosts:
    """Hosts of ACLs, by the prefix lengths of their ranges.

    A client's address is in a range if its own prefix of the same length equals the range's. The
    time of a search therefore depends on the number of lengths in use, not on the number of ranges.
    """

    def __init__(self) -> None:
        self._lengths: dict[int, Counter[int]] = {4: Counter(), 6: Counter()}
        """Number of ranges by IP version and prefix length."""

    def add(self, host: str) -> str:
        """Add the host of an ACL; return the text by which ``texts_of`` finds it."""
        found = _range(host)
        if found is None:
            return _other_text(host)
        self._lengths[found[0]][found[1]] += 1
        return _text(*found)

    def remove(self, host: str) -> str:
        """Remove the host of an ACL; return its text."""
        found = _range(host)
        if found is None:
            return _other_text(host)
        lengths = self._lengths[found[0]]
        lengths[found[1]] -= 1
        if not lengths[found[1]]:
            del lengths[found[1]]
        return _text(*found)

    def texts_of(self, address: str) -> Iterator[str]:
        """Yield the texts of hosts that match a client's address: itself, ``*`` and ranges.

        The address is the text of ``InetAddress``.
        """
        yield address
        yield WILDCARD
        if not any(self._lengths.values()):
            return
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return
        for length in self._lengths[found.version]:
            yield _text(found.version, length, int(found))


def _range(host: str) -> tuple[int, int, int] | None:
    """Return a valid range's IP version, prefix length and address; None for other hosts."""
    try:
        return _parsed(host) if is_range(host) else None
    except ValueError:
        return None


def _parsed(host: str) -> tuple[int, int, int]:
    if ":" not in host:
        match = _IPV4_RANGE.fullmatch(host)
        numbers = [] if match is None else [int(one) for one in match.groups()]
        if not numbers or max(numbers[:4]) > 255:
            raise ValueError("it is not an IPv4 address, / and the length of a prefix")
        address, length = int.from_bytes(numbers[:4], "big"), numbers[4]
        version = 4
    else:
        text, _, suffix = host.partition("/")
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        text, percent, zone = text.partition("%")
        last = text.rpartition(":")[2]
        found = ipaddress.IPv6Address(_LEADING_ZEROS.sub("", text) + percent + zone)
        is_too_long = "." in last and len(last) > _EMBEDDED_IPV4_MAX
        if is_too_long or found.ipv4_mapped is not None or _LENGTH.fullmatch(suffix) is None:
            raise ValueError("it is not an IPv6 address, / and the length of a prefix")
        address, length = int(found), int(suffix)
        version = 6
    if not 0 <= length <= _BITS[version]:
        raise ValueError(f"the length of the prefix is not from 0 to {_BITS[version]}")
    return version, length, address


def _other_text(host: str) -> str:
    """Return the text of a host that is not a valid range.

    No client matches an invalid range, whose text might otherwise equal that of a valid one.
    """
    return f"/{host}" if is_range(host) else host


def _text(version: int, length: int, address: int) -> str:
    free_bits = _BITS[version] - length
    return f"{version}:{address >> free_bits << free_bits:x}/{length}"
