"""Tensors as registration sees them, without torch."""

from hypothesis import HealthCheck, settings

from ems.layout.plane import TensorFacts

ITEMSIZE = {"int8": 1, "float16": 2, "bfloat16": 2, "float32": 4}
APART = 1 << 28

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def facts(  # noqa: PLR0913 - as many as a tensor has
    shape, *, address=APART, dtype="float16", strides=None, device="npu:0", npu_format=2
):
    return TensorFacts(
        device, dtype, ITEMSIZE[dtype], shape, strides or dense(shape), address, npu_format
    )


def dense(shape):
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return tuple(strides)


def layers(*shapes_by_layer, **facts_arguments):
    """Return one layer per argument, of one tensor per shape in it, all of them far apart."""
    addresses = iter(range(APART, 1 << 40, APART))
    return [
        [facts(shape, address=next(addresses), **facts_arguments) for shape in shapes]
        for shapes in shapes_by_layer
    ]


def k_and_v(count=2, shape=(8, 4, 2, 8), **facts_arguments):
    return layers(*[[shape, shape]] * count, **facts_arguments)
