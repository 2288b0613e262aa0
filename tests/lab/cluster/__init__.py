"""Clusters to test against: the light tier (API server and simulated pods), the native node and kind."""
