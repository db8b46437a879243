"""One registered tensor: what was read of it, and how its blocks lie in device memory."""

from dataclasses import dataclass

FORMAT_NAMES = {
    0: "NCHW",
    1: "NHWC",
    2: "ND",
    3: "NC1HWC0",
    4: "FRACTAL_Z",
    29: "FRACTAL_NZ",
    30: "NCDHW",
    32: "NDC1HWC0",
    33: "FRACTAL_Z_3D",
}
"""NPU storage formats by the number that torch_npu reports (aclFormat of the ACL headers)."""

BASE_FORMATS = frozenset({0, 2, 30})
"""Formats whose bytes lie as the strides say: a plain 4-D tensor reports NCHW, 5-D NCDHW."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What is read of a tensor at registration, once; all later work is arithmetic on it."""

    device: str
    """As torch writes it: "npu:1", "cpu"."""
    dtype: str
    """Without the module: "float16"."""
    itemsize: int
    """Bytes of one element."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    address: int
    """Device address of the first element."""
    npu_format: int = 2
    """One of `FORMAT_NAMES`."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One registered tensor, seen as `num_blocks` equal rows of `block_size` tokens.

    A layer has one plane per tensor it registered: K and V, or MLA's latent and rope parts.
    The tensor is `[num_blocks, block_size, heads, head_size]`.
    """

    layer: int
    index: int
    """Position in its layer's list."""
    address: int
    """Device address of block 0."""
    num_blocks: int
    block_size: int
    """Tokens in a block."""
    heads: int
    head_size: int
    dtype: str
    itemsize: int
    block_stride: int
    """Bytes from one block to the next; at least `block_nbytes`."""

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.head_size * self.itemsize

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block, without padding."""
        return self.block_size * self.token_nbytes

    @property
    def end(self) -> int:
        """Device address behind the last block's bytes."""
        return self.address + (self.num_blocks - 1) * self.block_stride + self.block_nbytes

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"layer {self.layer} plane {self.index}"
