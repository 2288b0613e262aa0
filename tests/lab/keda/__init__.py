"""Real KEDA beside a cluster; its Go module stands here too, `lab.cluster.toolchain` builds it."""
