"""Benchmarks of the operator's judgement on the lab engine's own scheduler, in virtual time."""
