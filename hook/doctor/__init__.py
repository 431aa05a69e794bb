"""`reassert doctor`: is this node well, and what mends it; and a bundle for a bug report."""
