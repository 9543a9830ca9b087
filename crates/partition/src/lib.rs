//! How to share a GPU: Extra Trees and the choice of SM partitions. Pure.
