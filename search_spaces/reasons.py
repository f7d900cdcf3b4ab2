"""Collects the reasons why nothing of a space can run."""

import re
from typing import Any


class Reasons:
    """Reasons why nothing can run. Reasons of valid layouts count; reasons of meaningless combinations count only if
    there are no others.
    """

    def __init__(self) -> None:
        self._rejected: dict[str, None] = {}
        self._meaningless: dict[str, None] = {}

    def add(self, *, rejected: str = "", meaningless: str = "") -> None:
        for text, texts in ((rejected, self._rejected), (meaningless, self._meaningless)):
            if text:
                texts[text] = None

    @property
    def text(self) -> str:
        return "; ".join(list(self._rejected or self._meaningless)[:3])

    def text_on(self, axis: str, value: Any) -> str:
        """Returns the reasons that name this value of the axis; all of them if none does."""
        return "; ".join([text for text in self._rejected if names_value(text, axis, value)][:3]) or self.text


def names_value(reason: str, axis: str, value: Any) -> bool:
    """Returns whether a reason names this value of the axis, as in "ep 3 does not divide"."""
    return re.search(rf"\b{re.escape(f'{axis} {value}')}\b", reason) is not None
