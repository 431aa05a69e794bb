"""Adapters: each turns its input into a Container, and a Plan into its output. The policy alone has the rules."""
