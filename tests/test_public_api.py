"""The names that callers of the SDK import, and what importing them must not do."""

import inspect
from importlib import import_module

import pytest
from scripts import run_script

import ems

PROMISED = [
    *(("ems", name) for name in ("CcConfig", "CcConfig_v1", "CcFuture", "CcKvOption", "CcResult")),
    *(("ems", name) for name in ("ChunkDesc", "ContextCache_v1", "ContextCaching", "Ems")),
    *(("ems", name) for name in ("EmsConfig", "EmsErrorCode", "EmsException", "KVCacheType")),
    *(("ems", name) for name in ("KvBufferWrapper", "PrimaryKey", "StoreLayerGroupDesc")),
    ("ems.cc_v1.cc_config", "CcConfig_v1"),
    ("ems.cc_v1.cc_config", "KVCacheType"),
    ("ems.common.exception", "EmsErrorCode"),
    ("ems.common.exception", "EmsException"),
]

SIGNATURES = {
    "save": ["slot_mapping", "hashes", "offsets", "option"],
    "load": ["slot_mapping", "hashes", "offsets", "option"],
    "async_save": ["slot_mapping", "hashes", "offsets", "option"],
    "async_load": ["slot_mapping", "hashes", "offsets", "option"],
    "exists": ["hashes", "option"],
    "register_kvcache": ["kvcache", "store_layer_group_desc"],
    "is_ready": ["ccfuture"],
    "get_result": ["ccfuture"],
}


@pytest.mark.parametrize(("module", "name"), PROMISED)
def test_the_sdk_path_exists(module, name):
    assert hasattr(import_module(module), name)


@pytest.mark.parametrize(("module", "name"), PROMISED)
def test_a_name_is_one_object_at_every_path(module, name):
    assert getattr(import_module(module), name) is getattr(ems, name)


def test_everything_that_is_offered_is_there_and_shown():
    assert sorted(ems.__all__) == ems.__all__
    assert set(ems.__all__) == {name for module, name in PROMISED if module == "ems"}
    assert set(ems.__all__) <= set(dir(ems))


def test_an_unknown_name_is_an_attribute_error_that_names_it():
    with pytest.raises(AttributeError, match="no attribute 'CcKvOptions'"):
        ems.CcKvOptions  # noqa: B018 - the access is the test


@pytest.mark.parametrize("method", SIGNATURES)
def test_arguments_have_the_names_and_the_order_of_the_sdk(method):
    named = [
        parameter.name
        for parameter in inspect.signature(getattr(ems.ContextCaching, method)).parameters.values()
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
    ]
    assert named[1:] == SIGNATURES[method]


def test_the_second_argument_of_a_registration_is_optional():
    parameters = inspect.signature(ems.ContextCaching.register_kvcache).parameters
    assert parameters["store_layer_group_desc"].default is None


def test_results_options_and_codes_have_the_fields_of_the_sdk():
    assert (ems.CcResult(1, 2).success, ems.CcResult(1, 2).total) == (1, 2)
    assert "success=1" in str(ems.CcResult(1, 2))
    option = ems.CcKvOption(write_rcache=True, read_local_only=False, timeout=5000)
    assert option == ems.CcKvOption()
    assert ems.EmsException("x").status_code().name == "EMS_INTERNAL_ERROR"
    assert ems.KVCacheType("MLA") == "MLA"


IMPORTED = """
import sys
import ems
heavy = ["torch", "torch_npu", "mooncake", "typer", "rich", "numpy"]
print([name for name in heavy if name in sys.modules])
from ems import *
print([name for name in heavy if name in sys.modules and name != "numpy"])
from ems.simulator import control
print([name for name in heavy if name in sys.modules and name != "numpy"])
"""


def test_importing_ems_imports_nothing_heavy_and_its_names_no_torch():
    assert run_script(IMPORTED).stdout.splitlines() == ["[]"] * 3
