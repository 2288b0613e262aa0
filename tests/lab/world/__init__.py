"""Whole fleets in simulated time, under arrivals that do not wait."""
