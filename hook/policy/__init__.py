"""The node policy file: schema, reading, checking, the compiled store and what a container start reads of it."""
