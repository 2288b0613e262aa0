"""Whole runs on the light tier whose operator is killed at random moments, compared with undisturbed ones."""
