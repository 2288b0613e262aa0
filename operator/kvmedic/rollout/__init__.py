"""From the fleet as it is observed to the next move of a run: pure functions, no clock."""
