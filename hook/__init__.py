"""reassert: enforce the env and mounts that a Kubernetes node reserves, before a container starts."""

__version__ = "0.4.0"
