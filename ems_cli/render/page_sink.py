"""A sink that also writes the report as a page of HTML, where that is wanted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ems.common.exception import EmsException
from ems_cli.render.sink import Report, Sink

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True)
class Page:
    """Where a page goes, and what makes it."""

    path: Path
    of: Callable[[Any], str]
    """Returns the page of a report."""


class PageSink(Sink):
    """A `Sink` with a second place for the report."""

    page: Page | None = None

    def emit(
        self, report: Report, as_text: "Callable[[Report], RenderableType]", *, width: int = 0
    ) -> None:
        """Write `report` to stdout, and the page to its file.

        Raises:
            BrokenPipeError: nobody reads stdout any more.
            EmsException: stdout or the file cannot be written, a full disk for example.
        """
        super().emit(report, as_text, width=width)
        if self.page is None:
            return
        try:
            self.page.path.write_text(self.page.of(report), encoding="utf-8")
        except OSError as error:
            raise EmsException(
                f"the page {self.page.path} could not be written: {error.strerror}"
            ) from error
        self.note(f"the report is in {self.page.path}")
