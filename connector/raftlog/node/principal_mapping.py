"""Names of principals from certificates' distinguished names, with rules like Kafka's.

``ssl.principal.mapping.rules`` is a list of rules separated by commas, of which the first match
decides. ``DEFAULT`` is the whole name. ``RULE:pattern/replacement/``, optionally followed by ``L``
or ``U``, requires that the pattern matches the whole name, and replaces each of its matches, in
lower or upper case. In the replacement ``$1`` is a group, and a backslash quotes a character.

Patterns are those of Python's ``re`` with ASCII classes. Syntax that Java writes or reads
differently (``\\p``, ``\\Q``, named groups, unions and intersections of classes, three digits after
a backslash, the flag ``x``) is an error in the rules. So is a replacement with a group that the
pattern does not have, which Kafka reports only for a connection.

A name of more than ``NAME_LENGTH_MAX`` characters matches no rule, because the node's event loop
waits for the match: with five ``(.*?)``, as in patterns of Kafka's documentation, its time grows
with the fifth power of the name's length.

Source: Kafka ``SslPrincipalMapper``; names as in ``X500Principal.getName`` (RFC 2253).
"""

from __future__ import annotations

import functools
import re
import warnings
from dataclasses import dataclass
from typing import Final

from .der import distinguished_name, subject_of

NAME_LENGTH_MAX: Final = 512
_RULE: Final = r"(DEFAULT)|RULE:((\\.|[^\\/])*)/((\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_PARSER: Final = re.compile(_RULE, re.ASCII)
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_BACK_REFERENCE: Final = re.compile(r"\$(\d+)", re.ASCII)
_TOKEN: Final = re.compile(
    r"(\\[1-9][0-7][0-7]|\(\?[a-z]*x|\[\^?\]?(?:\\.|[^][\\])*\[)"
    r"|\\.|\[\^?\]?(?:\\.|[^]\\])*\]|.",
    re.DOTALL,
)
"""Part of a pattern. The first group matches what Java and Python read differently without an
error: digits that are an octal number or a group's, white space in a class, and a class within a
class."""
_TRIMMED: Final = "".join(map(chr, range(33)))
"""Characters that Java's ``String.trim`` removes."""
_LINE_ENDS: Final = re.compile("[\n\r\x85\u2028\u2029]")
"""Java's ``.`` matches none of them, Python's all but one; names that contain one match no rule."""


class RulesError(ValueError):
    """Mapping rules are invalid. The text is the reason."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Rule with a parsed replacement: texts and group numbers. ``DEFAULT`` has no pattern."""

    pattern: re.Pattern[str] | None = None
    replacement: tuple[str | int, ...] = ()
    letters: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name of the principal; None if the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        found = self.pattern.sub(self._replaced, name)
        match self.letters:
            case "L":
                return found.lower()
            case "U":
                return found.upper()
            case _:
                return found

    def _replaced(self, match: re.Match[str]) -> str:
        return "".join(
            part if isinstance(part, str) else match[part] or "" for part in self.replacement
        )


@functools.lru_cache(maxsize=8)
def parse_rules(text: str) -> tuple[_Rule, ...]:
    """Return the rules in a text. Raises ``RulesError``."""
    rules = []
    for split in _SPLITTER.finditer(text.strip(_TRIMMED)):
        found = _PARSER.match(split[1])
        if found is None or found.end() != len(split[1]):
            rest = split[1] if found is None else split[1][found.end() :]
            raise RulesError(f"{split[1]!r} is not a rule: {rest!r} does not belong to it")
        if found[1] is not None:
            rules.append(_Rule())
        elif found[2] is not None:
            rules.append(_parse_rule(found[2], found[4], found[6]))
    if not rules:
        raise RulesError("there is no rule")
    return tuple(rules)


def _parse_rule(pattern: str, replacement: str, letters: str) -> _Rule:
    unlike = next((found[1] for found in _TOKEN.finditer(pattern) if found[1]), None)
    if unlike is not None:
        raise RulesError(
            f"the pattern {pattern!r} is not supported: Java reads {unlike!r} otherwise"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a class that Java would read as an intersection
            compiled = re.compile(pattern, re.ASCII)
    except (ValueError, re.error, RecursionError, OverflowError, Warning) as error:
        raise RulesError(f"the pattern {pattern!r} is not supported: {error}") from None
    return _Rule(compiled, _parse_replacement(replacement, compiled.groups), letters)


def _parse_replacement(text: str, group_count: int) -> tuple[str | int, ...]:
    """Return the parts of a replacement (Java: ``Matcher.appendReplacement``)."""
    text = _with_literal_references(text, group_count)
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "\\":
            if at == len(text):
                raise RulesError(f"the replacement {text!r} ends with a backslash")
            parts.append(text[at])
            at += 1
        elif letter != "$":
            parts.append(letter)
        else:
            number, at = _group_at(text, at, group_count)
            parts.append(number)
    return tuple(parts)


def _group_at(text: str, at: int, group_count: int) -> tuple[int, int]:
    """Return the group that the digits at a position name, as many as possible, and their end."""
    digits = "0123456789"
    if at == len(text) or text[at] not in digits:
        raise RulesError(f"the replacement {text!r} has a $ without the number of a group")
    number = int(text[at])
    if number > group_count:
        raise RulesError(f"the replacement {text!r} has ${number}, but the pattern no such group")
    at += 1
    while at < len(text) and text[at] in digits and number * 10 + int(text[at]) <= group_count:
        number = number * 10 + int(text[at])
        at += 1
    return number, at


def _with_literal_references(text: str, group_count: int) -> str:
    """Quote the references to groups that a pattern with groups does not have. As in Kafka,
    positions do not account for the backslashes that were added."""
    value = text
    for found in _BACK_REFERENCE.finditer(text) if group_count else ():
        if found[1].startswith("0"):
            continue
        number = int(found[1])
        while number > group_count and number >= 10:
            number //= 10
        if number > group_count:
            value = value[: found.start()] + "\\" + value[found.start() :]
    return value


def mapped_name(rules: str, certificate: bytes) -> str:
    """Return the principal of a certificate in DER; empty if no rule matches its subject."""
    try:
        name = distinguished_name(subject_of(certificate))
    except (ValueError, IndexError):
        return ""
    return mapped(rules, name) or ""


def mapped(rules: str, name: str) -> str | None:
    """Return the principal of a distinguished name; None if no rule matches."""
    if len(name) > NAME_LENGTH_MAX or _LINE_ENDS.search(name) is not None:
        return None
    for rule in parse_rules(rules):
        found = rule.apply(name)
        if found is not None:
            return found
    return None
