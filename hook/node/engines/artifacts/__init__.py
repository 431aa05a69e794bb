"""Files that reassert generates and that engines call or read."""
