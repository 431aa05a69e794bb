"""Why the agent does not answer a request (docs/agent.md)."""

VERSION, OPTIONS, CALLER, POLICY, PATH, SIZE = "version", "options", "caller", "policy", "path", "size"
STAGE, MOUNT, PIPE, BUNDLE, LATE, BUSY, ERROR = "stage", "mount", "pipe", "bundle", "late", "busy", "error"
PROBE, LONG = "probe", "long"
COLD = (VERSION, OPTIONS, CALLER, POLICY, PATH, SIZE, STAGE, MOUNT, PIPE, BUNDLE, LATE, BUSY, ERROR, PROBE, LONG)
"""The agent's reasons not to answer: words of the event's `cold` (docs/agent.md). front has more of its own."""


class GoCold(BaseException):  # a BaseException: no `except Exception` may report it as an error of the container
    """The agent answers this request with "start cold". Its argument is one of COLD."""
