"""The forms in which save and load can be called, each parsed into parts.

Nothing behind this module sees which form a call had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ems.common.exception import InvalidArgument, shown
from ems.common.option import CcKvOption, checked_option
from ems.layout.buffers import BufferPart, part_of_buffers
from ems.layout.chunk_descs import request_of_chunks
from ems.layout.part import Part, parts_of
from ems.layout.registered import Registered
from ems.layout.registration import Registration
from ems.layout.request import Request, request_of_slots
from ems.layout.token_request import request_of_tokens

_FORMS = {
    "buffers": (("key_list", "value_list"), ()),
    "chunks": (("hashes", "chunk_descs"), ()),
    "tokens": (("slot_mapping", "token_ids"), ("mask",)),
    "slots": (("slot_mapping", "hashes", "offsets"), ()),
}
"""What each form needs, and what it may have besides."""

_MARKS = (
    ("key_list", "buffers"),
    ("value_list", "buffers"),
    ("chunk_descs", "chunks"),
    ("token_ids", "tokens"),
    ("mask", "tokens"),
)
"""Arguments that tell the form of a call; without one it is slots, or buffers after an option."""


@dataclass(frozen=True)
class Call:
    """A call's arguments, checked."""

    parts: Sequence[Part]
    """Empty where there is nothing to move."""
    option: CcKvOption
    buffers: BufferPart | None = None
    """The part, where the caller addresses device memory itself."""


def parse_call(
    arguments: Mapping[str, Any],
    *,
    registered: Registered | None,
    buffer_key_prefix: str,
    writes: bool,
) -> Call:
    """Return what a save or load asks for.

    `arguments` has slot_mapping, hashes, offsets and option, None where not given, and whatever
    keywords the caller added. `writes` is for loads.

    Raises:
        InvalidArgument: an argument is unknown, missing, of another form, or has a wrong value;
            or the form needs a registered cache and there is none.
    """
    named = _named(arguments)
    _refuse_unknown(named)
    given = {name: value for name, value in named.items() if value is not None}
    option = checked_option(given.pop("option", None))
    form = _form_of(given, "buffers" if _option_first(arguments) else "slots")
    if form == "buffers":
        part = part_of_buffers(
            given["key_list"], given["value_list"], key_prefix=buffer_key_prefix, writes=writes
        )
        return Call([part], option, part)
    if registered is None:
        raise InvalidArgument("no cache is registered: call register_kvcache first")
    request = _request(form, given, registered.registration, writes=writes)
    if request is None:
        return Call([], option)
    groups = registered.registration.groups
    return Call(parts_of(request, groups, registered.key_prefixes), option)


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names, also where option, key_list, value_list came in order.

    The SDK's two forms share their positions; an option in the first place tells them apart.
    """
    named = dict(arguments)
    if not _option_first(arguments):
        return named
    first_form = {"option": "slot_mapping", "key_list": "hashes", "value_list": "offsets"}
    for name, place in first_form.items():
        value = named.pop(place)
        if value is not None and named.get(name) is not None:
            raise InvalidArgument(f"{name} is given twice: {shown(value)} in its place and by name")
        if value is not None:
            named[name] = value
    return named


def _option_first(arguments: Mapping[str, Any]) -> bool:
    return isinstance(arguments["slot_mapping"], CcKvOption)


def _refuse_unknown(named: Mapping[str, Any]) -> None:
    known = {name for needs, may in _FORMS.values() for name in (*needs, *may)}
    if unknown := sorted(set(named) - {*known, "option"}):
        raise InvalidArgument(f"unknown arguments: {', '.join(unknown)}")


def _form_of(given: Mapping[str, Any], unmarked: str) -> str:
    """Return the form of a call; `unmarked` is that of one which no argument tells."""
    form = next((form for mark, form in _MARKS if mark in given), unmarked)
    needs, may = _FORMS[form]
    if extra := sorted(set(given) - {*needs, *may}):
        others = " and ".join(sorted(set(given) - {*extra}))
        raise InvalidArgument(
            f"{', '.join(extra)} cannot be passed with {others}: a call names what is to be moved "
            "in one way"
        )
    if missing := [name for name in needs if name not in given]:
        raise InvalidArgument(f"{' and '.join(missing)} missing; {' and '.join(needs)} go together")
    return form


def _request(
    form: str, given: Mapping[str, Any], registration: Registration, *, writes: bool
) -> Request | None:
    if form == "chunks":
        return request_of_chunks(registration, given["hashes"], given["chunk_descs"], writes=writes)
    if form == "tokens":
        return request_of_tokens(
            registration,
            given["slot_mapping"],
            given["token_ids"],
            given.get("mask"),
            writes=writes,
        )
    return request_of_slots(
        registration, given["slot_mapping"], given["hashes"], given["offsets"], writes=writes
    )
