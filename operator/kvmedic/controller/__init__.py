"""One tick: look, judge, plan, then one write or one effect."""
