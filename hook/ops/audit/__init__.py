"""Whether the policy is in force in the containers that run on this node."""
