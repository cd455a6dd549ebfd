"""Security of a client's connections, with the options of Kafka's clients and of librdkafka.

``security.protocol`` selects plaintext or TLS, with or without SASL. Stores are PEM files, and
options contain their paths, because options are sent to other processes. The value of a SASL
option, or of ``ssl.key.password``, can contain references in the syntax of Kafka's config providers
(KIP-297): ``${env:NAME}``, ``${file:PATH:KEY}`` (a properties file) and ``${directory:PATH:NAME}``
(a file in a directory). Each process that connects resolves them at each authentication, so the
secret itself is in no option. Neither ``repr`` nor an error contains a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from raftlog.errors import OptionError, RaftlogError
from raftlog.limits import CREDENTIALS_BYTES_MAX
from raftlog.log.format.directory import parse_properties
from raftlog.types import SASL_MECHANISMS, SASL_OAUTHBEARER, SASL_PLAIN, SCRAM_HASHES

PROTOCOL: Final = "security.protocol"
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
USERNAME: Final = "sasl.username"
PASSWORD: Final = "sasl.password"
TOKEN: Final = "sasl.oauthbearer.token"
"""raftlog's own option: Kafka's clients have none for a token itself."""
ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID: Final = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET: Final = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE: Final = "sasl.oauthbearer.scope"
EXTENSIONS: Final = "sasl.oauthbearer.extensions"
ENDPOINT_CA: Final = "https.ca.location"
KEY_PASSWORD: Final = "ssl.key.password"
CHECK_HOST: Final = "ssl.endpoint.identification.algorithm"

_ALIASES: Final = {
    "sasl.mechanisms": MECHANISM,
    "sasl.oauthbearer.client.id": CLIENT_ID,
    "sasl.oauthbearer.client.secret": CLIENT_SECRET,
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Names of librdkafka or Kafka, and the names used here."""
_CA: Final = "ssl.ca.location"
_CA_PEM: Final = "ssl.ca.pem"
CRL: Final = "ssl.crl.location"
"""librdkafka's option: Kafka's clients use Java system properties instead."""
_CERTIFICATE: Final = "ssl.certificate.location"
_KEY: Final = "ssl.key.location"
_STORES: Final = {"ssl.truststore": _CA, "ssl.keystore": _CERTIFICATE}
_IN_MEMORY: Final = (
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.key.pem",
    "ssl.certificate.pem",
)
_TLS_NAMES: Final = (
    *(_CA, _CA_PEM, CRL, _CERTIFICATE, _KEY, KEY_PASSWORD, CHECK_HOST),
    *(f"{store}.{part}" for store in _STORES for part in ("type", "location", "password")),
    *_IN_MEMORY,
)
_OAUTH_NAMES: Final = (TOKEN, ENDPOINT, CLIENT_ID, CLIENT_SECRET, SCOPE, EXTENSIONS, ENDPOINT_CA)
_SASL_NAMES: Final = (MECHANISM, JAAS, USERNAME, PASSWORD, *_OAUTH_NAMES)
SECURITY_OPTIONS: Final = (PROTOCOL, *_TLS_NAMES, *_SASL_NAMES, *_ALIASES)
SECRET_OPTIONS: Final = frozenset(
    (
        *(KEY_PASSWORD, JAAS, PASSWORD, TOKEN, CLIENT_SECRET, "sasl.oauthbearer.client.secret"),
        *_IN_MEMORY,
        *(f"{store}.password" for store in _STORES),
    )
)
"""Options whose values are secrets, unless they are references."""
_PROTOCOLS: Final = {
    "PLAINTEXT": (False, False),
    "SSL": (True, False),
    "SASL_PLAINTEXT": (False, True),
    "SASL_SSL": (True, True),
}
"""Name of a protocol, and whether it has TLS and SASL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS of connections.

    Nodes' certificates are verified with ``ca``, a PEM file, or ``ca_pem``, its content, or else
    with the system's CAs. ``crl`` is a PEM file with their issuers' revocation lists, as in
    librdkafka; None: revoked certificates are accepted. ``certificate`` (with its chain) and
    ``key`` are this client's, if the nodes require a client certificate.

    ``check_host``: whether a node's certificate must name the host that is connected to.
    """

    ca: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    crl: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_host: bool = True

    def __post_init__(self) -> None:
        if self.certificate is None and (self.key or self.key_password):
            raise OptionError(option=_CERTIFICATE, reason=f"it is required with {_KEY}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslOptions:
    """SASL of connections. Values may contain references; ``jaas`` is set if it is one itself."""

    mechanism: str
    jaas: str | None = field(default=None, repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    token_endpoint: str | None = field(default=None, repr=False)
    client_id: str | None = field(default=None, repr=False)
    client_secret: str | None = field(default=None, repr=False)
    scope: str | None = None
    extensions: tuple[tuple[str, str], ...] = ()
    endpoint_ca: str | None = None
    get_token: Callable[[], str] | None = field(default=None, repr=False)

    def resolved(self) -> SaslOptions:
        """Return the options with their references resolved. Raises ``OptionError``."""
        options = self
        if options.jaas is not None:
            options = _with_jaas(options, resolve_references(JAAS, options.jaas))
        changes: dict[str, Any] = {
            attribute: resolve_references(name, getattr(options, attribute))
            for name, attribute in _FIELDS.items()
            if getattr(options, attribute) is not None
        }
        return replace(options, **changes)

    def check(self) -> None:
        """Raise ``OptionError`` unless the mechanism has what it requires, and nothing else."""
        if self.jaas is not None:
            return
        if self.mechanism != SASL_OAUTHBEARER:
            for name in (USERNAME, PASSWORD):
                if not getattr(self, _FIELDS[name]):
                    reason = f"it is required with {MECHANISM}={self.mechanism}"
                    raise OptionError(option=name, reason=reason)
        _check_token_source(self)


_FIELDS: Final = {
    USERNAME: "username",
    PASSWORD: "password",
    TOKEN: "token",
    ENDPOINT: "token_endpoint",
    CLIENT_ID: "client_id",
    CLIENT_SECRET: "client_secret",
    SCOPE: "scope",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """TLS and SASL of a client's connections; each is None if it is not used."""

    tls: TlsOptions | None = None
    sasl: SaslOptions | None = None


PLAINTEXT: Final = ClientSecurity()


# --- Parsing --------------------------------------------------------------------------------------


def parse_security(
    config: Mapping[str, str], *, get_token: Callable[[], str] | None = None
) -> ClientSecurity:
    """Return the security that is selected by options in lower case, without ``kafka.``.

    ``get_token`` returns a token for OAUTHBEARER. Other options are ignored. Raises
    ``OptionError``.
    """
    given = _without_aliases(config)
    _checks_host(given.get(CHECK_HOST))
    has_tls, has_sasl = _protocol(given, has_token=get_token is not None)
    tls = _tls(given) if has_tls else None
    found = _sasl(given, get_token) if has_sasl else None
    return ClientSecurity(tls=tls, sasl=found)


def _without_aliases(config: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in config.items():
        if name not in SECURITY_OPTIONS:
            continue
        known = _ALIASES.get(name, name)
        if given.setdefault(known, value) != value:
            raise OptionError(option=name, reason=f"it is another name of {known}, also set")
    return given


def _protocol(given: Mapping[str, str], *, has_token: bool) -> tuple[bool, bool]:
    tls = next((name for name in _TLS_NAMES if name in given and name != CHECK_HOST), None)
    of_sasl = next((name for name in _SASL_NAMES if name in given), TOKEN if has_token else None)
    named = given.get(PROTOCOL, "").strip().upper()
    if not named and of_sasl is not None:
        reason = f"it is required with {of_sasl}: SASL_SSL, or SASL_PLAINTEXT for SASL without TLS"
        raise OptionError(option=PROTOCOL, reason=reason)
    if not named:
        has_ca = not given.keys().isdisjoint((_CA, _CA_PEM, "ssl.truststore.location"))
        if tls is not None and not has_ca:
            reason = f"it is required with {tls}: only verified nodes get a client certificate"
            raise OptionError(option=_CA, reason=reason)
        return has_ca, False
    if named not in _PROTOCOLS:
        raise OptionError(option=PROTOCOL, reason=f"must be one of {', '.join(_PROTOCOLS)}")
    has_tls, has_sasl = _PROTOCOLS[named]
    for name, is_allowed in ((tls, has_tls), (of_sasl, has_sasl)):
        if name is not None and not is_allowed:
            reason = f"it has no effect with {PROTOCOL}={named}: remove it, or change the protocol"
            raise OptionError(option=name, reason=reason)
    return has_tls, has_sasl


def _tls(given: Mapping[str, str]) -> TlsOptions:
    for name in _IN_MEMORY:
        if name in given:
            reason = f"keys are read from files: write it to a file, and set {_CERTIFICATE}"
            raise OptionError(option=name, reason=reason)
    files = {name: given[name] for name in (_CA, CRL, _CERTIFICATE, _KEY) if name in given}
    for store, name in _STORES.items():
        path = _store(given, store)
        if path is not None and files.setdefault(name, path) != path:
            raise OptionError(option=f"{store}.location", reason=f"excludes {name}")
    if _CA in files and _CA_PEM in given:
        raise OptionError(option=_CA_PEM, reason=f"excludes {_CA}")
    path_of = {name: os.path.abspath(path) for name, path in files.items()}
    return TlsOptions(
        ca=path_of.get(_CA),
        ca_pem=given.get(_CA_PEM),
        crl=path_of.get(CRL),
        certificate=path_of.get(_CERTIFICATE),
        key=path_of.get(_KEY),
        key_password=given.get(KEY_PASSWORD),
        check_host=_checks_host(given.get(CHECK_HOST)),
    )


def _store(given: Mapping[str, str], store: str) -> str | None:
    """Return the path of a store of Kafka's clients, which must be a PEM file."""
    path, kind = given.get(f"{store}.location"), given.get(f"{store}.type", "JKS")
    if path is not None and kind.strip().upper() != "PEM":
        reason = f"it must be a PEM file with {store}.type=PEM: export the Java key store as PEM"
        raise OptionError(option=f"{store}.location", reason=reason)
    if path is not None and f"{store}.password" in given:
        raise OptionError(
            option=f"{store}.password", reason=f"PEM files have none; a key has {KEY_PASSWORD}"
        )
    return path


def _checks_host(algorithm: str | None) -> bool:
    match (algorithm or "https").strip().lower():
        case "https":
            return True
        case "none":
            return False
        case _:
            raise OptionError(option=CHECK_HOST, reason="must be https or none")


def _sasl(given: Mapping[str, str], get_token: Callable[[], str] | None) -> SaslOptions:
    mechanism = given.get(MECHANISM, "").strip().upper()
    if mechanism not in SASL_MECHANISMS:
        reason = f"must be one of {', '.join(SASL_MECHANISMS)}"
        raise OptionError(option=MECHANISM, reason=reason)
    ca = given.get(ENDPOINT_CA)
    options = SaslOptions(
        mechanism=mechanism,
        extensions=_extensions(given.get(EXTENSIONS, "")),
        endpoint_ca=None if ca is None else os.path.abspath(ca),
        get_token=get_token,
        **{attribute: given[name] for name, attribute in _FIELDS.items() if name in given},
    )
    jaas = given.get(JAAS)
    if jaas is not None:
        is_reference = _REFERENCE.fullmatch(jaas.strip()) is not None
        options = replace(options, jaas=jaas) if is_reference else _with_jaas(options, jaas)
    options.check()
    return options


def _check_token_source(options: SaslOptions) -> None:
    sources = {
        TOKEN: options.token,
        ENDPOINT: options.token_endpoint,
        "oauth_token": options.get_token,
    }
    found = [name for name, value in sources.items() if value is not None]
    if options.mechanism != SASL_OAUTHBEARER:
        if found:
            reason = f"it is for {MECHANISM}={SASL_OAUTHBEARER}"
            raise OptionError(option=found[0], reason=reason)
        return
    if len(found) != 1:
        reason = "give one of " + ", ".join(sources)
        raise OptionError(option=ENDPOINT, reason=reason)
    url = options.token_endpoint
    if url is None or url.lower().startswith("file:"):
        return
    if not url.lower().startswith("https://"):
        reason = "must be a URL of https, or of a file with the token (file:///path)"
        raise OptionError(option=ENDPOINT, reason=reason)
    for name in (CLIENT_ID, CLIENT_SECRET):
        if not getattr(options, _FIELDS[name]):
            raise OptionError(option=name, reason=f"it is required with {ENDPOINT}")


def _extensions(text: str) -> tuple[tuple[str, str], ...]:
    pairs = [part.partition("=") for part in text.split(",") if part.strip()]
    found = tuple((name.strip(), value.strip()) for name, _, value in pairs)
    for name, value in found:
        _check_extension(EXTENSIONS, name, value)
    return found


def _check_extension(option: str, name: str, value: str) -> None:
    """Raise ``OptionError`` unless a pair is allowed in the first message (RFC 7628, 3.1)."""
    is_valid = name.isascii() and name.isalpha() and name != "auth" and "\1" not in value
    if not is_valid:
        raise OptionError(option=option, reason="must have pairs such as name=value,other=value")


# --- sasl.jaas.config -----------------------------------------------------------------------------

_LOGIN: Final = "org.apache.kafka.common.security."
_MODULES: Final = {
    f"{_LOGIN}plain.PlainLoginModule": (SASL_PLAIN,),
    f"{_LOGIN}scram.ScramLoginModule": tuple(SCRAM_HASHES),
    f"{_LOGIN}oauthbearer.OAuthBearerLoginModule": (SASL_OAUTHBEARER,),
}
_SHADED: Final = "kafkashaded."
"""Prefix of class names in the Databricks runtime."""
_JAAS_FIELDS: Final = {
    "username": USERNAME,
    "password": PASSWORD,
    "clientId": CLIENT_ID,
    "clientSecret": CLIENT_SECRET,
    "scope": SCOPE,
}
_JAAS_HEAD: Final = re.compile(r"\s*([\w.]+)\s+(required|requisite|sufficient|optional)\b", re.I)
_JAAS_PAIR: Final = re.compile(
    r"""\s*([\w.]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|'((?:\\.|[^'\\])*)'|([^\s;"']+))""", re.DOTALL
)


def _with_jaas(options: SaslOptions, text: str) -> SaslOptions:
    """Return the options with those of a Kafka login module added. Raises ``OptionError``."""
    head = _JAAS_HEAD.match(text)
    module = "" if head is None else head[1].removeprefix(_SHADED)
    if head is None or module not in _MODULES:
        names = ", ".join(_MODULES)
        reason = f'must be: MODULE required name="value" ...; modules are {names}'
        raise OptionError(option=JAAS, reason=reason)
    if options.mechanism not in _MODULES[module]:
        reason = f"its login module is not that of {MECHANISM}={options.mechanism}"
        raise OptionError(option=JAAS, reason=reason)
    changes: dict[str, Any] = {"jaas": None}
    extensions = list(options.extensions)
    for name, value in _jaas_pairs(text[head.end() :]):
        if name.startswith("extension_"):
            _check_extension(JAAS, name.removeprefix("extension_"), value)
            extensions.append((name.removeprefix("extension_"), value))
            continue
        if name not in _JAAS_FIELDS:
            known = ", ".join((*_JAAS_FIELDS, "extension_NAME"))
            reason = f"option {name} of the login module is not supported; supported are {known}"
            raise OptionError(option=JAAS, reason=reason)
        attribute = _FIELDS[_JAAS_FIELDS[name]]
        if getattr(options, attribute) is not None or attribute in changes:
            raise OptionError(option=JAAS, reason=f"it has {name}, which is also set elsewhere")
        changes[attribute] = value
    found = replace(options, extensions=tuple(extensions), **changes)
    found.check()
    return found


def _jaas_pairs(text: str) -> list[tuple[str, str]]:
    pairs, at = [], 0
    while match := _JAAS_PAIR.match(text, at):
        quoted = match[2] if match[2] is not None else match[3]
        value = match[4] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        pairs.append((match[1], value))
        at = match.end()
    if text[at:].strip() != ";":
        raise OptionError(
            option=JAAS, reason='must have pairs such as name="value", then one semicolon'
        )
    return pairs


# --- References -----------------------------------------------------------------------------------

_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_REFERENCE: Final = re.compile(r"\$\{(env|file|directory):([^}]*)\}")


def is_reference(value: str) -> bool:
    """Return whether a value refers to secrets rather than containing one."""
    return _REFERENCE.search(value) is not None


def resolve_references(option: str, value: str) -> str:
    """Return a value with its references replaced. Raises ``OptionError`` if one has no value."""

    def replaced(match: re.Match[str]) -> str:
        provider, what = match[1], match[2]
        if provider == "env":
            return _variable(option, what)
        path, _, name = what.rpartition(":")
        if not path or not name:
            reason = f"a reference must be ${{{provider}:PATH:NAME}}"
            raise OptionError(option=option, reason=reason)
        if provider == "directory":
            return read_secret(option, os.path.join(path, os.path.basename(name)))
        return _property(option, path, name)

    return _REFERENCE.sub(replaced, value)


def _variable(option: str, name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        reason = f"environment variable {name[:80]} is not set in this process"
        raise OptionError(option=option, reason=reason)
    return value


def _property(option: str, path: str, name: str) -> str:
    found = dict(read_properties(option, path))
    if name not in found:
        raise OptionError(option=option, reason=f"{path} has no property {name[:80]}")
    return found[name]


def read_secret(option: str, path: str) -> str:
    """Return the text of a file without a newline at its end. Raises ``OptionError``."""
    try:
        return _read(option, path).decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise OptionError(option=option, reason=f"{path} is not text in UTF-8") from None


def read_properties(option: str, path: str) -> list[tuple[str, str]]:
    """Return the pairs in a UTF-8 properties file. Raises ``OptionError``."""
    data = _read(option, path)
    try:  # the parser expects ISO 8859-1, the encoding of Kafka's own files
        text = _NOT_ASCII.sub(_escape, data.decode("utf-8"))
        return list(parse_properties(text.encode("ascii"), path))
    except (RaftlogError, UnicodeError):
        reason = f"{path} is not a properties file in UTF-8"
        raise OptionError(option=option, reason=reason) from None


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _read(option: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(CREDENTIALS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or type(error).__name__
        reason = f"{path} cannot be read: {text}"
        raise OptionError(option=option, reason=reason) from None
    if len(data) > CREDENTIALS_BYTES_MAX:
        raise OptionError(option=option, reason=f"{path} is larger than a file of secrets")
    return data
