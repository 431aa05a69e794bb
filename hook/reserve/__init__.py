"""What can be reserved, one file for each kind: it reads the rule, compares, applies and describes."""
