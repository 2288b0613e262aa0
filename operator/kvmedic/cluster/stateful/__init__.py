"""StatefulSets: how one is read as a fleet, and the writes on it and its pods that a Deployment has not."""
