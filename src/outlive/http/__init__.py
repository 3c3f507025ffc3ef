"""The HTTP edge: what clients speak, on top of the commands and the record. Nothing below imports it."""
