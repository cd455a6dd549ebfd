"""The argument parser of a command: argparse that names the nearest option for a wrong one.

Rules of this file:

1. Options are never abbreviated: ``--rev`` must not reveal a secret by accident.
2. Positionals and options may come in any order.
3. A wrong call is a ``WrongCallError``, which ``main`` prints as argparse would, with exit code 2.
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
    """The command line does not make sense. Never leaves ``main``."""

    def __init__(self, program: str, usage: str, reason: str) -> None:
        super().__init__(reason)
        self.program = program
        self.usage = usage
        self.reason = reason


class Parser(argparse.ArgumentParser):
    """What one command takes. ``--help`` is ``main``'s: it knows where to print."""

    def __init__(
        self,
        command: str,
        about: str,
        examples: str,
        *,
        takes_path: bool = True,
        takes_nodes: bool = False,
    ) -> None:
        """``takes_nodes``: nodes that run may be named in place of a path, see ``source``."""
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
                help="what to read, see `raftlog --help`",
            )
        if takes_nodes:
            self.add_nodes(is_required=not takes_path)

    def add_nodes(self, *, is_required: bool) -> None:
        """The options of every command that asks nodes over the network."""
        nodes = self.add_argument_group("nodes" if is_required else "nodes in place of PATH")
        nodes.add_argument(
            "--bootstrap-server",
            metavar="HOST:PORT,...",
            required=is_required,
            help="some nodes of a quorum of raftlog's, or all"
            if is_required
            else "some controllers of a live cluster, or nodes of a quorum of raftlog's, or all",
        )
        nodes.add_argument("--tls-ca", metavar="FILE", help="the CA of the nodes' certificates")
        nodes.add_argument("--tls-certificate", metavar="FILE", help="what is shown to the nodes")
        nodes.add_argument("--tls-key", metavar="FILE", help="its key")
        nodes.add_argument(
            "--timeout-ms",
            metavar="MS",
            type=int,
            help="how long a question is asked again, until a leader answers; default: "
            f"{NODES_TIMEOUT_MS}",
        )

    def add_redaction(self) -> None:
        """The options of every command that prints values."""
        self.add_argument("--reveal", action="store_true", help="show secrets as they are")
        self.add_argument(
            "--redact-key-file",
            metavar="FILE",
            help="show a keyed hash in place of a secret, so that a change of it shows; the key is "
            f"what FILE holds (or the environment variable {REDACT_KEY_VARIABLE})",
        )

    def add_kind(self) -> None:
        """The option of every command that reads logs of both kinds."""
        self.add_argument(
            "--as",
            dest="record_kind",
            choices=("metadata", "partition"),
            help="what the records of PATH are, where its files do not tell: those of a metadata "
            "log, whose secrets are redacted, or others, which are shown as they are",
        )

    def add_decompression_limit(self) -> None:
        """The option of every command that decodes records."""
        self.add_argument(
            "--max-decompressed-bytes",
            metavar="BYTES",
            type=_decompressed_bytes,
            default=DECOMPRESSED_BYTES_MAX,
            help="do not read a compressed batch that expands to more bytes than these; default: "
            f"{DECOMPRESSED_BYTES_MAX}, at most {DECOMPRESSED_BYTES_OPTION_MAX}",
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """What was asked for. Raises ``WrongCallError``."""
        found, unknown = self.parse_known_intermixed_args(argv)
        if unknown:
            name = unknown[0].partition("=")[0]
            if not name.startswith("-"):
                self.error(f"unexpected argument {name!r}")
            options = [text for action in self._actions for text in action.option_strings]
            hint = nearest(name, options) or "`--help` lists the options"
            self.error(f"no option {name!r}; {hint}")
        return found

    def error(self, message: str) -> NoReturn:
        """A wrong call, as argparse found it."""
        raise WrongCallError(self.prog, self.format_usage(), message)


def nearest(name: str, names: Iterable[str]) -> str | None:
    """``did you mean ...?``, or None if nothing is near."""
    import difflib

    near = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else None


def offset(text: str) -> int:
    """An offset on the command line: a number of Kafka's, not negative."""
    # Not int(): it takes signs, spaces, underscores and digits of other scripts.
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
    """What ``add_kind``'s option declares, None if it was not given."""
    from raftlog.client import LogKind

    name: str | None = getattr(arguments, "record_kind", None)
    return None if name is None else LogKind(name)


def redactor(arguments: argparse.Namespace) -> Redactor:
    """What hides secrets, as ``add_redaction`` asked for it. Raises ``OptionError``."""
    from raftlog_state.records import Redactor

    return Redactor(key=_redact_key(arguments.redact_key_file), reveal=arguments.reveal)


def _redact_key(file_name: str | None) -> bytes | None:
    """The user's key for keyed hashes, None if there is none."""
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
        reason = f"the file holds more than {_KEY_BYTES_MAX} bytes"
        raise OptionError(option="--redact-key-file", reason=reason)
    return key
