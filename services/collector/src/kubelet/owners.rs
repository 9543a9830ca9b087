//! The workload of a pod. A lookup with access to the API server reads it from owner references; otherwise it comes from the
//! name.

use std::fmt;

use eadt_recordings::series::{PodRule, is_workload, owner};

use super::holders::PodKey;
use crate::source::BoxFuture;

/// Known facts of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// `namespace/name` of the outermost owner that scales.
    pub workload: String,
    /// UID of the pod; `None` if unknown.
    pub uid: Option<String>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of its container with GPUs; `None` if it is not set or unknown.
    pub mps_thread_percentage: Option<f64>,
}

/// Looks up facts of pods.
pub trait PodFactsLookup: Send + Sync + fmt::Debug {
    /// Called once a minute for each pod that holds a GPU, and sooner after a failure. The implementation bounds the time. The
    /// error is a text that states the reason.
    fn facts<'a>(&'a self, pod: &'a PodKey) -> BoxFuture<'a, Result<PodFacts, String>>;
}

/// Reads the owner off the pod's name, as Kubernetes forms it; needs no API server and no rights.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnerByPodName(pub PodRule);

impl PodFactsLookup for OwnerByPodName {
    fn facts<'a>(&'a self, pod: &'a PodKey) -> BoxFuture<'a, Result<PodFacts, String>> {
        let name = match self.0 {
            PodRule::Owner => owner(&pod.name),
            PodRule::Pod => &pod.name,
            PodRule::Ignore => "",
        };
        let workload = format!("{}/{name}", pod.namespace);
        let facts = if is_workload(&workload) {
            Ok(PodFacts { workload, uid: None, mps_thread_percentage: None })
        } else {
            Err("pods are ignored, or the name is not one of Kubernetes".to_owned())
        };
        Box::pin(async move { facts })
    }
}
