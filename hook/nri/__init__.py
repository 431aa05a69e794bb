"""The NRI plugin: a long-running process that the container engine asks about each container.

NRI is the Node Resource Interface of containerd and CRI-O. The plugin decides as all adapters do (hook.core.decide).
Nothing here is on the start path (hook/start.py).
"""
