"""Whether one replica more finds a place in the cluster, and what a fleet does where it finds none."""
