"""StatefulSets: the same steps on them, one ordinal after the other and one replica short."""
