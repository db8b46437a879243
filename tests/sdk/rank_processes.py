"""Ranks as processes, each with an NPU and an `Ems` of its own, told what to do one by one."""

import multiprocessing
import traceback

PATIENCE = 240
"""Seconds; a process imports torch first."""


class Rank:
    """A process that carries out functions of modules, in order."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()

    def start(self, function, *arguments, **keywords):
        self._pipe.send((function, arguments, keywords))

    def answer(self):
        assert self._pipe.poll(PATIENCE), "the rank does not answer"
        value, failure = self._pipe.recv()
        assert failure is None, failure
        return value

    def run(self, function, *arguments, **keywords):
        self.start(function, *arguments, **keywords)
        return self.answer()

    @property
    def runs(self):
        return self._process.is_alive()

    def end(self):
        """Let the process come to its end by itself."""
        self._pipe.send(None)
        self._process.join(PATIENCE)
        assert self._process.exitcode == 0

    def kill(self):
        self._process.kill()
        self._process.join(PATIENCE)


def each(ranks, function, *arguments, **keywords):
    """Run a function on all ranks at the same time, with their number in front."""
    for number, rank in enumerate(ranks):
        rank.start(function, number, *arguments, **keywords)
    return [rank.answer() for rank in ranks]


def _serve(pipe):
    while (order := pipe.recv()) is not None:
        function, arguments, keywords = order
        try:
            pipe.send((function(*arguments, **keywords), None))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shall see it
            pipe.send((None, traceback.format_exc()))
