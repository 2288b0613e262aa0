"""What must allow a forward move; pure. Nothing here ever speaks against a way back."""
