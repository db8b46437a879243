"""What the caller of a command can correct: an option's value or the file it names."""


class BadInput(ValueError):  # noqa: N818 - it is the caller's, not ours
    """An option's value, or the file behind it, cannot be used; the text says why."""

    def __init__(self, message: str, *, option: str, pointer: str = "") -> None:
        super().__init__(message)
        self.option = option
        """The option at fault, as it is typed: "--model"."""
        self.pointer = pointer
        """Two lines that show the place in the value, or nothing."""
