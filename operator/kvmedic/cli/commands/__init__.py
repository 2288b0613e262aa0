"""The commands as help shows them: options, exit codes, an example. Their work is imported when they run."""
