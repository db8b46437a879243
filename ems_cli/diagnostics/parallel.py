"""Which part of a model one rank of an inference engine holds."""

from dataclasses import dataclass

from ems_cli.diagnostics.bad_input import BadInput


@dataclass(frozen=True, slots=True)
class Parallel:
    """One rank among `tp` x `pp`; ranks of a pipeline stage are neighbours.

    `rank` is the global rank, `pp_rank * tp + tp_rank`, as vLLM and Megatron count them.
    """

    tp: int = 1
    pp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        """Refuse a rank that the two sizes do not have.

        Raises:
            BadInput: a size is below 1, or the rank is not one of `tp * pp`.
        """
        for option, size in (("--tp", self.tp), ("--pp", self.pp)):
            if size < 1:
                raise BadInput(f"{size} is not a number of ranks; at least 1", option=option)
        if not 0 <= self.rank < self.tp * self.pp:
            last = self.tp * self.pp - 1
            raise BadInput(
                f"rank {self.rank} does not exist with --tp {self.tp} --pp {self.pp}; 0 to {last}",
                option="--rank",
            )

    @property
    def tp_rank(self) -> int:
        """The rank's place among those that share its layers."""
        return self.rank % self.tp

    @property
    def pp_rank(self) -> int:
        """The rank's pipeline stage."""
        return self.rank // self.tp

    @property
    def is_last_stage(self) -> bool:
        """Whether the rank is in the last stage, which holds the MTP layers."""
        return self.pp_rank == self.pp - 1

    def heads_of(self, heads: int) -> int:
        """Return how many of `heads` KV heads each rank holds.

        Fewer heads than ranks are replicated, one to a rank.

        Raises:
            BadInput: the heads cannot be dealt out evenly.
        """
        if heads % self.tp and self.tp % heads:
            raise BadInput(
                f"{self.tp} ranks cannot share {heads} KV heads evenly; one number must be a"
                " multiple of the other",
                option="--tp",
            )
        return max(1, heads // self.tp)

    def layers_of(self, layers: int) -> range:
        """Return which of a model's `layers` the rank's stage holds.

        Layers left over by an uneven split go where vLLM puts them: one each to the stages
        before the last, going backwards, so 61 layers in 4 stages are 15, 15, 16 and 15.

        Raises:
            BadInput: there are more stages than layers.
        """
        if self.pp > layers:
            raise BadInput(f"{self.pp} stages cannot share {layers} layers", option="--pp")
        each, left_over = divmod(layers, self.pp)
        stages = [each] * self.pp
        for stage in range(left_over):
            stages[-2 - stage] += 1
        first = sum(stages[: self.pp_rank])
        return range(first, first + stages[self.pp_rank])
