"""What is out of a pool's hands: places being filled, entries being read."""

import threading
from collections.abc import Sequence

from ems.common.exception import EmsException
from ems.pool.base import Held, Place
from ems.pool.extents import aligned


class Desk:
    """Counts what has been handed out and comes back."""

    def __init__(self) -> None:
        self.reserved_nbytes = 0
        self.held_nbytes = 0
        self._lock = threading.Lock()
        self._places: dict[int, tuple[Place, float | None]] = {}
        self._held: dict[int, tuple[Held, int]] = {}

    def reserve(self, places: Sequence[Place], deadline: float | None) -> None:
        """Note that places were handed out to a request with that deadline."""
        with self._lock:
            for place in places:
                self._places[place.address] = place, deadline
                self.reserved_nbytes += aligned(place.nbytes)

    def take_back(self, places: Sequence[Place]) -> float | None:
        """Note that places came back, and return the deadline of their request.

        Raises:
            EmsException: some were not out; the others have been taken back.
        """
        deadline, unknown = None, []
        with self._lock:
            for place in places:
                known, its_deadline = self._places.get(place.address, (None, None))
                if known is not place:
                    unknown.append(place)
                    continue
                deadline = its_deadline
                del self._places[place.address]
                self.reserved_nbytes -= aligned(place.nbytes)
        _refuse(unknown)
        return deadline

    def hold(self, held: Sequence[Held]) -> None:
        """Note that entries were handed out, each as often as it occurs."""
        with self._lock:
            for one in held:
                _, count = self._held.get(one.address, (one, 0))
                self._held[one.address] = one, count + 1
                self.held_nbytes += aligned(one.nbytes) * (count == 0)

    def release(self, held: Sequence[Held]) -> list[Held]:
        """Note that entries came back, and return those that are out no more.

        Raises:
            EmsException: some were not out.
        """
        free, unknown = [], []
        with self._lock:
            for one in held:
                known, count = self._held.get(one.address, (None, 0))
                if known != one:
                    unknown.append(one)
                elif count > 1:
                    self._held[one.address] = one, count - 1
                else:
                    del self._held[one.address]
                    self.held_nbytes -= aligned(one.nbytes)
                    free.append(one)
        _refuse(unknown)
        return free


def _refuse(unknown: Sequence[Place | Held]) -> None:
    if unknown:
        first = unknown[0]
        raise EmsException(
            f"{len(unknown)} entries came back that the pool did not hand out, or that are back "
            f"already; the first is {first.key} at {first.address:#x}"
        )
