"""Where entries live: the engine interface, its implementations and their registry."""
