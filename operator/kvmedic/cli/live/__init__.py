"""What a person asks of fleets on a cluster, and tells the operator: states, ends, words."""
