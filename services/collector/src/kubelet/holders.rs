//! Holders of each GPU, from the kubelet's list. Pure.

use std::collections::BTreeMap;

use super::api::{AllocatableResourcesResponse, ListPodResourcesResponse};

/// A pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodKey {
    pub namespace: String,
    pub name: String,
}

/// The share of a pod in one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodAllocation {
    pub pod: PodKey,
    /// Replicas of a shared device; 0: the device itself.
    pub replicas: u32,
}

/// Devices and the pods that hold them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceAllocations {
    /// Allocations by UUID of a GPU or a MIG instance, in the order of the pods' names.
    pub by_device: BTreeMap<String, Vec<PodAllocation>>,
    /// Pods with GPUs whose UUID the kubelet does not report: claims of DRA drivers, and plugins that name devices by index.
    pub nameless: Vec<(PodKey, String)>,
}

/// NVIDIA's device plugin names replicas of a shared GPU `UUID::N`.
const REPLICA: &str = "::";

/// Returns the UUID and whether it is a replica; `None` if it is not a UUID.
fn device(id: &str) -> Option<(&str, bool)> {
    let (uuid, shared) = match id.split_once(REPLICA) {
        Some((uuid, replica)) if !replica.is_empty() && replica.bytes().all(|b| b.is_ascii_digit()) => (uuid, true),
        Some(_) => return None,
        None => (id, false),
    };
    (uuid.starts_with("GPU-") || uuid.starts_with("MIG-")).then_some((uuid, shared))
}

/// Returns the holders. `resources`: prefixes of the names that GPUs have, `nvidia.com/` for example.
pub fn holders(list: &ListPodResourcesResponse, resources: &[String]) -> DeviceAllocations {
    let mut all = DeviceAllocations::default();
    let is_gpu = |name: &str| resources.iter().any(|prefix| name.starts_with(prefix.as_str()));
    for resources in &list.pod_resources {
        let pod = PodKey { namespace: resources.namespace.clone(), name: resources.name.clone() };
        for container in &resources.containers {
            for id in container.devices.iter().filter(|d| is_gpu(&d.resource_name)).flat_map(|d| &d.device_ids) {
                let Some((uuid, shared)) = device(id) else {
                    all.nameless.push((pod.clone(), id.clone()));
                    continue;
                };
                let held = all.by_device.entry(uuid.to_owned()).or_default();
                match held.iter_mut().find(|held| held.pod == pod) {
                    Some(known) => known.replicas += u32::from(shared),
                    None => held.push(PodAllocation { pod: pod.clone(), replicas: u32::from(shared) }),
                }
            }
            for claim in container.dynamic_resources.iter().flat_map(|resource| &resource.claim_resources) {
                if claim.driver_name.ends_with("nvidia.com") {
                    all.nameless.push((pod.clone(), claim.device_name.clone()));
                }
            }
        }
    }
    for held in all.by_device.values_mut() {
        held.sort_by(|a, b| a.pod.cmp(&b.pod));
    }
    all
}

/// Returns the number of replicas that each shared device is offered as.
pub fn replicas(allocatable: &AllocatableResourcesResponse) -> BTreeMap<String, u32> {
    let mut all = BTreeMap::new();
    for id in allocatable.devices.iter().flat_map(|devices| &devices.device_ids) {
        if let Some((uuid, true)) = device(id) {
            *all.entry(uuid.to_owned()).or_default() += 1;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::super::api::{ClaimResource, ContainerDevices, ContainerResources, DynamicResource, PodResources};
    use super::*;

    fn pod(name: &str, resource: &str, ids: &[&str]) -> PodResources {
        let devices =
            ContainerDevices { resource_name: resource.into(), device_ids: ids.iter().map(|id| (*id).to_owned()).collect() };
        let container = ContainerResources { name: "c".into(), devices: vec![devices], dynamic_resources: Vec::new() };
        PodResources { name: name.into(), namespace: "n".into(), containers: vec![container] }
    }

    #[test]
    fn whole_shared_and_mig_devices_are_distinguished() {
        let claims = vec![ClaimResource { driver_name: "gpu.nvidia.com".into(), device_name: "gpu-3".into() }];
        let mut claiming = pod("dra", "cpu", &[]);
        claiming.containers[0].dynamic_resources.push(DynamicResource { claim_resources: claims });
        let list = ListPodResourcesResponse {
            pod_resources: vec![
                pod("whole", "nvidia.com/gpu", &["GPU-a", "GPU-b"]),
                pod("two", "nvidia.com/gpu.shared", &["GPU-c::0", "GPU-c::2"]),
                pod("one", "nvidia.com/gpu.shared", &["GPU-c::1"]),
                pod("mig", "nvidia.com/mig-1g.10gb", &["MIG-x"]),
                pod("old", "nvidia.com/gpu", &["0", "GPU-c::x"]),
                pod("other", "example.com/fpga", &["GPU-a"]),
                claiming,
            ],
        };
        let all = holders(&list, &["nvidia.com/".to_owned()]);
        let shown: Vec<_> = all
            .by_device
            .iter()
            .map(|(device, held)| (device.as_str(), held.iter().map(|h| (h.pod.name.as_str(), h.replicas)).collect::<Vec<_>>()))
            .collect();
        assert_eq!(
            shown,
            [
                ("GPU-a", vec![("whole", 0)]),
                ("GPU-b", vec![("whole", 0)]),
                ("GPU-c", vec![("one", 1), ("two", 2)]),
                ("MIG-x", vec![("mig", 0)])
            ]
        );
        let nameless: Vec<_> = all.nameless.iter().map(|(pod, id)| (pod.name.as_str(), id.as_str())).collect();
        assert_eq!(nameless, [("old", "0"), ("old", "GPU-c::x"), ("dra", "gpu-3")]);
    }

    #[test]
    fn replicas_are_counted_from_what_is_offered() {
        let offered = ["GPU-c::0", "GPU-c::1", "GPU-c::2", "GPU-a", "MIG-x"].map(str::to_owned).to_vec();
        let devices = vec![ContainerDevices { resource_name: "nvidia.com/gpu.shared".into(), device_ids: offered }];
        assert_eq!(replicas(&AllocatableResourcesResponse { devices }), BTreeMap::from([("GPU-c".to_owned(), 3)]));
    }
}
