"""How each engine is wired: what it reads, and what stands in it."""
