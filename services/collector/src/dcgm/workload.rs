//! From Kubernetes labels to a workload. Pure.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::assignments::is_workload;
use crate::prometheus_text::Sample;

/// How a pod becomes a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PodRule {
    /// `namespace/owner`, the owner read off the pod's name as Kubernetes forms it: `owner-0` (`StatefulSet`),
    /// `owner-5d4f8c7b9-x2x4z` (`Deployment`), `owner-0-0-x2x4z` (`JobSet`), `owner-0-x2x4z` (indexed `Job`),
    /// `owner-x2x4z` (`Job`, `DaemonSet`). Any other name is its own owner. Names that only look so are taken wrongly:
    /// set `workload_label` where that matters.
    #[default]
    Owner,
    /// `namespace/pod`.
    Pod,
    /// Pods are not looked at: the GPU is reported without a workload.
    Ignore,
}

/// The alphabet of Kubernetes' generated suffixes: no vowels, nothing that looks alike.
fn generated(part: &str, lengths: std::ops::RangeInclusive<usize>) -> bool {
    lengths.contains(&part.len()) && part.bytes().all(|b| b"bcdfghjklmnpqrstvwxz2456789".contains(&b))
}

fn ordinal(part: &str) -> bool {
    !part.is_empty() && part.len() <= 6 && part.bytes().all(|b| b.is_ascii_digit())
}

fn split(name: &str) -> Option<(&str, &str)> {
    name.rsplit_once('-').filter(|(head, _)| !head.is_empty())
}

/// The owner's name, read off a pod's.
pub fn owner(pod: &str) -> &str {
    let Some((head, last)) = split(pod) else { return pod };
    if ordinal(last) {
        return head;
    }
    if !generated(last, 5..=5) {
        return pod;
    }
    let Some((before, middle)) = split(head) else { return head };
    if ordinal(middle) {
        return match split(before) {
            Some((job_set, index)) if ordinal(index) => job_set,
            _ => before,
        };
    }
    if generated(middle, 8..=10) { before } else { head }
}

/// The workload that a series speaks of; `None`: it names none.
pub(super) fn of_labels(sample: &Sample<'_>, workload_label: Option<&str>, rule: PodRule) -> Option<String> {
    // A Prometheus server that scraped the exporter has moved its labels out of the way.
    let label = |name: &str| sample.label(name).or_else(|| sample.label(&format!("exported_{name}")));
    let namespace = label("namespace").or_else(|| sample.label("pod_namespace"));
    let given = workload_label.and_then(|name| sample.label(name));
    let name = match (given, rule) {
        (Some(text), _) if text.contains('/') => return Some(text.to_owned()).filter(|text| is_workload(text)),
        (Some(text), _) => text,
        (None, PodRule::Ignore) => return None,
        (None, PodRule::Pod) => label("pod").or_else(|| sample.label("pod_name"))?,
        (None, PodRule::Owner) => owner(label("pod").or_else(|| sample.label("pod_name"))?),
    };
    Some(format!("{}/{name}", namespace?)).filter(|text| is_workload(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_as_kubernetes_names_pods() {
        for (pod, expected) in [
            ("llm-training-0", "llm-training"),
            ("llm-training-11", "llm-training"),
            ("serve-5d4f8c7b9-x2x4z", "serve"),
            ("serve-5d4f8c7b96-x2x4z", "serve"),
            ("llama-node-0-1-x2x4z", "llama-node"),
            ("sweep-3-x2x4z", "sweep"),
            ("bert-x2x4z", "bert"),
            ("web-24567", "web"),
            ("plain", "plain"),
            ("my-model", "my-model"),
            ("-0", "-0"),
            ("bert-large", "bert-large"),
        ] {
            assert_eq!(owner(pod), expected, "{pod}");
        }
    }

    fn workload(line: &str, label: Option<&str>, rule: PodRule) -> Option<String> {
        let sample = crate::prometheus_text::samples(line).next().unwrap().unwrap();
        of_labels(&sample, label, rule)
    }

    #[test]
    fn an_explicit_label_goes_first() {
        let line = "m{namespace=\"n\",pod=\"a-0\",label_job=\"train\",label_full=\"x/y\"} 1";
        assert_eq!(workload(line, None, PodRule::Owner).as_deref(), Some("n/a"));
        assert_eq!(workload(line, None, PodRule::Pod).as_deref(), Some("n/a-0"));
        assert_eq!(workload(line, None, PodRule::Ignore), None);
        assert_eq!(workload(line, Some("label_job"), PodRule::Ignore).as_deref(), Some("n/train"));
        assert_eq!(workload(line, Some("label_full"), PodRule::Owner).as_deref(), Some("x/y"));
        assert_eq!(workload(line, Some("absent"), PodRule::Owner).as_deref(), Some("n/a"));
        assert_eq!(workload("m{exported_namespace=\"n\",exported_pod=\"a-0\"} 1", None, PodRule::Owner).as_deref(), Some("n/a"));
        assert_eq!(workload("m{namespace=\"\",pod=\"a-0\"} 1", None, PodRule::Owner), None);
    }
}
