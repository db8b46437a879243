"""What the operations of a benchmark are called in text."""

_NAMES = {
    "memcpy": "host memcpy",
    "raw_copy_out": "raw copy out",
    "raw_copy_out_two_streams": "  two streams",
    "raw_copy_in": "raw copy in",
    "raw_copy_in_two_streams": "  two streams",
    "raw_copy_both_ways": "raw both ways",
    "async_save": "async save",
    "async_load": "async load",
    "save_and_load": "both at once",
}
LIBRARY = ("save", "load", "async_save", "async_load", "save_and_load")


def name_of(operation: str) -> str:
    """Return what an operation is called."""
    return _NAMES.get(operation, operation)
