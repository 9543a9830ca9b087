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

/// The world size that a pod's owner agrees on, or `mixed`; `stages.yaml` reads it.
const ANNOTATION: &str = "test.eadt.dev/world";
const MIXED: &str = "mixed";

/// The relevant facts of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    /// Its own uid: the next pod of the name is another one.
    uid: String,
    /// Owner's uid; pods of one owner are one world.
    owner: String,
    /// The value of `WORLD_SIZE`.
    size: String,
    /// The last annotation of the pod.
    annotated: Option<String>,
    leaving: bool,
}

type Name = (String, String);

/// Orders for this pod, and no other of its name.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    name: Name,
    uid: String,
    text: String,
}

#[derive(Debug, Default)]
struct Worlds {
    members: BTreeMap<Name, Member>,
    by_owner: BTreeMap<String, BTreeSet<Name>>,
}

impl Worlds {
    /// Takes a pod's present state, or that it is gone, and returns which pods to annotate with what.
    fn saw(&mut self, name: Name, member: Option<Member>) -> Vec<Word> {
        let before = self.members.remove(&name);
        let mut owners: BTreeSet<String> = before.iter().map(|member| member.owner.clone()).collect();
        for owner in &owners {
            if let Some(names) = self.by_owner.get_mut(owner) {
                names.remove(&name);
            }
        }
        if let Some(mut member) = member {
            // No other writer annotates it, and a seen object may be older than the last write.
            if let Some(before) = before.filter(|before| before.uid == member.uid) {
                member.annotated = before.annotated;
            }
            owners.insert(member.owner.clone());
            self.by_owner.entry(member.owner.clone()).or_default().insert(name.clone());
            self.members.insert(name, member);
        }
        owners.iter().flat_map(|owner| self.words_for(owner)).collect()
    }

    fn words_for(&mut self, owner: &str) -> Vec<Word> {
        let Some(names) = self.by_owner.get(owner) else { return Vec::new() };
        let here: Vec<&Name> = names.iter().filter(|name| !self.members[*name].leaving).collect();
        let sizes: BTreeSet<&str> = here.iter().map(|name| self.members[*name].size.as_str()).collect();
        let text = if sizes.len() == 1 { *sizes.first().expect("one") } else { MIXED }.to_owned();
        let mut words = Vec::new();
        for name in here {
            let member = self.members.get_mut(name).expect("each name has its member");
            if member.annotated.as_ref() != Some(&text) {
                member.annotated = Some(text.clone());
                words.push(Word { name: name.clone(), uid: member.uid.clone(), text: text.clone() });
            }
        }
        words
    }
}

fn member(pod: &Pod) -> Option<Member> {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut variables = containers.flat_map(|container| container.env.iter().flatten());
    let size = variables.find(|variable| variable.name == "WORLD_SIZE")?.value.clone().unwrap_or_default();
    let owner = pod.owner_references().first()?.uid.clone();
    let annotated = pod.annotations().get(ANNOTATION).cloned();
    let leaving = pod.metadata.deletion_timestamp.is_some();
    Some(Member { uid: pod.uid()?, owner, size, annotated, leaving })
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
        for word in worlds.saw(name, member) {
            annotate(&client, &word).await;
        }
    }
}

async fn annotate(client: &Client, Word { name: (namespace, name), uid, text }: &Word) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    // With its uid: on a busy machine the pod may have a successor by now, which this word would make ready.
    let patch = json!({"metadata": {"uid": uid, "annotations": {ANNOTATION: text}}});
    let mut tries: u32 = 0;
    loop {
        match pods.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => return,
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_invalid() => return,
            // The API server may be down on purpose, for as long as a test wants.
            Err(error) => {
                tries += 1;
                if tries.is_multiple_of(40) {
                    eprintln!("pod {namespace}/{name} is still without its world's annotation: {error}");
                }
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pod: &str) -> Name {
        ("ns".to_owned(), pod.to_owned())
    }

    fn of(uid: &str, owner: &str, size: &str) -> Member {
        let (uid, owner, size) = (uid.to_owned(), owner.to_owned(), size.to_owned());
        Member { uid, owner, size, annotated: None, leaving: false }
    }

    fn leaving(member: Member) -> Member {
        Member { leaving: true, ..member }
    }

    fn word(pod: &str, uid: &str, text: &str) -> Word {
        Word { name: name(pod), uid: uid.to_owned(), text: text.to_owned() }
    }

    #[test]
    fn a_world_agrees_or_none_of_it_is_ready() {
        let mut worlds = Worlds::default();
        assert_eq!(worlds.saw(name("a-0"), Some(of("1", "a", "6"))), [word("a-0", "1", "6")]);
        assert_eq!(worlds.saw(name("a-1"), Some(of("2", "a", "6"))), [word("a-1", "2", "6")]);
        assert_eq!(worlds.saw(name("b-0"), Some(of("3", "b", "3"))), [word("b-0", "3", "3")]);
        // The first pod of a rolling change.
        assert_eq!(worlds.saw(name("a-1"), Some(leaving(of("2", "a", "6")))), []);
        assert_eq!(worlds.saw(name("a-1"), None), []);
        assert_eq!(worlds.saw(name("a-1"), Some(of("4", "a", "9"))), [word("a-0", "1", MIXED), word("a-1", "4", MIXED)]);
        // The old one goes.
        assert_eq!(worlds.saw(name("a-0"), Some(leaving(of("1", "a", "6")))), [word("a-1", "4", "9")]);
        assert_eq!(worlds.saw(name("a-0"), None), []);
    }

    #[test]
    fn no_pod_is_annotated_twice_and_a_successor_is_annotated_anew() {
        let mut worlds = Worlds::default();
        assert_eq!(worlds.saw(name("a-0"), Some(of("1", "a", "6"))), [word("a-0", "1", "6")]);
        // Seen as it was before it was annotated.
        assert_eq!(worlds.saw(name("a-0"), Some(of("1", "a", "6"))), []);
        assert_eq!(worlds.saw(name("a-0"), Some(of("2", "a", "6"))), [word("a-0", "2", "6")]);
        // After the watch began again, the pod's annotation is believed.
        let annotated = Member { annotated: Some("6".to_owned()), ..of("2", "a", "6") };
        assert_eq!(Worlds::default().saw(name("a-0"), Some(annotated)), []);
    }
}
