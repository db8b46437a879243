from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.typed import check_types, of_this_version


@dataclass(frozen=True)
class Inner:
    count: int


@dataclass(frozen=True)
class Outer:
    name: str
    share: float | None
    inner: tuple[Inner, ...]
    best: Inner | None
    by_name: Mapping[str, int]
    state: Literal["alive", "dead"]
    anything: Any


SOUND = Outer("a", 1, (Inner(1), Inner(-2)), None, {"b": 3}, "alive", object())


def test_values_of_the_annotated_types_are_sound():
    check_types(SOUND)
    check_types(replace(SOUND, share=None, best=Inner(3), inner=()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("name", None),
        ("share", "1"),
        ("share", float("nan")),
        ("share", float("inf")),
        ("share", 10**400),
        ("inner", [Inner(1)]),
        ("inner", (Inner(1), 2)),
        ("best", {"count": 1}),
        ("by_name", {"b": "c"}),
        ("by_name", {1: 2}),
        ("by_name", []),
        ("state", "ill"),
        ("state", ["alive"]),
    ],
)
def test_another_value_is_refused_by_the_name_of_its_field(field, value):
    with pytest.raises(TypeError, match=f"^{field} is "):
        check_types(replace(SOUND, **{field: value}))


@pytest.mark.parametrize("count", [True, 1.0, "1", None, 1 << 63, -(1 << 63), 10**400])
def test_a_count_is_an_integer_of_64_bits(count):
    with pytest.raises(TypeError, match=r"^count is "):
        check_types(replace(SOUND, inner=(Inner(1), Inner(count))))


@pytest.mark.parametrize("failure", [KeyError("a"), ZeroDivisionError(), RecursionError("deep")])
def test_whatever_a_document_lacks_blames_its_file(failure):
    with (
        pytest.raises(BadInput, match=r"x\.json is of another version of ems"),
        of_this_version("x.json", option="FILE"),
    ):
        raise failure


def test_an_error_that_names_its_cause_already_stays_as_it_is():
    with pytest.raises(BadInput, match=r"^exactly$"), of_this_version("x.json", option="FILE"):
        raise BadInput("exactly", option="FILE")
