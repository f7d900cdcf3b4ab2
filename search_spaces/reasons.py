"""Why nothing of a space can run."""


class Reasons:
    """Why nothing can run: reasons of real layouts first, of combinations that mean nothing only without them."""

    def __init__(self) -> None:
        self._rejected: dict[str, None] = {}
        self._meaningless: dict[str, None] = {}

    def add(self, *, rejected: str = "", meaningless: str = "") -> None:
        """Keeps each of the two unless it is empty or known."""
        for text, kept in ((rejected, self._rejected), (meaningless, self._meaningless)):
            if text:
                kept[text] = None

    @property
    def text(self) -> str:
        """Up to three reasons in one line."""
        return "; ".join(list(self._rejected or self._meaningless)[:3])
