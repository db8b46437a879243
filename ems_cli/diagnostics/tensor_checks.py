"""Checks of each tensor of a cache by itself, and the form in which all checks see a tensor."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ems.layout.plane import BASE_FORMATS, FORMAT_NAMES, Plane, TensorFacts
from ems_cli.diagnostics.check import Check, Verdict, passed
from ems_cli.diagnostics.dtypes import ITEMSIZE

BURST_NBYTES: Final = 512
"""What an NPU's memory moves at once; torch_npu allocates on such boundaries."""
PAGE_NBYTES: Final = 2 << 20
"""The NPU's large page: transports that register device memory ask for it."""
_DIMENSIONS = 4
_LAST_ADDRESS = 1 << 63
_BITS_32 = 1 << 32


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a layer, as far as it can be understood."""

    layer: int
    index: int
    facts: TensorFacts
    shape: tuple[int, ...]
    """Four dimensions where the tensor has three: heads of one."""
    strides: tuple[int, ...]

    @property
    def where(self) -> str:
        """How messages call it."""
        return f"layer {self.layer} plane {self.index}"

    @property
    def has_blocks(self) -> bool:
        """Whether it can be read as `[num_blocks, block_size, heads, head_size]`."""
        return len(self.shape) == _DIMENSIONS and min(self.shape) > 0

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block, if it has any."""
        _, tokens, heads, size = self.shape
        return tokens * heads * size * self.facts.itemsize

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next."""
        blocks = self.shape[0]
        return self.strides[0] * self.facts.itemsize if blocks > 1 else self.block_nbytes

    def as_plane(self) -> Plane:
        """Return it as a plane, without judging it."""
        blocks, tokens, heads, size = self.shape
        facts = self.facts
        return Plane(
            self.layer,
            self.index,
            facts.address,
            blocks,
            tokens,
            heads,
            size,
            facts.dtype,
            facts.itemsize,
            self.block_stride,
        )


def tensors_of(kvcache: Sequence[Sequence[TensorFacts]]) -> list[Tensor]:
    """Return all tensors of layers × planes in one list."""
    return [
        Tensor(layer, index, facts, *_four_dimensions(facts))
        for layer, planes in enumerate(kvcache)
        for index, facts in enumerate(planes)
    ]


def _four_dimensions(facts: TensorFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if len(facts.shape) != _DIMENSIONS - 1:
        return facts.shape, facts.strides
    blocks, tokens, width = facts.shape
    return (blocks, tokens, 1, width), (*facts.strides[:2], width, facts.strides[2])


def tensor_checks(tensors: Sequence[Tensor]) -> list[Check]:
    """Return the checks that look at one tensor at a time."""
    return [_judged(rule, tensors) for rule in _RULES]


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    wanted: str
    fix: str
    verdict: Verdict
    """When a tensor breaks it."""
    problem: Callable[[Tensor], str]
    """What is wrong with a tensor; empty when nothing is."""
    found: Callable[[Tensor], str]
    """What is shown of tensors that are right."""


def _judged(rule: _Rule, tensors: Sequence[Tensor]) -> Check:
    problems = [(tensor, text) for tensor in tensors if (text := rule.problem(tensor))]
    if not problems:
        return passed(rule.name, distinct(rule.found(tensor) for tensor in tensors), rule.wanted)
    found = and_others(f"{problems[0][0].where}: {problems[0][1]}", len(problems) - 1)
    return Check(rule.name, rule.verdict, found, rule.wanted, rule.fix)


def distinct(texts: Iterable[str], most: int = 3) -> str:
    """Return the different texts, in their order, the rest of many only counted."""
    found = list(dict.fromkeys(text for text in texts if text))
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def and_others(text: str, others: int) -> str:
    """Return `text`, with how many others are like it."""
    return f"{text}; and {others} more" if others else text


def _dimensions(tensor: Tensor) -> str:
    rank = len(tensor.facts.shape)
    if rank not in {_DIMENSIONS - 1, _DIMENSIONS}:
        return f"{rank} dimensions, {list(tensor.facts.shape)}"
    return "" if min(tensor.shape) > 0 else f"empty, {list(tensor.facts.shape)}"


def _is_dense(tensor: Tensor) -> bool:
    _, _, heads, size = tensor.shape
    dense = (heads * size, size, 1)
    return all(
        n == 1 or s == d
        for n, s, d in zip(tensor.shape[1:], tensor.strides[1:], dense, strict=True)
    )


def _rows(tensor: Tensor) -> str:
    if not tensor.has_blocks or _is_dense(tensor):
        return ""
    return f"strides {list(tensor.facts.strides)} of shape {list(tensor.facts.shape)}"


def _stride(tensor: Tensor) -> str:
    if not tensor.has_blocks or tensor.block_stride >= tensor.block_nbytes:
        return ""
    return f"blocks of {tensor.block_nbytes} B every {tensor.block_stride} B overlap"


def _stride_found(tensor: Tensor) -> str:
    if not tensor.has_blocks:
        return ""
    padding = tensor.block_stride - tensor.block_nbytes
    return f"{tensor.block_stride} B" + (f" ({padding} B padding)" if padding else "")


def _format(tensor: Tensor) -> str:
    return "" if tensor.facts.npu_format in BASE_FORMATS else _format_name(tensor)


def _format_name(tensor: Tensor) -> str:
    number = tensor.facts.npu_format
    return FORMAT_NAMES.get(number, f"number {number}")


def _dtype(tensor: Tensor) -> str:
    size = ITEMSIZE.get(tensor.facts.dtype)
    if size is None:
        return f"{tensor.facts.dtype} is unusual"
    return "" if size == tensor.facts.itemsize else f"{tensor.facts.itemsize} B per element"


def _burst(tensor: Tensor) -> str:
    address, stride = tensor.facts.address, tensor.block_stride if tensor.has_blocks else 0
    if address % BURST_NBYTES:
        return f"starts at {address:#x}, {address % BURST_NBYTES} B off"
    return f"a block every {stride} B" if stride % BURST_NBYTES else ""


def _page(tensor: Tensor) -> str:
    off = tensor.facts.address % PAGE_NBYTES
    return f"starts {off} B behind a boundary" if off else ""


def _addresses(tensor: Tensor) -> str:
    address = tensor.facts.address
    end = tensor.as_plane().end if tensor.has_blocks else address
    return "" if address > 0 and end <= _LAST_ADDRESS else f"{address:#x} to {end:#x}"


def _reach(tensor: Tensor) -> str:
    if not tensor.has_blocks:
        return ""
    nbytes = tensor.as_plane().end - tensor.facts.address
    return "offsets beyond 32 bits" if nbytes > _BITS_32 else "offsets within 32 bits"


_RULES: Final = (
    _Rule(
        "dimensions",
        "4: [num_blocks, block_size, heads, head_size]",
        "register K and V as two tensors of four dimensions",
        Verdict.FAIL,
        _dimensions,
        lambda tensor: f"{len(tensor.facts.shape)}-D",
    ),
    _Rule(
        "dense rows",
        "a block's bytes in one piece, row-major",
        "allocate it in this order; a permuted view's .contiguous() is a copy",
        Verdict.FAIL,
        _rows,
        lambda tensor: "dense" if tensor.has_blocks else "",
    ),
    _Rule(
        "block stride",
        "at least a block's bytes",
        "do not register an expanded or overlapping view",
        Verdict.FAIL,
        _stride,
        _stride_found,
    ),
    _Rule(
        "format",
        "ND: bytes as the strides say",
        "torch_npu.npu_format_cast(tensor, 2) before registering",
        Verdict.FAIL,
        _format,
        lambda tensor: "ND" if tensor.facts.npu_format in BASE_FORMATS else "",
    ),
    _Rule(
        "element type",
        "one of " + ", ".join(ITEMSIZE),
        "register the cache itself, not an index or a mask",
        Verdict.WARN,
        _dtype,
        lambda tensor: tensor.facts.dtype,
    ),
    _Rule(
        "512 B alignment",
        "tensors and blocks start on 512 B",
        "a block size of more tokens, or head sizes of 128 or more; short spans copy slowly",
        Verdict.WARN,
        _burst,
        lambda _: "all aligned",
    ),
    _Rule(
        "2 MiB alignment",
        "tensors start on 2 MiB",
        "only transports that register device memory need it: allocate 2 MiB more and slice",
        Verdict.WARN,
        _page,
        lambda _: "all aligned",
    ),
    _Rule(
        "addresses",
        "above 0 and below 2^63",
        "register tensors that own device memory",
        Verdict.FAIL,
        _addresses,
        _reach,
    ),
)
