"""`reassert doctor`: is this node well, and what fixes it; and a bundle for a bug report."""
