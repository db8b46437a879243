import pytest
from runtime_calls import output_of, run_python

from ems.simulator import control

COUNT_DEVICES = """
from runtime_calls import *
print(answer("aclrtGetDeviceCount"), answer("drvGetDevNum"))
"""
INITIALISE = """
from runtime_calls import *
print(acl("aclInit", None), acl("aclrtSetDevice", 0), recent_error())
"""


@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({}, "8 8"),
        ({"EMS_SIM_DEVICES": "0"}, "0 0"),
        ({"EMS_SIM_DEVICES": "16"}, "16 16"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2,5"}, "2 8"),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, "0 8"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1,8,2"}, "1 8"),
        ({"EMS_SIM_DEVICES": "2", "ASCEND_RT_VISIBLE_DEVICES": "1"}, "1 2"),
    ],
)
def test_devices_are_as_many_as_asked_for_and_visible(variables, counts):
    assert output_of(COUNT_DEVICES, **variables) == counts + "\n"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("EMS_SIM_DEVICES", "17"),
        ("EMS_SIM_DEVICES", "two"),
        ("EMS_SIM_MEMORY", "1X"),
        ("EMS_SIM_MEMORY", "0"),
        ("EMS_SIM_STREAM_DEPTH", "0"),
        ("EMS_SIM_POISON", "yes"),
        ("EMS_SIM_ACCOUNT", "../other"),
        ("EMS_SIM_FAIL_COPY", "0"),
        ("EMS_SIM_FAIL_COPY", "every:"),
        ("EMS_SIM_FAIL_COPY", "1:"),
        ("EMS_SIM_FAIL_LAUNCH", "first"),
        ("EMS_SIM_DELAY", "copy_d2h"),
        ("EMS_SIM_DELAY", "stream:x=1"),
        ("EMS_SIM_DELAY", "copy_d2h=soon"),
        ("EMS_SIM_GBPS", "-1"),
        ("EMS_SIM_COPY_LATENCY_US", "1ms"),
    ],
)
def test_a_value_that_is_not_understood_is_told_and_refused(variable, value):
    _, output, errors = run_python(INITIALISE, **{variable: value})
    assert errors == f"ems.simulator: {variable}={value} is not understood\n"
    assert output.startswith("100000 100000 ")


def test_a_setting_that_does_not_exist_is_told_and_refused():
    _, output, errors = run_python(INITIALISE, EMS_SIM_FAIL_COPPY="1")
    assert errors == "ems.simulator: there is no setting EMS_SIM_FAIL_COPPY\n"
    assert output.startswith("100000 100000 ")


def test_an_empty_value_is_the_default():
    assert output_of(INITIALISE, EMS_SIM_FAIL_COPY="", EMS_SIM_MEMORY="").startswith("0 0 ")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4096", 4096), ("1G", 1 << 30), ("1GiB", 1 << 30), ("1.5m", 3 << 19), ("2KB", 2048)],
)
def test_memory_is_in_bytes_or_powers_of_1024(text, nbytes):
    told = output_of(
        """
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        print(memory_info()[1])
        """,
        EMS_SIM_MEMORY=text,
        EMS_SIM_ACCOUNT="tests-units",
    )
    assert int(told) == nbytes


def test_a_device_says_what_it_is_told_to_be():
    told = output_of(
        """
        from runtime_calls import *
        library = ctypes.CDLL("libascendcl.so")
        library.aclrtGetSocName.restype = ctypes.c_char_p
        version = ctypes.create_string_buffer(64)
        done("aclsysGetVersionStr", b"runtime", version)
        print(library.aclrtGetSocName().decode(), version.value.decode())
        """,
        EMS_SIM_SOC="Ascend950PR",
        EMS_SIM_VERSION="9.0.0",
    )
    assert told == "Ascend950PR 9.0.0\n"


def test_calls_can_be_traced():
    _, _, errors = run_python(INITIALISE, EMS_SIM_TRACE="1")
    assert "aclrtSetDevice(0)" in errors


def test_torch_npu_s_own_log_can_be_shown():
    code = """
    from runtime_calls import *
    acl("aclAppLog", 2, b"function", b"file.cpp", 7, b"a %s", b"warning")
    """
    assert run_python(code)[2] == ""
    shown = "[torch_npu warning] file.cpp:7 function: a warning\n"
    assert run_python(code, EMS_SIM_LOG="2")[2] == shown
    assert run_python(code, EMS_SIM_LOG="3")[2] == ""


def test_the_default_device_of_a_configuration_is_that_of_every_thread(tmp_path):
    configuration = tmp_path / "acl.json"
    configuration.write_text('{"defaultDevice": {"default_device": "3"}}')
    code = """
    from runtime_calls import *
    print(acl("aclrtGetDevice", ctypes.byref(ctypes.c_int32())))
    done("aclInit", PATH)
    print(acl("aclInit", PATH), answer("aclrtGetDevice"))
    """
    told = output_of(code.replace("PATH", repr(str(configuration).encode())))
    assert told.split() == ["107002", "100002", "3"]


def test_knobs_are_restored_after_their_block():
    with control.knobs(DELAY="memset=1"):
        with control.knobs(DELAY="copy_d2h=2", FAIL_COPY="3:507899"):
            assert control.setting("DELAY") == "copy_d2h=2"
            assert control.setting("FAIL_COPY") == "3:507899"
        assert control.setting("DELAY") == "memset=1"
        assert control.setting("FAIL_COPY") == ""
    assert control.setting("DELAY") == ""


def test_knobs_that_are_not_understood_leave_all_as_they_were():
    knobs = control.knobs(FAIL_COPY="1", DELAY="never")
    with pytest.raises(ValueError, match="DELAY='never'"), knobs:
        pass
    assert control.setting("FAIL_COPY") == ""


@pytest.mark.parametrize("knob", ["DEVICES", "FAIL_COPPY", ""])
def test_what_is_no_knob_cannot_be_set(knob):
    with pytest.raises(ValueError, match="no knob that may change"):
        control.set_fault(knob, "1")


def test_what_is_not_counted_cannot_be_asked_for():
    with pytest.raises(ValueError, match="no such counter"):
        control.counter("coppies")


def test_settings_of_the_environment_can_be_asked_for():
    told = output_of(
        """
        from ems.simulator import control
        print(control.setting("DEVICES"), control.setting("GBPS_D2H"))
        """,
        EMS_SIM_DEVICES="3",
        EMS_SIM_GBPS_D2H="2.5",
    )
    assert told == "3 2.5\n"


def test_nothing_is_controlled_where_the_simulated_runtime_is_not_loaded():
    _, _, errors = run_python(
        "from ems.simulator import control; control.counter('copies')", LD_LIBRARY_PATH=""
    )
    assert "RuntimeError: the simulated runtime is not the one in use" in errors
