"""Adapters: each turns its input into a Container, and a Plan into its output. The policy alone has the rules."""

COMMANDS = ("runtime", "hook")
"""The commands that run during a container start, in hook/start.py. hook/cli.py has all others."""

SENTRY = "/dev/null"
"""The value of `runtime --hook` in front of runsc. gVisor's kernel, the sentry, mounts what config.json lists, in
memory of its own, where no hook can look. The dispatcher says so (hook.entry.dispatcher.is_gvisor)."""
