"""What container engines are given to read or to call."""
