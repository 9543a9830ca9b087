//! Kubernetes behind the interface of `eadt-cluster`.
