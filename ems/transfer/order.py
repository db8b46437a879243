"""Which task may run next: after the caller's work, and after earlier tasks it depends on.

Two tasks must keep their order if they share a hash, unless both load, or a place in device
memory, unless both save. Otherwise a save followed at once by a load of the same hashes would miss.
"""

import threading
from collections import deque
from collections.abc import Hashable, Iterable

from ems.common.exception import EmsException
from ems.device.base import Direction
from ems.transfer.naps import naps
from ems.transfer.task import Task, failure_of

_LOOK_SECONDS = 1.0
"""How often an idle worker looks by itself: who submitted may have been interrupted in the act."""


class _Users:
    """The unfinished tasks that use a resource, by resource."""

    def __init__(self, harmless: Direction) -> None:
        self._harmless = harmless
        self._tasks: dict[Hashable, list[Task]] = {}

    def add(self, task: Task, resources: Iterable[Hashable]) -> None:
        """Add a task; what it must wait for is added to its blockers."""
        shares = task.direction is self._harmless
        for resource in resources:
            users = self._tasks.setdefault(resource, [])
            for user in users:
                if user is not task and not (shares and user.direction is self._harmless):
                    task.blockers.add(user)
            users.append(task)

    def discard(self, task: Task, resources: Iterable[Hashable]) -> None:
        """Forget a task."""
        for resource in resources:
            users = self._tasks[resource]
            users.remove(task)
            if not users:
                del self._tasks[resource]


class Order:
    """The tasks that are not finished yet, and which of them is next."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._came = {way: threading.Condition(self._lock) for way in Direction}
        """For the worker of each direction: something for it may have changed."""
        self._ended = threading.Condition(self._lock)
        self._arrived: deque[Task] = deque()
        """Submitted; their dependencies are looked up by a worker, not by the caller."""
        self._waiting: dict[Direction, list[Task]] = {way: [] for way in Direction}
        self._unfinished: list[Task] = []
        """Admitted, in the order of submission."""
        self._alone: Task | None = None
        """One without others, whose uses need not be known until another comes."""
        self._by_key = _Users(Direction.IN)
        self._by_place: dict[Hashable, _Users] = {}
        self._closed = False

    def submit(self, task: Task) -> None:
        """Add a task behind all others."""
        task.outcome.when_overdue = lambda: self._expire(task)
        with self._lock:
            if self._closed:
                raise EmsException("the context cache has been shut down")
            self._arrived.append(task)
            self._came[task.direction].notify()  # the other one has nothing to gain from it

    def next(self, direction: Direction) -> Task | None:
        """Wait for a task of this direction that may run, and return it; None after `close`."""
        with self._lock:
            pause = naps()
            while True:
                self._admit(direction)
                task, looked = self._first_ready(direction)
                if task is not None:
                    return task
                if self._closed and not self._waiting[direction]:
                    return None
                if not looked:  # nothing that the NPU could change
                    pause = naps()
                self._came[direction].wait(next(pause) if looked else _LOOK_SECONDS)

    def finish(self, task: Task) -> None:
        """Forget a task that `next` returned, and let those run that waited for it."""
        with self._lock:
            self._forget(task)

    def wait_idle(self, seconds: float | None) -> bool:
        """Wait until every submitted task has finished; return whether they have."""
        with self._lock:
            return self._ended.wait_for(lambda: not self._arrived and not self._unfinished, seconds)

    def fail_waiting(self, failure: EmsException) -> int:
        """End all tasks that have not begun, and let none start another copy; return how many."""
        with self._lock:
            self._admit()
            unfinished = len(self._unfinished)
            for task in [task for tasks in self._waiting.values() for task in tasks]:
                self._end(task, failure)
            for task in self._unfinished:
                task.outcome.deadline = task.submitted
            return unfinished

    def close(self) -> None:
        """Take no more tasks; `next` returns None when those submitted have been returned."""
        with self._lock:
            self._closed = True
            for came in self._came.values():
                came.notify()

    def _admit(self, admitter: Direction | None = None) -> None:
        """Work out the dependencies of what has arrived, for the worker of a direction, or all."""
        while self._arrived:
            task = self._arrived.popleft()
            if self._alone is not None:
                self._note_alone(task)
            if not self._unfinished:
                self._alone = task
            elif (failure := self._note(task)) is not None:
                task.outcome.end(failure)
                continue
            self._unfinished.append(task)
            self._waiting[task.direction].append(task)
            if admitter is not task.direction:
                self._came[task.direction].notify()

    def _note_alone(self, task: Task) -> None:
        """Work out what the only unfinished task uses, now that `task` comes behind it."""
        alone = self._alone
        if alone is None or (failure := self._note(alone)) is None:
            self._alone = None
        elif alone in self._waiting[alone.direction]:
            self._end(alone, failure)
        else:
            task.blockers.add(alone)  # whatever it uses

    def _note(self, task: Task) -> EmsException | None:
        """Add a task to the users of all it uses; return why that cannot be told, if so."""
        try:
            keys, places = set(task.parts[0].keys), [part.places for part in task.parts]
        except Exception as error:  # noqa: BLE001 - a worker must outlive every task
            return failure_of(error)
        self._by_key.add(task, keys)
        for part, mine in zip(task.parts, places, strict=True):
            self._by_place.setdefault(part.space, _Users(Direction.OUT)).add(task, mine)
        return None

    def _first_ready(self, direction: Direction) -> tuple[Task | None, bool]:
        """Return the first task that may run, and whether some wait for the NPU alone."""
        behind: set[Hashable] = set()
        for task in list(self._waiting[direction]):
            if task.outcome.overdue:
                self._end(task, task.timeout("waiting for the NPU or for earlier requests"))
            elif not task.blockers and task.caller_work.source not in behind:
                try:
                    finished = task.caller_work.finished()
                except Exception as error:  # noqa: BLE001 - a worker must outlive every task
                    self._end(task, failure_of(error))
                    continue
                if finished:
                    self._waiting[direction].remove(task)
                    return task, True
                behind.add(task.caller_work.source)
        return None, bool(behind)

    def _expire(self, task: Task) -> None:
        """End a task that has not begun, though its worker is busy.

        On a thread of its own: whoever asks may be interrupted at any point (KeyboardInterrupt),
        which would lose tasks of others that are half admitted, or half forgotten.
        """
        with self._lock:
            if task not in self._arrived and task not in self._waiting[task.direction]:
                return
        thread = threading.Thread(
            target=self._end_overdue, args=(task,), name="ems-overdue", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # there can be no more threads, as at the interpreter's end
            self._end_overdue(task)
        else:
            thread.join()

    def _end_overdue(self, task: Task) -> None:
        with self._lock:
            self._admit()
            if task in self._waiting[task.direction]:
                self._end(task, task.timeout("waiting for the NPU or for earlier requests"))

    def _end(self, task: Task, failure: EmsException) -> None:
        self._waiting[task.direction].remove(task)
        self._forget(task)
        task.outcome.end(failure)
        self._came[task.direction].notify()

    def _forget(self, task: Task) -> None:
        self._unfinished.remove(task)
        if task is self._alone:
            self._alone = None
        else:
            self._by_key.discard(task, set(task.parts[0].keys))
            for part in task.parts:
                self._by_place[part.space].discard(task, part.places)
        for other in self._unfinished:
            if task in other.blockers:
                other.blockers.remove(task)
                self._came[other.direction].notify()
        if not self._unfinished:
            self._ended.notify_all()
