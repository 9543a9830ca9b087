//! The kubelet's pod-resources API, version 1, over its socket.
//!
//! The messages are those of `k8s.io/kubelet/pkg/apis/podresources/v1` with the fields that are read here; unknown ones are
//! skipped, as protocol buffers have it. Version 1 has `List`, `GetAllocatableResources` and `Get`, and no watch.

use std::path::Path;
use std::time::Duration;

use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// The service's name on the wire.
pub const SERVICE: &str = "v1.PodResourcesLister";
const LIST: &str = "/v1.PodResourcesLister/List";
const ALLOCATABLE: &str = "/v1.PodResourcesLister/GetAllocatableResources";
/// Largest answer: the kubelet's own clients allow as much.
const ANSWER_BYTES: usize = 16 << 20;

/// Request without fields.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct EmptyRequest {}

/// Every pod with resources on this node.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListPodResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub pod_resources: Vec<PodResources>,
}

/// One pod.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PodResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(message, repeated, tag = "3")]
    pub containers: Vec<ContainerResources>,
}

/// One of its containers.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerResources {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, repeated, tag = "2")]
    pub devices: Vec<ContainerDevices>,
    /// Resources from DRA drivers.
    #[prost(message, repeated, tag = "5")]
    pub dynamic_resources: Vec<DynamicResource>,
}

/// Devices of one resource.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerDevices {
    /// `nvidia.com/gpu`, `nvidia.com/gpu.shared`, `nvidia.com/mig-1g.10gb`, …
    #[prost(string, tag = "1")]
    pub resource_name: String,
    /// Ids that the device plugin gives: `GPU-…`, `GPU-…::3`, `MIG-…`.
    #[prost(string, repeated, tag = "2")]
    pub device_ids: Vec<String>,
}

/// A resource claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DynamicResource {
    #[prost(message, repeated, tag = "4")]
    pub claim_resources: Vec<ClaimResource>,
}

/// A device of a resource claim.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ClaimResource {
    /// `gpu.nvidia.com` for NVIDIA's driver.
    #[prost(string, tag = "2")]
    pub driver_name: String,
    /// `gpu-0`, `gpu-0-mig-…`: a name, not a UUID.
    #[prost(string, tag = "4")]
    pub device_name: String,
}

/// Every device that pods may get.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AllocatableResourcesResponse {
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<ContainerDevices>,
}

/// A connection to the kubelet. A caller whose request fails replaces it.
#[derive(Debug, Clone)]
pub struct KubeletClient {
    channel: Channel,
}

impl KubeletClient {
    /// Connects to the socket.
    pub async fn connect(socket: &Path, timeout: Duration) -> Result<Self, String> {
        let address = format!("unix://{}", socket.display());
        let endpoint = Endpoint::from_shared(address).map_err(|error| format!("not a socket's path: {error}"))?;
        let endpoint = endpoint.connect_timeout(timeout).timeout(timeout);
        let connecting = endpoint.connect();
        let channel = tokio::time::timeout(timeout, connecting).await;
        match channel {
            Ok(Ok(channel)) => Ok(Self { channel }),
            Ok(Err(error)) => Err(chain(&error)),
            Err(_) => Err(format!("no answer within {timeout:?}")),
        }
    }

    async fn call<A: prost::Message + Default + 'static>(&self, path: &'static str) -> Result<A, String> {
        let mut client = tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES);
        client.ready().await.map_err(|error| chain(&error))?;
        let codec: ProstCodec<EmptyRequest, A> = ProstCodec::default();
        let answer = client.unary(tonic::Request::new(EmptyRequest {}), PathAndQuery::from_static(path), codec).await;
        answer.map(tonic::Response::into_inner).map_err(|status| format!("{}: {}", status.code(), status.message()))
    }

    /// Returns the pods of the node and the devices that they hold.
    pub async fn list(&self) -> Result<ListPodResourcesResponse, String> {
        self.call(LIST).await
    }

    /// Returns the devices that pods may get; of a shared GPU every replica.
    pub async fn allocatable(&self) -> Result<AllocatableResourcesResponse, String> {
        self.call(ALLOCATABLE).await
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
