"""Is this node right: the checks, and every view of what they find."""
