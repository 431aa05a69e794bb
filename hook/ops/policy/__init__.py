"""`reassert policy`: check, show and compile the policy of a node."""
