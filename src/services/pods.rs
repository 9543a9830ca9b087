//! The collector's pods, looked up at the API server.

use eadt_collector::kubelet::holders::PodKey;
use eadt_collector::kubelet::owners::{PodFacts, PodFactsLookup};
use eadt_collector::source::BoxFuture;
use eadt_kubernetes::api::pods::PodFactsReader;

/// Finds the workloads of pods by their owners.
#[derive(Debug)]
pub struct OwnerByApiServer(PodFactsReader);

impl OwnerByApiServer {
    pub fn new(pods: PodFactsReader) -> Self {
        Self(pods)
    }
}

impl PodFactsLookup for OwnerByApiServer {
    fn facts<'a>(&'a self, pod: &'a PodKey) -> BoxFuture<'a, Result<PodFacts, String>> {
        Box::pin(async move {
            let found = self.0.facts(&pod.namespace, &pod.name).await?;
            Ok(PodFacts { workload: found.workload, uid: found.uid, mps_thread_percentage: found.mps_thread_percentage })
        })
    }
}
