"""Containers that are started to be looked at: that they run, and that hostile ones are put right."""
