"""Keeps secrets out of what is shown or given away."""

import json
from collections.abc import Mapping
from typing import Any, Final

from ems.common.secret import MASK, SECRET_NAME, masked

_NO_SECRET: Final = frozenset({"token_nbytes", "num_tokens", "tokens"})
"""Fields of reports that count tokens."""
_SHORTEST: Final = 4
"""A value this short is no secret, and to replace it everywhere would garble the rest."""


def is_secret(name: str) -> bool:
    """Whether what goes by this name must not be shown."""
    return name not in _NO_SECRET and SECRET_NAME.search(name) is not None


def masked_deeply(value: Any) -> Any:
    """Return JSON's types without secrets: values of secret names, and those in URLs."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {
            name: MASK if item is not None and is_secret(str(name)) else masked_deeply(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked_deeply(item) for item in value]
    return value


def without(text: str, environment: Mapping[str, str]) -> str:
    """Return a JSON text without the values of secret variables, wherever they stand in it."""
    secret = {value for name, value in environment.items() if is_secret(name)}
    values = secret | {json.dumps(value)[1:-1] for value in secret}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, MASK)
    return text
