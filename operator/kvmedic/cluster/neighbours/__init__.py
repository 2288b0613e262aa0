"""What else acts on a target, or is bound to it: what applies it, what scales it, policies on its pods."""
