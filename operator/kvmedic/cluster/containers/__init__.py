"""What containers of replicas show where no series does: their logs, and `nvidia-smi` run in them."""
