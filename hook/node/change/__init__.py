"""A change of this node that is made whole or not at all, and the record of it."""
