"""Collects the reasons why nothing of a space can run."""

import re
from typing import Any


class Reasons:
    """Reasons why nothing can run. Reasons of valid layouts count; reasons of meaningless combinations count only if
    there are no others. Of reasons that differ in figures alone the first stands.
    """

    def __init__(self) -> None:
        self._rejected: dict[str, str] = {}
        self._meaningless: dict[str, str] = {}

    def add(self, *, rejected: str = "", meaningless: str = "") -> None:
        for text, texts in ((rejected, self._rejected), (meaningless, self._meaningless)):
            if text:
                texts.setdefault(re.sub(r"\d+", "", text), text)

    @property
    def text(self) -> str:
        return "; ".join([*(self._rejected or self._meaningless).values()][:3])

    def text_on(self, axis: str, value: Any) -> str:
        """Returns the reasons that name this value of the axis; all of them if none does."""
        return "; ".join([text for text in self._rejected.values() if names_value(text, axis, value)][:3]) or self.text


def names_value(reason: str, axis: str, value: Any) -> bool:
    """Returns whether a reason names this value of the axis, as in "ep 3 does not divide"."""
    return re.search(rf"\b{re.escape(f'{axis} {value}')}\b", reason) is not None
