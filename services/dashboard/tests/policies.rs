//! Tests policies of workloads as their declarations list them, and changes by users.

use std::sync::{Arc, Mutex};

use eadt_cluster::{ClusterError, ClusterRemedy, PolicyEdit, PolicyWriter};
use eadt_dashboard::{DashboardModel, DashboardSettings, PolicyQuery};
use eadt_schemas::v1::{ActuationOutcome, ChangeValidation, ControllerAction, LayoutBounds, UpdateMode, Workload};

use crate::support::{HOSTILE, Served, actuation, at, decision, model, serve, serve_with, window};

fn declared(workload: &str, minute: i64, mode: UpdateMode, paused: bool) -> Workload {
    let bounds =
        LayoutBounds { power_limit_watts_min: Some(150.0), power_limit_watts_max: Some(300.0), ..LayoutBounds::default() };
    let workload = workload.to_owned();
    Workload { time: at(minute), workload, kind: "Job".into(), mode, paused, bounds, ..Workload::default() }
}

fn page(model: &DashboardModel, mode: &str) -> eadt_dashboard::PolicyPage {
    model.policies(&PolicyQuery { mode: mode.to_owned(), ..PolicyQuery::default() }).unwrap()
}

#[test]
fn a_policy_shows_its_terms_and_what_was_changed_of_them() {
    let mut model = model();
    model.window(&window("team/none", 0, 600.0, &eadt_schemas::v1::Layout::default()));
    model.declaration(&declared("team/a", 0, UpdateMode::Recommend, false));
    let mut layout = declared("team/a", 1, UpdateMode::Recommend, false);
    layout.generation = 2;
    model.declaration(&layout);
    let only = |model: &DashboardModel| page(model, "recommend").rows.remove(0);
    assert_eq!(only(&model).changed, None, "a layout is no policy");
    // A recommendation waits until it is applied or expires.
    let mut recommended = decision("team/a", 2, ControllerAction::SetPowerLimit, ChangeValidation::Pending, None);
    recommended.expires = at(20);
    model.decision(&recommended);
    assert_eq!(only(&model).recommended, None, "nobody has recommended it to anybody yet");
    model.actuation(&actuation("team/a", 2, &recommended.id, ActuationOutcome::Recommended));
    assert_eq!(only(&model).recommended.unwrap().id, recommended.id);
    model.declaration(&declared("team/a", 5, UpdateMode::Enforce, true));
    let row = page(&model, "paused").rows.remove(0);
    let changed = row.changed.unwrap();
    assert_eq!((changed.time_ms, changed.before.mode, changed.before.paused), (at(5).millis(), UpdateMode::Recommend, false));
    let terms = row.terms.unwrap();
    assert_eq!((terms.mode, terms.paused, terms.bounds.power_limit_watts_max), (UpdateMode::Enforce, true, Some(300.0)));
    model.window(&window("team/none", 30, 600.0, &eadt_schemas::v1::Layout::default()));
    assert_eq!(page(&model, "paused").rows[0].recommended, None, "it has expired");
    let all = page(&model, "");
    assert_eq!((all.counts.enforce, all.counts.paused, all.counts.undeclared, all.matching), (1, 1, 1, 2));
    assert_eq!(page(&model, "none").rows[0].workload, "team/none");
    assert!(page(&model, "none").rows[0].terms.is_none());
}

#[tokio::test]
async fn policies_come_in_pages_and_hostile_names_are_text() {
    let mut model = model();
    for number in 0..120 {
        let mode = if number % 2 == 0 { UpdateMode::Enforce } else { UpdateMode::Observe };
        model.declaration(&declared(&format!("team/job-{number:03}"), 0, mode, false));
    }
    model.declaration(&declared(&format!("zz/{}", HOSTILE[1]), 0, UpdateMode::Observe, false));
    let served = serve(model, DashboardSettings::default()).await;
    let all = served.get("/api/v1/policies?skip=100").await.json();
    assert_eq!((&all["matching"], all["rows"].as_array().unwrap().len()), (&121.into(), 21));
    assert_eq!(all["rows"][20]["workload"], format!("zz/{}", HOSTILE[1]));
    assert_eq!(served.get("/api/v1/policies?mode=enforce&q=JOB-00").await.json()["matching"], 5);
    let refused = served.get("/api/v1/policies?mode=happy").await;
    assert!(refused.status == 400 && String::from_utf8_lossy(&refused.body).contains("happy"));
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(served.ask(method, "/api/v1/policies", &[], "").await.status, 405, "read only");
    }
}

/// Records edits, and refuses those of `team/refused`.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl PolicyWriter for Notes {
    fn edit_policy(&self, workload: &str, kind: &str, change: &PolicyEdit, by: &str) -> Result<bool, ClusterError> {
        if workload == "team/refused" {
            return Err(ClusterError::new(ClusterRemedy::Refused, "no policy in namespace team is for Job refused"));
        }
        let mut notes = self.0.lock().unwrap();
        notes.push(format!("{kind} {workload}: {change:?} by {by}"));
        Ok(notes.len() % 2 == 1)
    }
}

async fn with_editor(notes: &Arc<Notes>, settings: DashboardSettings) -> Served {
    let mut model = model();
    model.declaration(&declared("team/a", 0, UpdateMode::Recommend, false));
    model.declaration(&declared("team/refused", 0, UpdateMode::Recommend, false));
    model.window(&window("team/none", 0, 600.0, &eadt_schemas::v1::Layout::default()));
    serve_with(model, settings, Some(notes.clone())).await
}

const JSON: (&str, &str) = ("content-type", "application/json");
const TERMS: &str = "/api/v1/workloads/team/a/terms";

#[tokio::test]
async fn a_change_is_carried_out_in_the_name_of_whoever_asks() {
    let notes = Arc::new(Notes::default());
    let served = with_editor(&notes, DashboardSettings::default()).await;
    let local = serde_json::json!({"editor": "local", "namespaces": null, "read_only": null});
    assert_eq!(served.get("/api/v1/session").await.json(), local);
    let asked = [
        (r#"{"change":"pause"}"#, "Pause", true),
        (r#"{"change":"resume"}"#, "Resume", false),
        (r#"{"change":"set_mode","mode":"enforce","shown":"recommend"}"#, "SetMode { mode: Enforce, shown: Recommend }", true),
        (r#"{"change":"approve","decision_id":"d-1"}"#, r#"Approve("d-1")"#, false),
    ];
    for (body, change, changed) in asked {
        let answer = served.ask("POST", TERMS, &[JSON], body).await;
        assert_eq!(answer.status, 200, "{body}");
        let expected = serde_json::json!({"workload": "team/a", "changed": changed, "by": "local"});
        assert_eq!(answer.json(), expected, "{body}");
        assert_eq!(*notes.0.lock().unwrap().last().unwrap(), format!("Job team/a: {change} by local"));
    }
}

#[tokio::test]
async fn what_cannot_be_changed_is_refused_in_words_and_nothing_is_asked_of_the_cluster() {
    let notes = Arc::new(Notes::default());
    let served = with_editor(&notes, DashboardSettings::default()).await;
    let stale = r#"{"change":"set_mode","mode":"observe","shown":"enforce"}"#;
    let pause = r#"{"change":"pause"}"#;
    let refused = "/api/v1/workloads/team/refused/terms";
    let undeclared = "/api/v1/workloads/team/none/terms";
    let foreign = ("origin", "http://evil.example");
    for (path, headers, body, status, words) in [
        (TERMS, &[JSON][..], stale, 409, "changed meanwhile"),
        (TERMS, &[JSON], r#"{"change":"delete"}"#, 422, "delete"),
        (TERMS, &[JSON], r#"{"change":"set_mode","mode":"enforce"}"#, 422, "shown"),
        (TERMS, &[JSON], "{", 400, ""),
        // A form of another page could send this.
        (TERMS, &[("content-type", "text/plain")], pause, 415, ""),
        (TERMS, &[JSON, foreign], pause, 403, "another page"),
        (TERMS, &[JSON, ("sec-fetch-site", "cross-site")], pause, 403, "another page"),
        (refused, &[JSON], pause, 409, "no policy in namespace team"),
        (undeclared, &[JSON], pause, 404, "team/none has no policy"),
        ("/api/v1/workloads/a/b/terms", &[JSON], pause, 404, "a/b"),
    ] {
        let answer = served.ask("POST", path, headers, body).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == status && text.contains(words), "{path} {body}: {} {text}", answer.status);
        assert!(answer.json()["error"].is_string(), "{path} {body}: {text}");
    }
    assert_eq!(served.ask("GET", TERMS, &[], "").await.status, 405);
    assert!(notes.0.lock().unwrap().is_empty(), "{notes:?}");
    let reading = serve(model(), DashboardSettings::default()).await;
    let answer = reading.ask("POST", TERMS, &[JSON], pause).await;
    assert!(answer.status == 403 && String::from_utf8_lossy(&answer.body).contains("only reads"));
}

#[tokio::test]
async fn a_token_without_a_name_only_reads() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "0123456789abcdef0123\nfedcba98765432100123 alice\n").unwrap();
    let settings = DashboardSettings { token_file: Some(tokens.path().to_owned()), ..DashboardSettings::default() };
    let notes = Arc::new(Notes::default());
    let served = with_editor(&notes, settings).await;
    let (reader, alice) = ("Bearer 0123456789abcdef0123", "Bearer fedcba98765432100123");
    for (bearer, status, words) in [(reader, 403, "may only read"), (alice, 200, "alice"), ("Bearer unknown", 401, "token")] {
        let answer = served.ask("POST", TERMS, &[JSON, ("authorization", bearer)], r#"{"change":"pause"}"#).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == status && text.contains(words), "{bearer}: {} {text}", answer.status);
        assert!(status == 200 || answer.json()["error"].is_string(), "{bearer}: {text}");
    }
    assert_eq!(*notes.0.lock().unwrap(), ["Job team/a: Pause by alice"]);
    let session = served.ask("GET", "/api/v1/session", &[("authorization", reader)], "").await.json();
    assert!(session["editor"].is_null() && session["read_only"].as_str().unwrap().contains("only read"), "{session}");
}

#[tokio::test]
async fn a_token_with_namespaces_changes_policies_in_them_and_reads_everything() {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), "fedcba98765432100123 alice namespaces=team,lab\n0123456789abcdef0123 bob namespaces=lab\n")
        .unwrap();
    let settings = DashboardSettings { token_file: Some(tokens.path().to_owned()), ..DashboardSettings::default() };
    let notes = Arc::new(Notes::default());
    let served = with_editor(&notes, settings).await;
    let (alice, bob) = (("authorization", "Bearer fedcba98765432100123"), ("authorization", "Bearer 0123456789abcdef0123"));
    let pause = r#"{"change":"pause"}"#;
    for path in [TERMS, "/api/v1/workloads/lab%2Fteam/a/terms", "/api/v1/workloads/team/unknown/terms"] {
        let answer = served.ask("POST", path, &[JSON, bob], pause).await;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 403 && text.contains("bob may change policies of lab only"), "{path}: {} {text}", answer.status);
    }
    assert!(notes.0.lock().unwrap().is_empty(), "{notes:?}");
    assert_eq!(served.ask("POST", TERMS, &[JSON, alice], pause).await.status, 200);
    assert_eq!(*notes.0.lock().unwrap(), ["Job team/a: Pause by alice"]);
    assert_eq!(served.ask("GET", "/api/v1/workloads/team/a", &[bob], "").await.status, 200, "everybody reads everything");
    let session = served.ask("GET", "/api/v1/session", &[bob], "").await.json();
    assert_eq!(session, serde_json::json!({"editor": "bob", "namespaces": ["lab"], "read_only": null}));
}
