"""What a policy does with a pod that does not run: a pod's YAML as containers, cases beside a policy, and reports."""
