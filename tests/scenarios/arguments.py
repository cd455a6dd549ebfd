"""Arguments of a command: positional words and ``name=value`` options."""

from __future__ import annotations


class Arguments:
    """Arguments of one command."""

    def __init__(self, words: list[str]) -> None:
        self._options: dict[str, str] = {}
        self.places: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name.replace("_", "").isalpha():
                self._options[name] = value
            else:
                self.places.append(word)
        self._unused = set(self._options)

    def text(self, name: str) -> str | None:
        self._unused.discard(name)
        return self._options.get(name)

    def number(self, name: str, default: int) -> int:
        text = self.text(name)
        return default if text is None else int(text)

    def optional(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else int(text)

    def numbers(self, name: str) -> tuple[int, ...]:
        text = self.text(name)
        return tuple(int(word) for word in text.split(",")) if text else ()

    def check_all_used(self) -> None:
        assert not self._unused, f"unknown options: {sorted(self._unused)}"
