"""Text that came from outside, made safe for a terminal."""


def visible(text: str) -> str:
    """Return `text` with every control character, newline included, written as an escape.

    Paths, keys and error messages may hold sequences that move the cursor or hide a line.
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def one_line(text: str) -> str:
    """Return `text` on one line, its line breaks and tabs as single blanks, the rest visible."""
    return visible(" ".join(text.split()))
