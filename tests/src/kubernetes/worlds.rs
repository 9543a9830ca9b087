//! Plays what training processes do at their start: find each other, or wait. Pods with `WORLD_SIZE` become ready once all
//! pods of their owner agree on it, and none is ready while they do not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, ResourceExt};
use serde_json::json;

/// What a pod's owner agrees on, or `mixed`; `stages.yaml` reads it.
const ANNOTATION: &str = "test.eadt.dev/world";
const MIXED: &str = "mixed";

/// What matters of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    /// Owner's uid; pods of one owner are one world.
    owner: String,
    /// The value of `WORLD_SIZE`.
    size: String,
    told: Option<String>,
    leaving: bool,
}

type Name = (String, String);

#[derive(Debug, Default)]
struct Worlds {
    members: BTreeMap<Name, Member>,
    by_owner: BTreeMap<String, BTreeSet<Name>>,
}

impl Worlds {
    /// Takes a pod's present state, or that it is gone, and says whom to tell what.
    fn saw(&mut self, name: Name, member: Option<Member>) -> Vec<(Name, String)> {
        let before = self.members.remove(&name);
        let mut owners: BTreeSet<String> = before.into_iter().map(|member| member.owner).collect();
        for owner in &owners {
            if let Some(names) = self.by_owner.get_mut(owner) {
                names.remove(&name);
            }
        }
        if let Some(member) = member {
            owners.insert(member.owner.clone());
            self.by_owner.entry(member.owner.clone()).or_default().insert(name.clone());
            self.members.insert(name, member);
        }
        owners.iter().flat_map(|owner| self.to_tell(owner)).collect()
    }

    fn to_tell(&self, owner: &str) -> Vec<(Name, String)> {
        let names = self.by_owner.get(owner).into_iter().flatten();
        let here: Vec<_> = names.map(|name| (name, &self.members[name])).filter(|(_, member)| !member.leaving).collect();
        let sizes: BTreeSet<&str> = here.iter().map(|(_, member)| member.size.as_str()).collect();
        let word = if sizes.len() == 1 { *sizes.first().expect("one") } else { MIXED };
        let untold = here.into_iter().filter(|(_, member)| member.told.as_deref() != Some(word));
        untold.map(|(name, _)| (name.clone(), word.to_owned())).collect()
    }
}

fn member(pod: &Pod) -> Option<Member> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let size = variables.find(|variable| variable.name == "WORLD_SIZE")?.value.clone().unwrap_or_default();
    let owner = pod.owner_references().first()?.uid.clone();
    let told = pod.annotations().get(ANNOTATION).cloned();
    Some(Member { owner, size, told, leaving: pod.metadata.deletion_timestamp.is_some() })
}

/// Watches all pods until it is dropped.
pub async fn watch(client: Client) {
    let mut worlds = Worlds::default();
    let mut events = watcher(Api::<Pod>::all(client.clone()), watcher::Config::default()).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let (pod, gone) = match event {
            Ok(watcher::Event::Apply(pod) | watcher::Event::InitApply(pod)) => (pod, false),
            Ok(watcher::Event::Delete(pod)) => (pod, true),
            // A pod that vanished during a gap of the watch is forgotten with its owner's next change.
            Ok(watcher::Event::Init) => {
                worlds = Worlds::default();
                continue;
            }
            // The watch begins again; the API server may be down on purpose.
            Ok(watcher::Event::InitDone) | Err(_) => continue,
        };
        let name = (pod.namespace().unwrap_or_default(), pod.name_any());
        let member = if gone { None } else { member(&pod) };
        for (name, word) in worlds.saw(name, member) {
            tell(&client, &name, &word).await;
        }
    }
}

async fn tell(client: &Client, (namespace, name): &Name, word: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let patch = json!({"metadata": {"annotations": {ANNOTATION: word}}});
    for _ in 0..20 {
        match pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.is_not_found() => return,
            Err(_) => tokio::time::sleep(Duration::from_millis(250)).await,
        }
    }
    eprintln!("pod {namespace}/{name} was not told about its world");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pod: &str) -> Name {
        ("ns".to_owned(), pod.to_owned())
    }

    fn of(owner: &str, size: &str, told: Option<&str>) -> Member {
        Member { owner: owner.to_owned(), size: size.to_owned(), told: told.map(str::to_owned), leaving: false }
    }

    #[test]
    fn a_world_agrees_or_none_of_it_is_ready() {
        let mut worlds = Worlds::default();
        assert_eq!(worlds.saw(name("a-0"), Some(of("a", "6", None))), [(name("a-0"), "6".to_owned())]);
        assert_eq!(worlds.saw(name("a-0"), Some(of("a", "6", Some("6")))), []);
        assert_eq!(worlds.saw(name("b-0"), Some(of("b", "3", Some("3")))), []);
        // The first pod of a rolling change.
        let told = worlds.saw(name("a-1"), Some(of("a", "9", None)));
        assert_eq!(told, [(name("a-0"), MIXED.to_owned()), (name("a-1"), MIXED.to_owned())]);
        assert_eq!(worlds.saw(name("a-0"), Some(of("a", "6", Some(MIXED)))), [(name("a-1"), MIXED.to_owned())]);
        // The old one goes.
        let leaving = Some(Member { leaving: true, ..of("a", "6", Some(MIXED)) });
        assert_eq!(worlds.saw(name("a-0"), leaving), [(name("a-1"), "9".to_owned())]);
        assert_eq!(worlds.saw(name("a-1"), Some(of("a", "9", Some("9")))), []);
        assert_eq!(worlds.saw(name("a-0"), None), []);
    }
}
