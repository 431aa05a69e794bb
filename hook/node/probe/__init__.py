"""Test containers (probes): normal ones must start, and hostile ones must be corrected or refused."""
