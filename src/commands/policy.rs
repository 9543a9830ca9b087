//! `eadt policy`: policies on Kubernetes, for people.

use eadt_kubernetes::policy::access::PolicyAccess;
use eadt_kubernetes::policy::{crd_yaml, words};
use eadt_schemas::EventTime;
use serde_json::json;

use crate::cli::{ClusterOptions, PolicyCommand, PolicyPause};
use crate::output::print_line;

pub fn run(command: &PolicyCommand) -> anyhow::Result<()> {
    if let PolicyCommand::Crd = command {
        return crate::output::print(&crd_yaml());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run_command(command))
}

async fn run_command(command: &PolicyCommand) -> anyhow::Result<()> {
    match command {
        PolicyCommand::Crd => Ok(()),
        PolicyCommand::List { all_namespaces, cluster, json } => {
            let (access, namespace) = open(cluster).await?;
            let wanted = (!all_namespaces).then_some(namespace.as_str());
            let views = access.list(wanted).await?;
            if *json {
                let policies: Vec<_> = views.iter().map(words::policy_json).collect();
                print_line!("{}", json!({ "policies": policies }));
            } else if views.is_empty() {
                let place = wanted.map_or_else(|| "any namespace".to_owned(), |namespace| format!("namespace {namespace}"));
                print_line!("there is no policy in {place}");
            } else {
                crate::output::print(&words::policy_table(&views))?;
            }
            Ok(())
        }
        PolicyCommand::Explain { name, cluster, json } => {
            let (access, namespace) = open(cluster).await?;
            let view = access.get(&namespace, name).await?;
            if *json {
                print_line!("{}", words::policy_json(&view));
            } else {
                crate::output::print(&words::explain_policy(&view))?;
            }
            Ok(())
        }
        PolicyCommand::Pause(what) => pause(what, true).await,
        PolicyCommand::Resume(what) => pause(what, false).await,
        PolicyCommand::Approve { name, decision, cluster, json } => {
            let (access, namespace) = open(cluster).await?;
            let approved = access.approve(&namespace, name, decision.as_deref(), now()).await?;
            if *json {
                print_line!("{}", json!({"namespace": namespace, "name": name, "approved": approved}));
            } else {
                let (id, summary) = (&approved.decision_id, &approved.summary);
                print_line!("approved {id}: {summary}; it is applied once, unless it expires or no longer fits");
            }
            Ok(())
        }
    }
}

async fn pause(what: &PolicyPause, pause: bool) -> anyhow::Result<()> {
    let (access, namespace) = open(&what.cluster).await?;
    let (changed, by_namespace, whose) = match &what.name {
        Some(name) => {
            let turned = Box::pin(access.pause(&namespace, name, pause)).await?;
            (turned.changed, turned.by_namespace, format!("the workload of policy {namespace}/{name}"))
        }
        None => (access.pause_namespace(&namespace, pause).await?, pause, format!("every workload of namespace {namespace}")),
    };
    let paused = pause || by_namespace;
    if what.json {
        print_line!("{}", json!({"namespace": namespace, "name": what.name, "paused": paused, "changed": changed}));
        return Ok(());
    }
    if paused && !pause {
        print_line!("still paused: {whose}, by its namespace; eadt policy resume --all -n {namespace} resumes that");
        return Ok(());
    }
    match (changed, pause) {
        (true, true) => print_line!("paused: {whose}; nothing is changed from the next step on"),
        (true, false) => print_line!("resumed: {whose}"),
        (false, true) => print_line!("paused already: {whose}"),
        (false, false) => print_line!("not paused: {whose}"),
    }
    Ok(())
}

async fn open(cluster: &ClusterOptions) -> anyhow::Result<(PolicyAccess, String)> {
    let access = PolicyAccess::open(cluster.context.as_deref()).await?;
    let namespace = cluster.namespace.clone().unwrap_or_else(|| access.namespace().to_owned());
    Ok((access, namespace))
}

fn now() -> EventTime {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    EventTime::from_seconds(since.as_secs_f64())
}
