"""Collects the reasons why nothing of a space can run."""


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
