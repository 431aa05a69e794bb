"""From the policy file to the compiled policy in the store. It runs once per change of the file."""
