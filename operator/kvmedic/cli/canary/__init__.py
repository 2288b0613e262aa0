"""`kvmedic judge`: a canary by saved pages of new replicas beside old ones."""
