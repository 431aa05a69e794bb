"""The trust store, with what tests/run.sh does not install."""
