"""What people ask it."""
