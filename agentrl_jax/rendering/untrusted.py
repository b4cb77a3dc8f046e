"""Keeps text that an environment or a user wrote from forging special tokens.

A tool result that contains `<|im_end|>` must not end a turn. Special tokens in content are wrapped in two marker
characters before the template is rendered; when the text is encoded, a wrapped one is spelled out as plain text, and
the template's own ones become special tokens. transformers does the same with `sanitize_control_tokens=True`.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

# Noncharacters: valid in a string, never assigned. A literal one in content is wrapped too, so nothing is lost.
_START = "\ufdd0"
_END = "\ufdd1"


class SpecialTokenGuard:
    """Marks and finds special tokens in untrusted text.

    special_tokens: their spellings; the longest match wins.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        alternatives = [*sorted(special_tokens, key=lambda token: (-len(token), token)), _START, _END]
        pattern = "|".join(map(re.escape, alternatives))
        self._tokens = re.compile(pattern)
        self._marked = re.compile(f"{_START}({pattern}){_END}")

    def mark(self, value: Any) -> Any:
        """Return a JSON value with every special token in its strings (keys too) wrapped in markers."""
        if isinstance(value, str):
            return self._tokens.sub(f"{_START}\\g<0>{_END}", value) if self._tokens.search(value) else value
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def unmark(self, text: str) -> str:
        """Return `text` without the markers."""
        return "".join(piece for piece, _ in self.pieces(text))

    def split(self, text: str, token: str) -> list[str]:
        """Split marked text behind each special `token` that is not marked."""
        return re.split(f"(?<={re.escape(token)})(?<!{_START}{re.escape(token)})", text)

    def pieces(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield (piece, is_plain) in order; plain pieces are special tokens that count as text. No markers remain."""
        if _START not in text:
            yield text, False
            return
        parts = self._marked.split(text)
        pending = parts[0]
        for token, following in zip(parts[1::2], parts[2::2], strict=True):
            if token in (_START, _END):
                pending += token + following
                continue
            if pending:
                yield pending, False
            yield token, True
            pending = following
        if pending:
            yield pending, False
