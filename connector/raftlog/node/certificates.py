"""Expiry of the certificates and revocation lists in a node's files.

The certificates are the node's own, those that it sends along, and its CAs. When a list has
expired, all connections are refused. Lists are published again every few hours or days, so their
warnings depend on how long they are valid.
"""

from __future__ import annotations

import asyncio
import base64
import calendar
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from .config import NodeConfig
from .der import TIMES, UTC_TIME, der_elements, revocation_lists
from .errors import ConfigError

DAY_S: Final = 86_400
WARNING_DAYS: Final = (30, 7, 1)
"""Days before the expiry of a certificate at which a node logs a warning."""
LIST_WARNING: Final = 0.25
"""A revocation list causes a warning for this last part of its validity, at most a day: by then the
next list should have been read."""
CHECK_S: Final = 3_600

_PEM: Final = re.compile(
    rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----(.*?)-----END (?:TRUSTED )?CERTIFICATE-----",
    re.DOTALL,
)
_NAMES: Final = {"certificate": "certificate", "ca": "CA certificate", "crl": "revocation list"}
_VERSION: Final = 0xA0
_CENTURY_FROM: Final = 50
"""First two-digit year of UTCTime that is in the 20th century (RFC 5280, section 4.1.2.5.1)."""


@dataclass(frozen=True, slots=True)
class CertificateExpiry:
    """Certificate or revocation list in a file.

    ``number``: its place in the file, from 1 on. ``kind``: the node's certificate
    (``certificate``), one that verifies others (``ca``), or a list (``crl``). ``warning_days``:
    days before the expiry with a warning.
    """

    listener: str
    kind: str
    path: str
    number: int
    not_after_s: int
    """Seconds since 1970."""
    warning_days: tuple[float, ...] = WARNING_DAYS

    @property
    def error_days(self) -> float:
        """Days before the expiry from which on a warning is logged as an error."""
        return self.warning_days[-1]

    @property
    def first_warning_days(self) -> float:
        """Days before the expiry from which on there are warnings."""
        return self.warning_days[0]

    def days_left(self, now_s: float) -> float:
        """Return the days until it expires; negative after the expiry."""
        return (self.not_after_s - now_s) / DAY_S

    def describe(self, now_s: float) -> str:
        """Return a text that describes the remaining time."""
        what = _NAMES[self.kind]
        days = self.days_left(now_s)
        when = f"expires in {days:.1f} days" if days > 0 else f"has expired {-days:.1f} days ago"
        return f"{what} {self.number} of {self.path} ({self.listener}) {when}"


def read_expiries(config: NodeConfig) -> tuple[CertificateExpiry, ...]:
    """Read the expiry of all certificates of a node's listeners. Raises ``ConfigError``."""
    found = []
    for listener in config.listeners:
        if listener.tls is not None:
            name, tls = str(listener.listener), listener.tls
            for kind, path in (("certificate", tls.certificate), ("ca", tls.ca)):
                found += [
                    CertificateExpiry(name, kind, path, number, not_after_s)
                    for number, not_after_s in enumerate(_expiries(path), start=1)
                ]
            if tls.crl is not None:
                found += _list_expiries(name, tls.crl)
    return tuple(found)


class ExpiryWarnings:
    """Warnings about certificates that expire soon. There is one for each of their ``warning_days``
    and one after the expiry, and new ones only for a certificate that replaces another."""

    def __init__(self) -> None:
        self._logged: dict[CertificateExpiry, int] = {}
        """Number of thresholds that were passed at the last warning."""

    def due(
        self, certificates: Iterable[CertificateExpiry], now_s: float
    ) -> list[CertificateExpiry]:
        """Return the certificates to warn about now."""
        logged, due = self._logged, []
        self._logged = {}
        for one in certificates:
            days = one.days_left(now_s)
            passed = sum(days <= limit for limit in (*one.warning_days, 0))
            if passed > logged.get(one, 0):
                due.append(one)
            self._logged[one] = max(passed, logged.get(one, 0))
        return due


class ExpiryWatch:
    """Warnings about a node's certificates, now and then every hour, on the running event loop.

    ``certificates`` returns the ones in use; ``log`` logs a line with its level.
    """

    def __init__(
        self,
        certificates: Callable[[], Iterable[CertificateExpiry]],
        wall_s: Callable[[], float],
        log: Callable[[str, str], None],
    ) -> None:
        self._certificates = certificates
        self._wall_s = wall_s
        self._log = log
        self._warnings = ExpiryWarnings()
        self._timer: asyncio.TimerHandle | None = None

    def check(self) -> None:
        """Log the warnings that are due, and check again in an hour."""
        self.close()
        now_s = self._wall_s()
        for one in self._warnings.due(self._certificates(), now_s):
            level = "error" if one.days_left(now_s) <= one.error_days else "warning"
            self._log(level, one.describe(now_s))
        self._timer = asyncio.get_running_loop().call_later(CHECK_S, self.check)

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()


def _expiries(path: str) -> Iterator[int]:
    try:
        with open(path, "rb") as file:
            for text in _PEM.findall(file.read()):
                yield _not_after_s(base64.b64decode(text))
    except (OSError, ValueError, IndexError):
        raise ConfigError(path=path, key=None, reason="a certificate cannot be read") from None


def _not_after_s(certificate: bytes) -> int:
    """Return the end of a certificate's validity (RFC 5280, 4.1)."""
    signed = der_elements(der_elements(der_elements(certificate)[0][1])[0][1])
    at = 1 if signed[0][0] == _VERSION else 0  # then serial number, algorithm, issuer, validity
    return _time_s(*der_elements(signed[at + 3][1])[1])


def _list_expiries(listener: str, path: str) -> Iterator[CertificateExpiry]:
    """Yield the expiry of each revocation list in a file, unless a list has none."""
    try:
        with open(path, "rb") as file:
            lists = revocation_lists(file.read())
        for number, elements in enumerate(lists, start=1):
            times = [_time_s(*one) for one in elements[1:3] if one[0] in TIMES]
            if len(times) > 1:
                valid_days = (times[1] - times[0]) / DAY_S
                warning_days = (min(1.0, valid_days * LIST_WARNING),)
                yield CertificateExpiry(listener, "crl", path, number, times[1], warning_days)
    except (OSError, ValueError, IndexError):
        raise ConfigError(path=path, key=None, reason="a revocation list cannot be read") from None


def _time_s(tag: int, text: bytes) -> int:
    """Return the seconds since 1970 of a UTCTime or GeneralizedTime."""
    digits = text.decode("ascii")
    if tag == UTC_TIME:
        digits = ("19" if int(digits[:2]) >= _CENTURY_FROM else "20") + digits
    return calendar.timegm(time.strptime(digits, "%Y%m%d%H%M%SZ"))
