"""kind: the lab's cluster where a Docker engine answers, or where one is asked for."""
