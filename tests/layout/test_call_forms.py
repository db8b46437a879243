"""The forms of a call: told apart by what is passed, never mixed, each refusal by name."""

import inspect
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import k_and_v, untimed

from ems.common.addressing import ChunkDesc, KvBufferWrapper, PrimaryKey
from ems.common.exception import InvalidArgument
from ems.common.option import CcKvOption
from ems.layout import call as call_module
from ems.layout.call import parse_call
from ems.layout.registered import Registered
from ems.layout.registration import register

CACHE = register(k_and_v())
REGISTERED = Registered(CACHE, ("k-",))
OPTION = CcKvOption(timeout=100)
KEYS, VALUES = ["a"], [[KvBufferWrapper(4096, 8)]]
SLOTS: dict[str, Any] = {"slot_mapping": [0, 1, 2, 3], "hashes": [7], "offsets": [4]}
TOKENS: dict[str, Any] = {"slot_mapping": [0, 1, 2, 3], "token_ids": [1, 2, 3, 4]}
CHUNKS: dict[str, Any] = {"hashes": [7], "chunk_descs": [[ChunkDesc(0, 4)]]}
BUFFERS: dict[str, Any] = {"key_list": KEYS, "value_list": VALUES}
FORMS = {"slots": SLOTS, "tokens": TOKENS, "chunks": CHUNKS, "buffers": BUFFERS}


def parsed(*positional, registered=REGISTERED, writes=True, **named):
    """Parse a call with the signature of `save`."""
    places = dict.fromkeys(("slot_mapping", "hashes", "offsets", "option"))
    places.update(zip(places, positional, strict=False))
    assert not set(named) & set(list(places)[: len(positional)]), "Python refuses it by itself"
    places.update(named)
    return parse_call(places, registered=registered, buffer_key_prefix="b-", writes=writes)


def refusal(*positional, **named):
    with pytest.raises(InvalidArgument) as refused:
        parsed(*positional, **named)
    return str(refused.value)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_can_be_called_by_keywords(form):
    call = parsed(**FORMS[form], option=OPTION)
    assert call.option == OPTION
    assert (call.buffers is not None) == (form == "buffers")
    assert len(call.parts) == 1


def test_slots_can_be_passed_in_their_places():
    assert parsed([0, 1, 2, 3], [7], [4], OPTION).option == OPTION
    assert parsed([0, 1, 2, 3], [7], [4]).option == CcKvOption()


@pytest.mark.parametrize(
    ("positional", "named"),
    [
        ((OPTION, KEYS, VALUES), {}),
        ((OPTION,), BUFFERS),
        ((OPTION, KEYS), {"value_list": VALUES}),
        ((), {"option": OPTION, **BUFFERS}),
        ((), {"slot_mapping": OPTION, "hashes": KEYS, "offsets": VALUES}),
        ((OPTION, [PrimaryKey("a")], VALUES), {}),
    ],
)
def test_an_option_in_the_first_place_makes_it_the_form_of_keys_and_buffers(positional, named):
    call = parsed(*positional, **named)
    assert call.option == OPTION
    assert call.buffers is not None
    assert call.buffers.lengths.tolist() == [8]


def test_keys_and_buffers_need_no_registered_cache_and_every_other_form_says_that_it_does():
    assert parsed(OPTION, KEYS, VALUES, registered=None).buffers is not None
    for form in ("slots", "tokens", "chunks"):
        assert "register_kvcache first" in refusal(**FORMS[form], registered=None)


def test_a_call_that_moves_nothing_has_no_parts():
    call = parsed(**TOKENS, mask=[0, 0, 0, 0])
    assert not call.parts


ALL_NAMES = sorted({name for form in FORMS.values() for name in form} | {"mask"})


@untimed
@given(st.sets(st.sampled_from(ALL_NAMES)))
def test_of_all_combinations_of_arguments_only_the_four_forms_are_taken(names):
    everything = {**SLOTS, **TOKENS, **CHUNKS, **BUFFERS, "mask": [1, 1, 1, 1]}
    arguments = {name: everything[name] for name in names}
    whole = [set(form) for form in FORMS.values()] + [{*TOKENS, "mask"}]
    if names in whole:
        assert parsed(**arguments).parts
    else:
        assert refusal(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({**SLOTS, **CHUNKS}, "offsets, slot_mapping cannot be passed with chunk_descs and hashes"),
        ({**SLOTS, **TOKENS}, "hashes, offsets cannot be passed with slot_mapping and token_ids"),
        ({**SLOTS, "mask": [1] * 4}, "hashes, offsets cannot be passed with mask and slot_mapping"),
        ({**BUFFERS, "hashes": [1]}, "hashes cannot be passed with key_list and value_list"),
        ({**CHUNKS, "token_ids": [1]}, "token_ids cannot be passed with chunk_descs and hashes"),
    ],
)
def test_two_forms_in_one_call_are_refused_by_the_names_that_do_not_belong(arguments, words):
    assert words in refusal(**arguments)


@pytest.mark.parametrize(
    ("positional", "named", "words"),
    [
        ((), {}, "slot_mapping and hashes and offsets missing"),
        (([0],), {}, "hashes and offsets missing"),
        (([0, 1, 2, 3], [7]), {}, "offsets missing"),
        ((None, [7], [4]), {}, "slot_mapping missing"),
        ((), {"chunk_descs": [[(0, 4)]]}, "hashes missing; hashes and chunk_descs go together"),
        ((), {"token_ids": [1]}, "slot_mapping missing; slot_mapping and token_ids go together"),
        (([0],), {"mask": [1]}, "token_ids missing"),
        ((), {"key_list": KEYS}, "value_list missing; key_list and value_list go together"),
        ((OPTION,), {}, "key_list and value_list missing; key_list and value_list go together"),
        ((OPTION, KEYS), {}, "value_list missing; key_list and value_list go together"),
        ((OPTION, None, VALUES), {}, "key_list missing; key_list and value_list go together"),
    ],
)
def test_what_a_form_lacks_is_named_with_what_it_needs(positional, named, words):
    assert words in refusal(*positional, **named)


@pytest.mark.parametrize(
    ("positional", "named", "name"),
    [
        ((OPTION, KEYS, VALUES, OPTION), {}, "option"),
        ((OPTION, KEYS, VALUES), {"key_list": KEYS}, "key_list"),
        ((OPTION, KEYS, VALUES), {"value_list": VALUES}, "value_list"),
        ((OPTION,), {**BUFFERS, "option": OPTION}, "option"),
    ],
)
def test_what_is_given_in_its_place_and_by_name_is_refused(positional, named, name):
    assert f"{name} is given twice" in refusal(*positional, **named)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [1, None], ids=repr)
def test_a_name_that_no_form_knows_is_refused_also_where_it_is_none(form, value):
    assert "unknown arguments: hashs, layer" in refusal(**FORMS[form], layer=value, hashs=value)


def test_a_known_name_may_be_none_as_if_it_had_not_been_passed():
    nothing = dict.fromkeys(("token_ids", "mask", "chunk_descs", "key_list", "value_list"))
    assert parsed(**SLOTS, **nothing).parts
    assert parsed(**TOKENS, hashes=None, offsets=None, mask=None).parts


@pytest.mark.parametrize("option", [5000, "5000", {}, CcKvOption, True], ids=repr)
@pytest.mark.parametrize("form", FORMS)
def test_an_option_of_another_type_is_refused_by_its_value(form, option):
    assert f"option must be a CcKvOption, not {option!r}" in refusal(**FORMS[form], option=option)


def test_only_loads_refuse_to_name_a_place_twice():
    twice = {"slot_mapping": [0, 1, 2, 2], "hashes": [7], "offsets": [4]}
    assert parsed(**twice, writes=False).parts
    assert "both slot 2" in refusal(**twice)


def test_arrays_are_no_ambiguous_truths_on_the_way():
    assert parsed(np.arange(4), np.array([7]), np.array([4])).parts


def test_every_name_of_a_form_is_checked_here():
    known = {n for needs, may in call_module._FORMS.values() for n in (*needs, *may)}
    assert known == set(ALL_NAMES)
    assert set(inspect.signature(parse_call).parameters) == {
        "arguments",
        "registered",
        "buffer_key_prefix",
        "writes",
    }
