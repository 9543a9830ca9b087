//! Finds the workload of a pod by its owners at the API server, and its MPS thread percentage.
//!
//! In: namespace and name of a pod. Out: its facts, or the reason why there are none. Pods and the few kinds of their owners are
//! read one by one with `get`; nothing is listed, watched or written, so the holder of the credentials can only learn about pods
//! whose names it knows. Reads may be served from the API server's cache, so callers repeat them after a while.

mod cache;
mod chain;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject, GetParams};

use crate::api::client::error_text_with_right;
use cache::OwnerCache;
use chain::ControllerRef;
pub use chain::FOLLOWED_OWNERS;

/// One pod, owners included.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Owners on the way up; the deepest known way has four.
const MAX_OWNER_STEPS: usize = 8;
/// Owners that are remembered: a node has some hundred pods at most.
const OWNER_CACHE_SIZE: usize = 1024;
const OWNER_CACHE_TTL: Duration = Duration::from_mins(10);

/// The known facts about a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct PodFacts {
    /// `namespace/name` of the outermost owner of a kind that policies are for; of the outermost owner known, or of the pod
    /// itself, if there is none.
    pub workload: String,
    /// The pod's uid.
    pub uid: Option<String>,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` of its container with GPUs, 1 to 100; `None` if it is not set or unknown.
    pub mps_thread_percentage: Option<f64>,
}

/// Finds out about pods.
pub struct PodFactsReader {
    client: Client,
    owners: Mutex<OwnerCache>,
}

impl fmt::Debug for PodFactsReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pods").field("owners", &self.owners).finish_non_exhaustive()
    }
}

impl PodFactsReader {
    pub fn new(client: Client) -> Self {
        Self { client, owners: Mutex::new(OwnerCache::new(OWNER_CACHE_SIZE, OWNER_CACHE_TTL)) }
    }

    /// Reads the facts about a pod; the error has the reason why there are none, as text.
    pub async fn facts(&self, namespace: &str, name: &str) -> Result<PodFacts, String> {
        let what = format!("reading pod {namespace}/{name}");
        let answer = tokio::time::timeout(CALL_TIMEOUT, self.read_facts(namespace, name)).await;
        answer
            .unwrap_or_else(|_| Err(format!("no answer from the API server within {} s", CALL_TIMEOUT.as_secs())))
            .map_err(|detail| format!("{what}: {detail}"))
    }

    async fn read_facts(&self, namespace: &str, name: &str) -> Result<PodFacts, String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let pod = pods.get_with(name, &GetParams::any()).await.map_err(|error| error_text_with_right(&error, "get", "pods"))?;
        let mut owners = Vec::new();
        let mut next = ControllerRef::of(&pod.metadata);
        while let Some(owner) = next {
            if owners.len() == MAX_OWNER_STEPS {
                return Err(format!("it has more than {MAX_OWNER_STEPS} owners above each other"));
            }
            next = self.read_owner(namespace, &owner).await?;
            owners.push(owner);
        }
        let workload = format!("{namespace}/{}", chain::outermost_workload(name, &owners));
        Ok(PodFacts { workload, uid: pod.metadata.uid.clone(), mps_thread_percentage: chain::mps_thread_percentage(&pod) })
    }

    /// Returns the owner of an owner, if it matters.
    async fn read_owner(&self, namespace: &str, owner: &ControllerRef) -> Result<Option<ControllerRef>, String> {
        let Some(resource) = owner.resource() else { return Ok(None) };
        let known = self.owners.lock().unwrap_or_else(PoisonError::into_inner).get(&owner.uid, Instant::now());
        if let Some(known) = known {
            return Ok(known);
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let metadata = api.get_metadata_with(&owner.name, &GetParams::any()).await;
        let metadata = metadata.map_err(|error| {
            let text = error_text_with_right(&error, "get", &resource.plural);
            format!("its {} {}: {text}", owner.kind, owner.name)
        })?;
        // Another object of the same name does not give the owner of this one.
        if metadata.metadata.uid.as_deref() != Some(&*owner.uid) {
            return Err(format!("its {} {} is gone, and another of that name is there", owner.kind, owner.name));
        }
        let above = ControllerRef::of(&metadata.metadata);
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).put(&owner.uid, above.clone(), Instant::now());
        Ok(above)
    }
}
