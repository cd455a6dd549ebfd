"""Argument parser of a command, with the options that several commands share.

Options cannot be abbreviated: ``--rev`` must not reveal a secret by accident. Positional arguments
and options may be in any order. An unknown option is answered with the most similar one.
"""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from raftlog.errors import OptionError
from raftlog.limits import DECOMPRESSED_BYTES_MAX, DECOMPRESSED_BYTES_OPTION_MAX

if TYPE_CHECKING:
    from raftlog.client import LogKind
    from raftlog_state.records import Redactor

REDACT_KEY_VARIABLE: Final = "RAFTLOG_REDACT_KEY"
_OFFSET_MAX: Final = 2**63 - 1
_KEY_BYTES_MAX: Final = 4096
NODES_TIMEOUT_MS: Final = 30_000


class WrongCallError(Exception):
    """The command line is invalid. ``main`` prints it as argparse would, and exits with code 2."""

    def __init__(self, program: str, usage: str, reason: str) -> None:
        super().__init__(reason)
        self.program = program
        self.usage = usage
        self.reason = reason


class Parser(argparse.ArgumentParser):
    """Parser of one command's arguments. ``--help`` is handled by ``main``."""

    def __init__(
        self,
        command: str,
        about: str,
        examples: str,
        *,
        takes_path: bool = True,
        takes_nodes: bool = False,
    ) -> None:
        """``takes_nodes``: ``--bootstrap-server`` is accepted in place of PATH, see ``source``."""
        examples = textwrap.indent(textwrap.dedent(examples).strip(), "  ")
        super().__init__(
            prog=f"raftlog {command}",
            description=textwrap.dedent(about).strip(),
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False,
            allow_abbrev=False,
        )
        if takes_path:
            self.add_argument(
                "path",
                metavar="PATH",
                nargs="?" if takes_nodes else None,
                help="directory or file to read, see `raftlog --help`",
            )
        if takes_nodes:
            self.add_nodes(is_required=not takes_path)

    def add_nodes(self, *, is_required: bool) -> None:
        """Add the options of every command that connects to nodes."""
        nodes = self.add_argument_group("nodes" if is_required else "nodes, instead of PATH")
        nodes.add_argument(
            "--bootstrap-server",
            metavar="HOST:PORT,...",
            required=is_required,
            help="one or more nodes of a raftlog quorum"
            if is_required
            else "one or more controllers of a running Kafka cluster, or nodes of a raftlog quorum",
        )
        nodes.add_argument(
            "--tls-ca",
            metavar="FILE",
            help="PEM file of the CA that signed the nodes' certificates",
        )
        nodes.add_argument(
            "--tls-certificate", metavar="FILE", help="PEM file of this client's certificate"
        )
        nodes.add_argument(
            "--tls-key", metavar="FILE", help="PEM file of the private key of --tls-certificate"
        )
        nodes.add_argument(
            "--timeout-ms",
            metavar="MS",
            type=int,
            help="how long to retry a request until the leader answers, in milliseconds; default: "
            f"{NODES_TIMEOUT_MS}",
        )

    def add_redaction(self) -> None:
        """Add the options of every command that prints values."""
        self.add_argument("--reveal", action="store_true", help="print secrets in clear text")
        self.add_argument(
            "--redact-key-file",
            metavar="FILE",
            help="print a keyed hash instead of each secret, so that changes are visible; FILE "
            f"contains the key (or set the environment variable {REDACT_KEY_VARIABLE})",
        )

    def add_kind(self) -> None:
        """Add ``--as``, for every command that reads metadata logs and partitions."""
        self.add_argument(
            "--as",
            dest="record_kind",
            choices=("metadata", "partition"),
            help="the kind of records in PATH, if it cannot be detected from its files: metadata "
            "records, whose secrets are redacted, or those of a partition, printed unchanged",
        )

    def add_decompression_limit(self) -> None:
        """Add ``--max-decompressed-bytes``, for every command that decodes records."""
        self.add_argument(
            "--max-decompressed-bytes",
            metavar="BYTES",
            type=_decompressed_bytes,
            default=DECOMPRESSED_BYTES_MAX,
            help="fail on a record batch that decompresses to more bytes than this; default: "
            f"{DECOMPRESSED_BYTES_MAX}, at most {DECOMPRESSED_BYTES_OPTION_MAX}",
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments. Raises ``WrongCallError``."""
        found, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name = unknown[0].partition("=")[0]
            if not name.startswith("-"):
                self.error(f"unexpected argument {name!r}")
            options = [text for action in self._actions for text in action.option_strings]
            hint = nearest(name, options) or "`--help` lists the options"
            self.error(f"unknown option {name!r}; {hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """Raise ``WrongCallError`` instead of exiting the process."""
        raise WrongCallError(self.prog, self.format_usage(), message)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return ``did you mean ...?`` for the most similar name, None if none is similar."""
    import difflib

    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def offset(text: str) -> int:
    """Parse an offset, an integer in [0, 2**63 - 1]."""
    # Not int() alone: it accepts signs, spaces, underscores and digits of other scripts.
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > _OFFSET_MAX or len(text) > 20:
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset (0, 1, 2, ...)")
    return int(text)


def _decompressed_bytes(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(DECOMPRESSED_BYTES_OPTION_MAX)):
        byte_count = int(text)
        if 1 <= byte_count <= DECOMPRESSED_BYTES_OPTION_MAX:
            return byte_count
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a number of bytes from 1 to {DECOMPRESSED_BYTES_OPTION_MAX}"
    )


def kind_of(arguments: argparse.Namespace) -> LogKind | None:
    """Return the kind that ``--as`` declares, None without it."""
    from raftlog.client import LogKind

    name: str | None = getattr(arguments, "record_kind", None)
    return None if name is None else LogKind(name)


def redactor(arguments: argparse.Namespace) -> Redactor:
    """Return the redactor that ``add_redaction``'s options configure. Raises ``OptionError``."""
    from raftlog_state.records import Redactor

    return Redactor(key=_redact_key(arguments.redact_key_file), reveal=arguments.reveal)


def _redact_key(file_name: str | None) -> bytes | None:
    """Return the key for keyed hashes, None if no key is configured."""
    if file_name is None:
        text = os.environ.get(REDACT_KEY_VARIABLE)
        return os.fsencode(text) if text else None
    try:
        with open(file_name, "rb") as file:
            key = file.read(_KEY_BYTES_MAX + 2).removesuffix(b"\n").removesuffix(b"\r")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise OptionError(option="--redact-key-file", reason=reason.lower()) from None
    if len(key) > _KEY_BYTES_MAX:
        reason = f"the key file is larger than {_KEY_BYTES_MAX} bytes"
        raise OptionError(option="--redact-key-file", reason=reason)
    return key
