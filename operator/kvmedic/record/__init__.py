"""What is left behind for people: status, conditions, Events, metrics."""
