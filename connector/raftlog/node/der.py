"""Certificates and revocation lists in DER: their elements, and distinguished names as text."""

from __future__ import annotations

import base64
import re
from typing import Final

UTC_TIME: Final = 0x17
TIMES: Final = (UTC_TIME, 0x18)
"""Tags of UTCTime and GeneralizedTime."""
_VERSION: Final = 0xA0
_INTEGER: Final = 0x02
_CRL: Final = re.compile(rb"-----BEGIN X509 CRL-----(.*?)-----END X509 CRL-----", re.DOTALL)


def der_elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return the tag and content of each element of a constructed value in DER."""
    found, at = [], 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            digits = length & 0x7F
            length, at = int.from_bytes(data[at : at + digits], "big"), at + digits
        found.append((tag, data[at : at + length]))
        at += length
    return found


def subject_of(certificate: bytes) -> bytes:
    """Return the subject of a certificate, both in DER (RFC 5280, 4.1), without its outer tag.

    Raises ``IndexError`` for other bytes.
    """
    signed = der_elements(der_elements(der_elements(certificate)[0][1])[0][1])
    at = 1 if signed[0][0] == _VERSION else 0
    return signed[at + 4][1]


def revocation_lists(data: bytes) -> list[list[tuple[int, bytes]]]:
    """Return the elements of each list in PEM format, from its issuer's name on. They are followed
    by the list's time, optionally the next list's time, and others (RFC 5280, section 5.1).

    Raises ``ValueError`` and ``IndexError`` for other bytes.
    """
    found = []
    for text in _CRL.findall(data):
        signed = der_elements(der_elements(der_elements(base64.b64decode(text))[0][1])[0][1])
        found.append(signed[2 if signed[0][0] == _INTEGER else 1 :])  # the version is optional
    return found


# --- Distinguished names as in Java (``X500Principal.getName``, RFC 2253) -------------------------

_KEYWORDS: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x07": "L",
    b"\x55\x04\x08": "ST",
    b"\x55\x04\x09": "STREET",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x19": "DC",
    b"\x09\x92\x26\x89\x93\xf2\x2c\x64\x01\x01": "UID",
}
"""Keywords of attribute types in RFC 2253, by their identifier in DER."""
_TEXT_TAGS: Final = frozenset((0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E))
"""UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString."""
_QUOTED: Final = ',=+<>#;"\\'
_BLANKS: Final = " \r"


def distinguished_name(name: bytes) -> str:
    """Return the text of a name in DER, without its outer tag; its last part is the first here.

    Attributes that have no keyword, or whose value is not text, are written as ``OID=#`` and the
    value in DER.
    """
    parts = [
        "+".join(_attribute(attribute) for _, attribute in der_elements(part))
        for _, part in der_elements(name)
    ]
    return ",".join(reversed(parts))


def _attribute(attribute: bytes) -> str:
    (_, kind), (tag, value) = der_elements(attribute)
    keyword = _KEYWORDS.get(kind)
    if keyword is None or tag not in _TEXT_TAGS:
        encoded = bytes((tag,)) + _length(len(value)) + value
        return f"{keyword or _dotted(kind)}=#{encoded.hex()}"
    return f"{keyword}={_quoted(value.decode('utf-8', 'replace'))}"


def _length(length: int) -> bytes:
    """Return the length of a value in DER (X.690, 10.1)."""
    if length < 0x80:
        return bytes((length,))
    digits = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((0x80 | len(digits),)) + digits


def _dotted(kind: bytes) -> str:
    """Return an object identifier as text (X.690, 8.19)."""
    numbers, number = [], 0
    for byte in kind:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _quoted(text: str) -> str:
    """Quote special characters, and blanks at both ends (Java: ``AVA.toRFC2253String``)."""
    quoted = "".join(
        f"\\{one}" if one in _QUOTED else "\\00" if one == "\0" else one for one in text
    )
    inner = quoted.strip(_BLANKS)
    if not inner:
        return "".join(f"\\{one}" for one in quoted)
    start = quoted.index(inner)
    before, after = quoted[:start], quoted[start + len(inner) :]
    return "".join(f"\\{one}" for one in before) + inner + "".join(f"\\{one}" for one in after)
