"""Reports as text or JSON; nothing here calls the library's machinery."""
