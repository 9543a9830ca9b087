//! Writes the statuses of policies, while this process leads.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::api::client::error_text;
use crate::context::KubernetesContext;
use crate::index::workloads::WorkloadIndex;
use crate::objects::key::PolicyKey;
use crate::objects::owners::MANAGER;
use crate::policy::{EnergyPolicy, resource};
use crate::status::content;

/// Pause after a failed write.
const RETRY: Duration = Duration::from_secs(2);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Every status is checked this often.
const REFRESH_PERIOD: Duration = Duration::from_mins(1);

/// Writes the statuses of policies for ever, while this process leads.
pub async fn write_statuses(shared: Arc<KubernetesContext>) {
    let mut every = tokio::time::interval(Duration::from_millis(500));
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_round = Instant::now();
    let mut term = None;
    loop {
        every.tick().await;
        if shared.leadership.term().is_none() {
            continue;
        }
        let mut names = std::mem::take(&mut shared.statuses().changed);
        names.extend(shared.read_index(WorkloadIndex::take_touched));
        // Freshness ends without news, and a new leader publishes its own view.
        if next_round <= Instant::now() || term != shared.leadership.term() {
            next_round = Instant::now() + REFRESH_PERIOD;
            term = shared.leadership.term();
            names.extend(shared.read_index(|state| {
                state.policies().map(|rule| (rule.namespace.clone(), rule.name.clone())).collect::<Vec<_>>()
            }));
        }
        for name in names {
            // Another process leads by now and writes the statuses; this one continues when it leads again.
            if shared.leadership.term() != term {
                shared.statuses().changed.insert(name);
                continue;
            }
            if let Err(error) = write_status(&shared, &name).await {
                tracing::warn!(policy = format!("{}/{}", name.0, name.1), error, "a policy's status could not be written");
                shared.statuses().changed.insert(name);
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn write_status(shared: &KubernetesContext, name: &PolicyKey) -> Result<(), String> {
    let (known, term) = {
        let statuses = shared.statuses();
        (statuses.policies.get(name).cloned().unwrap_or_default(), statuses.term)
    };
    let settings = &shared.settings;
    let status = shared.read_index(|state| {
        let rule = state.policy(name)?;
        let problems = state.problems(rule);
        let entry = rule.target_key().and_then(|key| state.entry(&key));
        Some(content::build_status(rule, entry, &known, &problems, settings, shared.now()))
    });
    let Some(status) = status else { return Ok(()) };
    let since = known.written.map_or(f64::INFINITY, |written| written.elapsed().as_secs_f64());
    if !content::must_write_status(&known.status, &status, since, settings) {
        if since < content::LEAST_SECONDS {
            shared.statuses().changed.insert(name.clone());
        }
        return Ok(());
    }
    let api: Api<EnergyPolicy> = Api::namespaced(shared.server.client.clone(), &name.0);
    let resource = resource::policy_resource();
    // Fenced by the version that it begins from: an actuator that led since may have written a newer one.
    let metadata = json!({"name": name.1, "resourceVersion": known.version});
    let object = json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status});
    // The status is the actuator's alone.
    let params = PatchParams::apply(MANAGER).force();
    match tokio::time::timeout(CALL_TIMEOUT, api.patch_status(&name.1, &params, &Patch::Apply(object))).await {
        Ok(Ok(written)) => {
            let mut statuses = shared.statuses();
            // Another term has other updates.
            let update_count = if statuses.term == term { known.pending_count() } else { 0 };
            if let Some(known) = statuses.policies.get_mut(name) {
                known.on_status_written(&written.resource_version().unwrap_or_default(), status, update_count);
            }
            Ok(())
        }
        Ok(Err(kube::Error::Api(not_found))) if not_found.code == 404 => Ok(()),
        // The watch is about to bring the newer object.
        Ok(Err(kube::Error::Api(stale))) if stale.code == 409 => {
            shared.statuses().changed.insert(name.clone());
            Ok(())
        }
        Ok(Err(error)) => Err(error_text(&error)),
        Err(_) => Err(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
    }
}
