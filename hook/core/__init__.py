"""What one must trust: the decision, its facts, the edits, and the look at the result."""
