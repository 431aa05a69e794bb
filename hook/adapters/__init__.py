"""Doors: each turns its input into a Container and its Plan into output. None has rules of its own."""
