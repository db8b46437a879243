"""`ems-cli` on a library whose copies exchange K and V of whole blocks: to see it found out."""

import sys

from ems.layout import part
from ems.layout.copy_plan import Spans, plan_spans
from ems_cli.__main__ import main


def exchanged(group, chunks, which, addresses, stored):
    """The spans of a plan, with K and V at each other's places in the entries."""
    spans = plan_spans(group, chunks, which, addresses, stored)
    host = spans.host.copy()
    host[0::2], host[1::2] = spans.host[1::2], spans.host[0::2]
    return Spans(spans.device, host, spans.nbytes)


if __name__ == "__main__":
    part.plan_spans = exchanged
    sys.exit(main())
