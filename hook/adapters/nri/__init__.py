"""The NRI plugin: the same decision, taken in a process that stays and that the container engine asks.

NRI is containerd's and CRI-O's Node Resource Interface. Nothing here is on the start path (hook/start.py).
"""
