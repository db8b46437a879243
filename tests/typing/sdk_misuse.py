"""Calls that a type checker refuses, each with the kind of its error; never executed."""

from ems import CcConfig_v1, CcKvOption, CcResult, Ems, EmsConfig, KvBufferWrapper, PrimaryKey

CcConfig_v1(rank_id="0", device_id=0, model_id="m")  # arg-type
CcConfig_v1(rank_id=0, device_id=0)  # call-arg
CcConfig_v1(rank_id=0, device_id=0, model_id="m", rank=3)  # call-arg
CcKvOption(timeout="5000")  # arg-type
CcKvOption(time_out=5000)  # call-arg
EmsConfig(cc_config_v1=3)  # arg-type
KvBufferWrapper("0x10", 8)  # arg-type
PrimaryKey(7)  # arg-type
CcResult(1, 1).success = 2  # misc
Ems.get_cc().save([0], [1], [1])  # union-attr
Ems.check_health(3)  # call-arg
number: int = CcResult(1, 1)  # assignment
