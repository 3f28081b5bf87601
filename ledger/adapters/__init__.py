"""One driver a file; nothing outside a composition root imports these."""
