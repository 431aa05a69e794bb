"""containerd 1.6, 1.7 and 2.x: its effective configuration and its configuration files."""
