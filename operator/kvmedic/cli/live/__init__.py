"""A person's questions about fleets on a cluster, and commands to the operator: states, ends, words."""
