//! A kubelet that speaks the real protocol on a socket of its own.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use eadt_collector::kubelet::api::{
    AllocatableResourcesResponse, ContainerDevices, ContainerResources, EmptyRequest, ListPodResourcesResponse, PodResources,
    SERVICE,
};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{BoxFuture, Service};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic_prost::ProstCodec;

/// A fake kubelet with set answers.
#[derive(Debug, Clone, Default)]
pub struct FakeKubelet(Arc<Mutex<State>>);

#[derive(Debug, Clone, Default)]
struct State {
    list: ListPodResourcesResponse,
    broken: bool,
}

struct Answer<A>(Result<A, tonic::Status>);

impl<A: Clone + Send + 'static> UnaryService<EmptyRequest> for Answer<A> {
    type Response = A;
    type Future = std::future::Ready<Result<tonic::Response<A>, tonic::Status>>;
    fn call(&mut self, _: tonic::Request<EmptyRequest>) -> Self::Future {
        std::future::ready(self.0.clone().map(tonic::Response::new))
    }
}

impl NamedService for FakeKubelet {
    const NAME: &'static str = SERVICE;
}

impl Service<Request<Body>> for FakeKubelet {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let State { list, broken } = self.0.lock().unwrap().clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                "/v1.PodResourcesLister/List" => {
                    let codec: ProstCodec<ListPodResourcesResponse, EmptyRequest> = ProstCodec::default();
                    let answer = if broken { Err(tonic::Status::unavailable("on purpose")) } else { Ok(list) };
                    Grpc::new(codec).unary(Answer(answer), request).await
                }
                "/v1.PodResourcesLister/GetAllocatableResources" => {
                    let codec: ProstCodec<AllocatableResourcesResponse, EmptyRequest> = ProstCodec::default();
                    let ids = ["GPU-fake-0", "GPU-fake-1::0", "GPU-fake-1::1"].map(str::to_owned).to_vec();
                    let devices = vec![ContainerDevices { resource_name: "nvidia.com/gpu".into(), device_ids: ids }];
                    Grpc::new(codec).unary(Answer(Ok(AllocatableResourcesResponse { devices })), request).await
                }
                other => panic!("asked for {other}"),
            })
        })
    }
}

impl FakeKubelet {
    /// Serves on a socket in this folder.
    pub fn serve(&self, folder: &Path) -> PathBuf {
        let socket = folder.join("kubelet.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let accepted = async_stream(listener);
        let service = self.clone();
        tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(accepted));
        socket
    }

    /// Name, resource and devices of each pod of a namespace.
    pub fn set(&self, namespace: &str, pods: &[(&str, &str, &[&str])]) {
        let pod = |(name, resource, ids): &(&str, &str, &[&str])| {
            let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
            let devices = vec![ContainerDevices { resource_name: (*resource).to_owned(), device_ids }];
            let container = ContainerResources { name: "main".into(), devices, dynamic_resources: Vec::new() };
            PodResources { name: (*name).to_owned(), namespace: namespace.to_owned(), containers: vec![container] }
        };
        self.0.lock().unwrap().list = ListPodResourcesResponse { pod_resources: pods.iter().map(pod).collect() };
    }

    /// Whether it answers at all.
    #[allow(dead_code, reason = "each test binary is built with all of this file and uses its own part")]
    pub fn broken(&self, broken: bool) {
        self.0.lock().unwrap().broken = broken;
    }
}

/// Connections as they come.
fn async_stream(
    listener: tokio::net::UnixListener,
) -> impl tonic::codegen::tokio_stream::Stream<Item = std::io::Result<tokio::net::UnixStream>> {
    struct Incoming(tokio::net::UnixListener);
    impl tonic::codegen::tokio_stream::Stream for Incoming {
        type Item = std::io::Result<tokio::net::UnixStream>;
        fn poll_next(self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
        }
    }
    Incoming(listener)
}
