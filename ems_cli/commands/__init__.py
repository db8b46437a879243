"""One module per command: parse, diagnose, render, exit."""
