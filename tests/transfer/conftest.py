import pytest
from transfer_fakes import OPENED


@pytest.fixture(autouse=True)
def close_what_was_opened():
    """Leave no threads to the next test."""
    yield
    while OPENED:
        OPENED.pop().close()
