"""Did a change help? Pure functions on figures from before and after."""
