"""containerd 1.6, 1.7 and 2.x: its configuration as it understands it, and its files."""
