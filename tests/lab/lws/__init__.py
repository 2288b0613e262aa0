"""LeaderWorkerSet for the lab, built from its own module."""
