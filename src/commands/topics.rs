//! `eadt topics`: the topics as they should be and as they are.

use eadt_bus::topics::PartitionGrowthPolicy;
use eadt_bus::{Bus, TopicSpec, topics};

use crate::cli::TopicsCommand;
use crate::output::print_line;
use crate::settings::TopicSettings;

pub fn run(command: &TopicsCommand, bus: &dyn Bus, names: &TopicSettings) -> anyhow::Result<()> {
    let existing = bus.topics(&names.prefix)?;
    match command {
        // Handled without a log.
        TopicsCommand::Desired { .. } | TopicsCommand::Acls(_) => {}
        TopicsCommand::Apply { dry_run, repartition, json } => {
            let desired = topics::desired(&names.prefix, names.partitions, names.replication);
            let force = if *repartition { PartitionGrowthPolicy::Force } else { PartitionGrowthPolicy::Refuse };
            let plan = topics::plan(&topics::read_topics(bus, &names.prefix)?, &desired, force);
            if *json {
                let changes: Vec<_> = plan.actions.iter().map(ToString::to_string).collect();
                print_line!("{}", serde_json::json!({"dry_run": dry_run, "changes": changes, "refusals": plan.refusals}));
            } else if plan.refusals.is_empty() {
                for action in &plan.actions {
                    print_line!("{}{action}", if *dry_run { "would " } else { "" });
                }
                if plan.is_empty() {
                    print_line!("{} topics match the settings", desired.len());
                }
            }
            if !plan.refusals.is_empty() {
                anyhow::bail!("refused, and nothing was changed: {}", join_refusals(&plan.refusals));
            }
            if !dry_run {
                topics::apply(bus, &plan)?;
            }
        }
        TopicsCommand::Check { json } => {
            let wrong = topic_differences(&existing, names);
            if *json {
                print_line!("{}", serde_json::json!({ "wrong": wrong }));
            }
            if !wrong.is_empty() {
                anyhow::bail!("{}; `eadt topics apply` fixes what can be fixed", wrong.join("; "));
            }
            if !json {
                print_line!(
                    "all {} topics match the settings",
                    topics::desired(&names.prefix, names.partitions, names.replication).len()
                );
            }
        }
        TopicsCommand::List { json } if *json => {
            let list: Vec<_> = existing
                .iter()
                .map(|t| serde_json::json!({"name": &*t.name, "partitions": t.partitions, "replication": t.replication, "settings": t.settings}))
                .collect();
            print_line!("{}", serde_json::json!({ "topics": list }));
        }
        TopicsCommand::List { .. } => {
            for topic in &existing {
                let settings: Vec<_> = topic.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
                print_line!(
                    "{}  partitions={} replication={} {}",
                    topic.name,
                    topic.partitions,
                    topic.replication,
                    settings.join(" ")
                );
            }
            if existing.is_empty() {
                print_line!("no topics with prefix {:?}: run `eadt topics apply`", names.prefix);
            }
        }
    }
    Ok(())
}

/// Returns the topics that are missing, or differ from the desired ones.
pub fn topic_differences(existing: &[TopicSpec], names: &TopicSettings) -> Vec<String> {
    let mut desired = topics::desired(&names.prefix, names.partitions, names.replication);
    for topic in &mut desired {
        // The operator chooses the number of replicas that must be in step.
        topic.settings.remove("min.insync.replicas");
    }
    topics::check(existing, &desired)
}

/// Joins refusals for one reason into one, with the topics that they concern before it. Each begins with its topic's name.
fn join_refusals(refusals: &[String]) -> String {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for refusal in refusals {
        let (name, reason) = refusal.split_once(' ').unwrap_or(("", refusal));
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    let sentences = reasons.into_iter().map(|(reason, names)| match names[..] {
        [name] => format!("{name} {reason}"),
        _ => format!("each of {} topics ({}) {reason}", names.len(), names.join(", ")),
    });
    sentences.collect::<Vec<_>>().join("; ")
}

/// Prints the topics as they should be: a line each, as JSON, or as `KafkaTopic` objects of a Kafka cluster that Strimzi runs.
pub fn desired(json: bool, strimzi: Option<&str>, names: &TopicSettings) -> anyhow::Result<()> {
    let topics = topics::desired(&names.prefix, names.partitions, names.replication);
    if let Some(cluster) = strimzi {
        for topic in &topics {
            let object = serde_json::json!({
                "apiVersion": "kafka.strimzi.io/v1",
                "kind": "KafkaTopic",
                "metadata": {"name": &*topic.name, "labels": {"strimzi.io/cluster": cluster}},
                "spec": {"partitions": topic.partitions, "replicas": topic.replication, "config": topic.settings},
            });
            print_line!("---\n{}", serde_json::to_string_pretty(&object)?);
        }
    } else if json {
        let list: Vec<_> = topics
            .iter()
            .map(|topic| {
                let name = topic.name.strip_prefix(&*names.prefix).unwrap_or(&topic.name);
                // Settings that depend on the number of replicas are left to the operator.
                let mut settings = topic.settings.clone();
                settings.remove("min.insync.replicas");
                serde_json::json!({"topic": name, "settings": settings})
            })
            .collect();
        print_line!("{}", serde_json::to_string_pretty(&serde_json::json!({ "topics": list }))?);
    } else {
        for topic in &topics {
            let settings: Vec<_> = topic.settings.iter().map(|(k, v)| format!("{k}={v}")).collect();
            print_line!(
                "{}  partitions={} replication={} {}",
                topic.name,
                topic.partitions,
                topic.replication,
                settings.join(" ")
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};

    use super::*;

    #[test]
    fn a_dry_run_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
        let names = TopicSettings::default();
        let apply = |dry_run| run(&TopicsCommand::Apply { dry_run, repartition: false, json: false }, &log, &names).unwrap();
        let there = || log.topics(&names.prefix).unwrap().len();
        apply(true);
        assert_eq!(there(), 0);
        apply(false);
        assert_eq!(there(), eadt_schemas::Topic::ALL.len());
        // Nor if a change is needed.
        let more = TopicSettings { partitions: 8, ..names.clone() };
        let partitions = || log.topics(&names.prefix).unwrap().iter().map(|topic| topic.partitions).max();
        run(&TopicsCommand::Apply { dry_run: true, repartition: false, json: false }, &log, &more).unwrap();
        assert_eq!(partitions(), Some(4));
        run(&TopicsCommand::Apply { dry_run: false, repartition: false, json: false }, &log, &more).unwrap();
        assert_eq!(partitions(), Some(8));
    }

    #[test]
    fn one_reason_is_listed_once() {
        let (four, two) = (topics::desired("p.", 4, 1), topics::desired("p.", 2, 1));
        let existing: Vec<_> = four.iter().map(|spec| topics::ExistingTopic { spec: spec.clone(), holds_data: false }).collect();
        let text = join_refusals(&topics::plan(&existing, &two, PartitionGrowthPolicy::Refuse).refusals);
        assert_eq!(text.matches("cannot shrink").count(), 1, "{text}");
        for topic in &four {
            assert!(text.contains(&*topic.name), "{text}");
        }
        assert_eq!(join_refusals(&["p.a has 4".to_owned(), "p.b has 3".to_owned()]), "p.a has 4; p.b has 3");
    }
}
