"""What the replicas export, as readings: from Prometheus, or scraped from a replica directly.

Nothing here judges, and nothing here raises because a source is down: what is not known is a reading
that says why.
"""
