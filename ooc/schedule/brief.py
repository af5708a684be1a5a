"""Text at a glance: what is long is shown by its beginning and its end."""

from __future__ import annotations


def brief(text: str, most: int) -> str:
    """A text, its middle left out where it has more characters than `most`.

    >>> brief("abcdefghijklmnop", 12)
    'abcd ... nop'
    """
    room = most - 5
    return text if len(text) <= most else f"{text[: room - room // 2]} ... {text[len(text) - room // 2 :]}"
