"""The runbook of KV compression that is on and saves no memory."""
