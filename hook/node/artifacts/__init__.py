"""Generators of files for container engines: the dispatcher script, hook entries, CDI specs."""
