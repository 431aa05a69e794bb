"""The program behind the command `reassert`: what a Kubernetes node reserves, put back before a container exists."""

__version__ = "0.2.0"
