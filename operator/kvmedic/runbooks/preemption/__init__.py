"""The runbook of KV-cache preemption thrash and out-of-memory."""
