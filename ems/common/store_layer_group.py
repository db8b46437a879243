"""How the layers of a model are grouped for storing."""

from dataclasses import dataclass


@dataclass
class StoreLayerGroupDesc:
    """One group of layers that are stored alike: one entry of the pool per hash and group.

    The groups passed to `register_kvcache` partition the layers. The SDK documents the two fields
    and not their meaning for a mixed model; this is our reading of it.
    """

    store_block_size: int
    """The most tokens that one hash keeps of these layers; a multiple or a part of Block_size."""
    layer_ids: list[int]
    """Positions in the outer list of `kvcache`."""
    window: int | None = None
    """Tokens that a layer of sliding-window attention looks back; our extension. A prefix can be
    used if this group has its last `window` tokens. None: the group needs the whole prefix."""
