"""Certificates for tests: a CA and the certificates it signs, as PEM files in a directory.

Validity does not depend on the clock: valid certificates from 2000 to 2100, the expired one until
2001.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
_LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class KeyPair:
    """Paths of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """CA with its files in a directory."""

    def __init__(self, directory: Path, name: str = "test CA") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), _UNTIL)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_signing_only(), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        path = directory / "ca.pem"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.path = str(path)

    def revoke(
        self,
        *pairs: KeyPair,
        has_expired: bool = False,
        number: int = 1,
        valid: tuple[datetime.datetime, datetime.datetime] | None = None,
    ) -> str:
        """Write a revocation list of these certificates, which is ``valid`` between two times;
        return its path."""
        begin, end = valid or (_FROM, _LONG_AGO if has_expired else _UNTIL)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._name)
            .last_update(begin)
            .next_update(end)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for pair in pairs:
            revoked = x509.RevokedCertificateBuilder().serial_number(serial_number(pair))
            builder = builder.add_revoked_certificate(revoked.revocation_date(_FROM).build())
        path = self._directory / "crl.pem"
        signed = builder.sign(self._key, hashes.SHA256())
        path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        return str(path)

    def sign(
        self,
        common_name: str | None,
        *,
        dns: Sequence[str] = (),
        has_expired: bool = False,
        password: bytes | None = None,
        file_name: str | None = None,
        until: datetime.datetime | None = None,
    ) -> KeyPair:
        """Sign a certificate that is valid ``until`` a time; write it and its key to ``file_name``
        (default: the name)."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [common_name] if common_name is not None else []
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in names])
        builder = _builder(
            subject, self._name, key.public_key(), until or (_LONG_AGO if has_expired else _UNTIL)
        )
        alternatives: list[x509.GeneralName] = [x509.DNSName(one) for one in dns]
        alternatives.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            critical=False,
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        stem = file_name or (common_name or "unnamed").replace("/", "_")
        certificate_path = self._directory / f"{stem}.pem"
        key_path = self._directory / f"{stem}.key"
        certificate_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password)
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )
        os.chmod(key_path, 0o600)
        return KeyPair(str(certificate_path), str(key_path))


def serial_number(pair: KeyPair) -> int:
    """Return the serial number of a certificate."""
    with open(pair.certificate, "rb") as file:
        return x509.load_pem_x509_certificate(file.read()).serial_number


def _signing_only() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(until)
    )
