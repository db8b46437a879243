"""The NPU: the only importer of torch and torch_npu, the only user of the ACL runtime.

Importing this package imports neither; `load` does.
"""

from types import ModuleType

from ems.common.exception import DeviceFailed


def load() -> ModuleType:
    """Return `ems.device.ascend`, importing torch and torch_npu.

    Raises:
        DeviceFailed: one of them is missing, or finds no CANN; the loader's text is kept.
    """
    try:
        from ems.device import ascend  # noqa: PLC0415 - torch is imported only when a device is used
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceFailed(
            f"torch_npu cannot be used: {error}. Install torch and torch_npu, and run "
            "`source set_env.sh` of CANN; without an NPU start Python by "
            "`python -m ems.simulator`"
        ) from error
    return ascend
