//! Changes the policy of a workload for a user of the page: pause, resume, mode, approval. The change carries the user's name;
//! its effect is shown once the actuator has declared it.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use eadt_cluster::{ClusterRemedy, PolicyEdit, PolicyWriter};
use eadt_schemas::v1::UpdateMode;
use serde::{Deserialize, Serialize};

use crate::access::EditorIdentity;
use crate::api::{ApiContext, ApiError, uncached_json};
use crate::extract::{ApiBody, ApiPath};
use crate::model::policies::EffectivePolicy;

/// Requested change of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum PolicyEditRequest {
    Pause,
    Resume,
    SetMode {
        mode: UpdateMode,
        /// The mode that the person saw: with another one in force nothing is changed.
        shown: UpdateMode,
    },
    Approve {
        decision_id: String,
    },
}

/// Result of the change.
#[derive(Debug, Serialize)]
struct PolicyEditResponse {
    workload: String,
    /// `false` if it was so already.
    changed: bool,
    /// Name of the user in the change.
    by: String,
}

/// The viewer, and their rights.
#[derive(Debug, Serialize)]
struct ViewerSession {
    /// `None` if they may only read.
    editor: Option<String>,
    /// The only namespaces whose policies they may change; `None` if there is no such limit.
    namespaces: Option<Vec<String>>,
    /// The reason why they may only read.
    read_only: Option<&'static str>,
}

const NOTHING_TO_CHANGE: &str = "this page only reads: `eadt up` with simulated GPUs or --kubernetes, and `eadt dashboard --kubernetes`, serve one \
                                 through which policies are changed";

pub async fn session(State(context): State<ApiContext>, headers: HeaderMap) -> Response {
    let reads = |why| ViewerSession { editor: None, namespaces: None, read_only: Some(why) };
    uncached_json(match (&context.editor, context.access.editor(&headers)) {
        (None, _) => reads(NOTHING_TO_CHANGE),
        (Some(_), Err(_)) => {
            reads("you may only read here: a token with a name after it in dashboard.token_file changes policies")
        }
        (Some(_), Ok(EditorIdentity { name, namespaces })) => ViewerSession { editor: Some(name), namespaces, read_only: None },
    })
}

pub async fn change(
    State(context): State<ApiContext>,
    ApiPath((namespace, name)): ApiPath<(String, String)>,
    headers: HeaderMap,
    ApiBody(request): ApiBody<PolicyEditRequest>,
) -> Response {
    let workload = format!("{namespace}/{name}");
    let by = match context.access.editor(&headers) {
        Ok(editor) => editor,
        Err(refusal) => {
            tracing::warn!(workload, ?request, ?refusal, "policy not changed");
            return refusal.into_response();
        }
    };
    match check_and_change(&context, &namespace, &workload, request.clone(), &by).await {
        Ok(changed) => uncached_json(PolicyEditResponse { workload, changed, by: by.name }),
        Err(ApiError(status, text)) => {
            tracing::warn!(workload, ?request, by = by.name, text, "policy not changed");
            ApiError(status, text).into_response()
        }
    }
}

async fn check_and_change(
    context: &ApiContext,
    namespace: &str,
    workload: &str,
    request: PolicyEditRequest,
    by: &EditorIdentity,
) -> Result<bool, ApiError> {
    let Some(editor) = context.editor.clone() else {
        return Err(ApiError(StatusCode::FORBIDDEN, NOTHING_TO_CHANGE.to_owned()));
    };
    if !by.may_change(namespace) {
        let own = by.namespaces.iter().flatten().map(String::as_str).collect::<Vec<_>>().join(", ");
        return Err(ApiError(
            StatusCode::FORBIDDEN,
            format!(
                "{} may change policies of {own} only, by dashboard.token_file: nothing of {workload} was changed, which is in namespace \
                 {namespace}",
                by.name
            ),
        ));
    }
    let Some((kind, terms)) = context.model.read(|model| model.declared_terms(workload)) else {
        return Err(ApiError::not_found(format!("{workload} has no policy, so there is nothing to change")));
    };
    let change = build_change(request, workload, &terms)?;
    carry_out(editor, workload, kind, change, &by.name).await
}

/// Returns the change, if the shown policy offered it.
fn build_change(request: PolicyEditRequest, workload: &str, terms: &EffectivePolicy) -> Result<PolicyEdit, ApiError> {
    Ok(match request {
        PolicyEditRequest::Pause => PolicyEdit::Pause,
        PolicyEditRequest::Resume => PolicyEdit::Resume,
        PolicyEditRequest::Approve { decision_id } => PolicyEdit::Approve(decision_id),
        PolicyEditRequest::SetMode { mode, shown } if shown == terms.mode || mode == terms.mode => {
            PolicyEdit::SetMode { mode, shown }
        }
        PolicyEditRequest::SetMode { .. } => {
            let text = format!("the mode of {workload} changed meanwhile: reload it, then try again");
            return Err(ApiError(StatusCode::CONFLICT, text));
        }
    })
}

async fn carry_out(
    editor: Arc<dyn PolicyWriter>,
    workload: &str,
    kind: String,
    change: PolicyEdit,
    by: &str,
) -> Result<bool, ApiError> {
    let (name, by) = (workload.to_owned(), by.to_owned());
    // The client may have disconnected meanwhile, so the change is recorded in this task.
    let work = move || {
        let done = editor.edit_policy(&name, &kind, &change, &by);
        if let Ok(changed) = &done {
            tracing::info!(workload = name, ?change, by, changed, "policy changed through the page");
        }
        done
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(changed)) => Ok(changed),
        Ok(Err(error)) => {
            let status = match error.remedy {
                ClusterRemedy::Refused | ClusterRemedy::Conflict => StatusCode::CONFLICT,
                ClusterRemedy::Retry | ClusterRemedy::Stopped => StatusCode::SERVICE_UNAVAILABLE,
            };
            Err(ApiError(status, error.detail))
        }
        Err(_) => Err(ApiError(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the change failed and may or may not be in force; see the log of this process".to_owned(),
        )),
    }
}
