"""Adapters: each turns its input into a Container, and a Plan into its output. The policy alone has the rules."""

COMMANDS = ("runtime", "hook")
"""The commands that run during a container start, in hook/start.py. hook/cli.py has all others."""
