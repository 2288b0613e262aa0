"""What containers of replicas tell where no series does: their logs, and `nvidia-smi` run in them."""
