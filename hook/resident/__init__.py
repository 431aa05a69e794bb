"""What processes that run for long have: the policy in memory, metrics, the operation log, systemd."""
