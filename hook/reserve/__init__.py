"""What can be reserved, one file a kind: read from a rule, want, compare, apply, describe."""
