"""What can be reserved, one file for each step of plan(): it reads the rules, compares, applies and describes."""
