"""What the node says that few policies need."""
