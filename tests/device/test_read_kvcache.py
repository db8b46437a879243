import pytest
import torch

from ems.common.exception import InvalidArgument
from ems.device.ascend import read_kvcache

PLANE = torch.zeros(2, 4, 1, 8, dtype=torch.float16)


def refusal(kvcache):
    with pytest.raises(InvalidArgument) as refused:
        read_kvcache(kvcache)
    return str(refused.value)


@pytest.mark.parametrize(
    "kvcache",
    [None, 7, "kvcache", {}, {0: [PLANE]}, iter([[PLANE]]), object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_of_layers_is_refused_by_value(kvcache):
    assert "kvcache must be a list of layers" in refusal(kvcache)


def test_a_tensor_in_place_of_the_layers_is_refused_with_its_shape():
    assert "not a tensor of [2, 4, 1, 8]" in refusal(PLANE)


def test_a_tensor_in_place_of_a_layer_is_refused_by_position():
    text = refusal([[PLANE], PLANE])
    assert "kvcache[1] must be a list of tensors" in text
    assert "[2, 4, 1, 8]" in text


@pytest.mark.parametrize(
    ("kvcache", "where"), [([], "kvcache is empty"), ([[PLANE], []], "kvcache[1] is empty")]
)
def test_an_empty_level_is_refused_by_position(kvcache, where):
    assert where in refusal(kvcache)


@pytest.mark.parametrize("value", [None, 3, [PLANE], PLANE.numpy()], ids=lambda v: type(v).__name__)
def test_what_is_no_tensor_is_refused_by_position(value):
    assert "kvcache[0][1] must be a torch.Tensor" in refusal([[PLANE, value]])


def test_a_sparse_tensor_is_refused_by_position():
    assert "kvcache[0][0] must be a dense tensor" in refusal([[PLANE[:, :, 0].to_sparse()]])


def test_a_cpu_tensor_is_read_as_what_it_is():
    [[facts]] = read_kvcache([[PLANE]])
    assert (facts.device, facts.dtype, facts.itemsize) == ("cpu", "float16", 2)
    assert facts.shape == (2, 4, 1, 8)


def test_tuples_are_as_good_as_lists():
    assert len(read_kvcache(((PLANE, PLANE), (PLANE,)))[0]) == 2


def test_an_npu_tensor_is_read_with_the_address_and_strides_of_the_view():
    whole = torch.zeros(3, 4, 2, 8, dtype=torch.bfloat16, device="npu:1")
    [[facts]] = read_kvcache([[whole[1:, :, :, :4]]])
    assert (facts.device, facts.dtype, facts.itemsize) == ("npu:1", "bfloat16", 2)
    assert facts.shape == (2, 4, 2, 4)
    assert facts.strides == (64, 16, 8, 1)
    assert facts.address == whole.data_ptr() + 64 * 2
    assert facts.npu_format in {0, 2}
