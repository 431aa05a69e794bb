"""The node policy: schema and checks of the policy file, the compiler, the store, and the matching of rules."""
