//! What may be done to workloads, as their declarations say.

use eadt_dashboard::{Model, PolicyQuery, Settings};
use eadt_schemas::v1::{Action, Bounds, Outcome, UpdateMode, Validation, Workload};

use crate::support::{HOSTILE, actuation, at, decision, model, serve, window};

fn declared(workload: &str, minute: i64, mode: UpdateMode, paused: bool) -> Workload {
    let bounds = Bounds { power_limit_watts_min: Some(150.0), power_limit_watts_max: Some(300.0), ..Bounds::default() };
    let workload = workload.to_owned();
    Workload { time: at(minute), workload, kind: "Job".into(), mode, paused, bounds, ..Workload::default() }
}

fn page(model: &Model, mode: &str) -> eadt_dashboard::PolicyPage {
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
    let only = |model: &Model| page(model, "recommend").rows.remove(0);
    assert_eq!(only(&model).changed, None, "a layout is no policy");
    // A recommendation waits until it is applied or expires.
    let mut recommended = decision("team/a", 2, Action::SetPowerLimit, Validation::Pending, None);
    recommended.expires = at(20);
    model.decision(&recommended);
    assert_eq!(only(&model).recommended, None, "nobody has recommended it to anybody yet");
    model.actuation(&actuation("team/a", 2, &recommended.id, Outcome::Recommended));
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
    let served = serve(model, Settings::default()).await;
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
