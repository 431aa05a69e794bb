"""The program behind the command `reassert`: puts what a node reserves back before a container starts."""

__version__ = "0.2.0"
