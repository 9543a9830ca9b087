//! The interface as a browser meets it: pages, refusals, hostile names, the stream of events.

use std::collections::BTreeSet;

use eadt_dashboard::{DashboardSettings, FleetQuery, SortKey};
use eadt_schemas::v1::Layout;

use crate::support::{HOSTILE, Served, model, serve, story, take, window};

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat()
}

#[tokio::test]
async fn pages_hold_each_workload_once_in_every_order() {
    let mut model = model();
    for number in 0..120 {
        let joules = 600.0 * f64::from(1 + number % 7);
        model.window(&window(&format!("team-{}/job-{number:03}", number % 3), 0, joules, &Layout::default()));
    }
    while model.refresh(64) {}
    let served = serve(model, DashboardSettings::default()).await;
    for sort in ["name", "power", "joules_per_sample", "saving", "state"] {
        for order in ["asc", "desc"] {
            let mut seen = BTreeSet::new();
            let mut values: Vec<f64> = Vec::new();
            let mut cursor = String::new();
            loop {
                let path = format!("/api/v1/fleet?sort={sort}&order={order}&limit=50{cursor}");
                let page = served.get(&path).await.json();
                assert_eq!((&page["total"], &page["matching"]), (&120.into(), &120.into()), "{page}");
                assert_eq!(page["before"], seen.len());
                for row in page["rows"].as_array().unwrap() {
                    assert!(seen.insert(row["workload"].as_str().unwrap().to_owned()), "{row} twice by {sort}");
                    values.extend(row["power_watts"].as_f64());
                }
                let Some(next) = page["next"].as_str() else { break };
                cursor = format!("&cursor={}", encoded(next));
            }
            assert_eq!(seen.len(), 120, "{sort} {order}");
            let sorted = |values: &[f64]| if order == "asc" { values.is_sorted() } else { values.iter().rev().is_sorted() };
            assert!(sort != "power" || sorted(&values), "{order}: {values:?}");
        }
    }
    let some = served.get("/api/v1/fleet?q=TEAM-1%2F&sort=name").await.json();
    assert_eq!((&some["matching"], &some["rows"][0]["workload"]), (&40.into(), &"team-1/job-001".into()));
    assert_eq!(served.get("/api/v1/fleet?state=steady").await.json()["matching"], 120);
    assert_eq!(served.get("/api/v1/fleet?state=reverted,refused").await.json()["matching"], 0);
}

/// Returns the rows of all pages of the fleet.
async fn all_rows(served: &Served, query: &str) -> Vec<serde_json::Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = served.get(&format!("/api/v1/fleet?{query}{cursor}")).await.json();
        rows.extend(page["rows"].as_array().unwrap().iter().cloned());
        let Some(next) = page["next"].as_str() else { return rows };
        cursor = format!("&cursor={}", encoded(next));
    }
}

#[tokio::test]
async fn a_heat_strip_has_the_cells_of_all_pages_in_few_bytes() {
    let mut model = model();
    for number in 0..120 {
        let joules = 600.0 * f64::from(1 + number % 7);
        model.window(&window(&format!("team-{}/job-{number:03}", number % 3), 0, joules, &Layout::default()));
    }
    for name in ["team-1/saves", &format!("team-1/{}", HOSTILE[0])] {
        story(name, &mut |event| take(&mut model, &event));
    }
    while model.refresh(64) {}
    let served = serve(model, DashboardSettings::default()).await;
    let queries =
        ["sort=name", "sort=name&order=desc", "sort=power", "sort=saving_ratio&q=TEAM-1", "sort=state&state=reverted,waiting"];
    for query in queries {
        let rows = all_rows(&served, query).await;
        let answer = served.get(&format!("/api/v1/heat-strip?{query}")).await;
        let strip = answer.json();
        assert_eq!((&strip["total"], strip["names"].as_array().map(Vec::len)), (&122.into(), Some(rows.len())), "{query}");
        assert!(rows.len() < 40 || answer.body.len() < 40 * rows.len(), "{query}: {} bytes", answer.body.len());
        for (index, row) in rows.iter().enumerate() {
            assert_eq!(strip["names"][index], row["workload"], "{query}");
            let state = strip["state"][index].as_u64().unwrap() as usize;
            assert_eq!(strip["states"][state], row["state"], "{query}");
            let (cell, ratio) = (strip["saving_ratio"][index].as_f64(), row["saving_ratio"].as_f64());
            assert_eq!(cell.is_some(), ratio.is_some(), "{query}: {row}");
            assert!(cell.zip(ratio).is_none_or(|(cell, ratio)| (cell - ratio).abs() < 6e-4), "{query}: {cell:?} for {ratio:?}");
            let is_clear =
                row["saving_is_whole"] == true && (row["saving_verdict"] == "saved" || row["saving_verdict"] == "lost");
            assert_eq!(strip["saving_is_clear"][index], u8::from(is_clear), "{query}: {row}");
        }
    }
    let clear = served.get("/api/v1/heat-strip?q=saves").await.json();
    assert_eq!((&clear["saving_is_clear"], &clear["names"]), (&serde_json::json!([1]), &serde_json::json!(["team-1/saves"])));
    for (query, words) in [("cursor=-:a", "cursor"), ("state=happy", "happy"), ("sort=colour", "colour")] {
        let refused = served.get(&format!("/api/v1/heat-strip?{query}")).await;
        assert!(refused.status == 400 && refused.json()["error"].as_str().unwrap().contains(words), "{query}");
    }
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused_in_words() {
    let served = serve(model(), DashboardSettings::default()).await;
    for (path, status, words) in [
        ("/api/v1/fleet?sort=colour", 400, "colour"),
        ("/api/v1/fleet?state=happy", 400, "happy"),
        ("/api/v1/fleet?cursor=zz", 400, "cursor"),
        ("/api/v1/fleet?unknown=1", 400, "unknown"),
        ("/api/v1/fleet?limit=-1", 400, "limit"),
        ("/api/v1/power?from_ms=NaN", 400, "from_ms"),
        ("/api/v1/workloads/a/b", 404, "a/b"),
        ("/api/v1/workloads/a/%FF", 400, "UTF-8"),
        ("/api/v1/decision?workload=a/b&id=c", 404, "eadt tail"),
        ("/api/v1/decisions?workload=a/b", 400, "a/b"),
        ("/api/v1/nothing", 404, "/api/v1"),
        ("/nothing", 404, "the page is at /"),
    ] {
        let answer = served.get(path).await;
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == status && body.contains(words), "{path}: {} {body}", answer.status);
        assert!(!path.starts_with("/api/") || answer.json()["error"].is_string(), "{path}: {body}");
    }
    for method in ["POST", "PUT", "DELETE"] {
        let answer = served.ask(method, "/api/v1/fleet", &[], "").await;
        assert!(answer.status == 405 && answer.head.contains("allow: get,head"), "{method}: {}", answer.head);
        assert!(answer.json()["error"].as_str().is_some_and(|error| error.contains(method)), "{method}");
    }
    let long = format!("/api/v1/fleet?q={}", "x".repeat(20_000));
    assert_eq!(served.get(&long).await.status, 431);
}

#[tokio::test]
async fn a_hostile_name_is_text_and_nothing_else() {
    let mut model = model();
    for name in HOSTILE {
        story(&format!("team/{name}"), &mut |event| take(&mut model, &event));
    }
    let longest = format!("team/{}", "n".repeat(248));
    model.window(&window(&longest, 0, 600.0, &Layout::default()));
    let served = serve(model, DashboardSettings::default()).await;
    let page = served.get("/api/v1/fleet?sort=name").await;
    for wanted in
        ["content-type: application/json", "x-content-type-options: nosniff", "content-security-policy: default-src 'none'"]
    {
        assert!(page.head.contains(wanted), "{}", page.head);
    }
    assert_eq!(page.json()["total"], HOSTILE.len() + 1);
    for name in HOSTILE.iter().filter(|name| !name.contains('/')) {
        let detail = served.get(&format!("/api/v1/workloads/team/{}", encoded(name))).await;
        assert_eq!(detail.json()["row"]["workload"], format!("team/{name}"));
    }
    assert_eq!(served.get(&format!("/api/v1/workloads/{longest}")).await.status, 200);
    let index = served.get("/").await;
    assert!(!String::from_utf8_lossy(&index.body).contains("team/"), "the page itself holds no data");
}

#[tokio::test]
async fn a_foreign_name_a_foreign_page_and_a_missing_token_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, "0123456789abcdef0123\n").unwrap();
    let served = serve(model(), DashboardSettings { token_file: Some(file), ..DashboardSettings::default() }).await;
    let (foreign_name, foreign_page) = (("host", "evil.example"), ("origin", "http://evil.example"));
    for (path, headers, status) in [
        ("/", &[foreign_name][..], 421),
        ("/api/v1/fleet", &[foreign_name], 421),
        ("/api/v1/fleet", &[foreign_page], 403),
        ("/api/v1/fleet", &[], 401),
        ("/api/v1/events", &[], 401),
        ("/api/v1/log", &[], 401),
        ("/api/v1/overview", &[], 401),
    ] {
        let answer = served.ask("GET", path, headers, "").await;
        assert_eq!((answer.status, answer.head.contains("www-authenticate: bearer")), (status, status == 401), "{path}");
        // A file of the page is asked for by people, everything else by programs.
        let is_json = serde_json::from_slice(&answer.body).is_ok_and(|body: serde_json::Value| body["error"].is_string());
        assert_eq!(is_json, path != "/", "{path}: {headers:?}");
    }
    assert_eq!(served.get("/").await.status, 200);
    let json = ("content-type", "application/json");
    let wrong = served.ask("POST", "/api/v1/session", &[json], r#"{"token":"0123456789abcdef0124"}"#).await;
    assert_eq!(wrong.status, 401);
    let right = served.ask("POST", "/api/v1/session", &[json], r#"{"token":"0123456789abcdef0123"}"#).await;
    assert_eq!(right.status, 204);
    assert!(right.head.contains("httponly") && right.head.contains("samesite=strict"), "{}", right.head);
    let cookie = ("cookie", "eadt_token=0123456789abcdef0123");
    assert_eq!(served.ask("GET", "/api/v1/fleet", &[cookie], "").await.status, 200);
    assert_eq!(served.ask("GET", "/api/v1/fleet", &[("authorization", "Bearer 0123456789abcdef0123")], "").await.status, 200);
}

#[tokio::test]
async fn files_of_the_page_come_compressed_to_those_who_take_it() {
    let served = serve(model(), DashboardSettings::default()).await;
    for (path, kind) in [("/", "text/html"), ("/app.js", "text/javascript"), ("/app.css", "text/css")] {
        let plain = served.get(path).await;
        assert!(plain.head.contains(kind) && !plain.head.contains("content-encoding"), "{}", plain.head);
        let packed = served.ask("GET", path, &[("accept-encoding", "br, gzip;q=0.8")], "").await;
        assert!(
            packed.head.contains("content-encoding: gzip") && packed.body.len() < plain.body.len(),
            "{path}: {}",
            packed.head
        );
        assert_eq!(packed.body[..2], [0x1f, 0x8b]);
        let refused = served.ask("GET", path, &[("accept-encoding", "gzip;q=0")], "").await;
        assert!(!refused.head.contains("content-encoding"), "{}", refused.head);
    }
}

#[tokio::test]
async fn a_stream_goes_on_where_it_ended_and_starts_anew_elsewhere() {
    let mut first = model();
    story("team/a", &mut |event| take(&mut first, &event));
    let served = serve(first, DashboardSettings::default()).await;
    let begun = served.events_until(&[], "event: update").await;
    assert!(begun.contains("event: reset") && !begun.contains("event: notice"), "{begun}");
    let id = begun.lines().rfind(|line| line.starts_with("id: ")).unwrap()[4..].to_owned();
    // Missed while away.
    served.model.change(|model| {
        story("team/b", &mut |event| {
            if let crate::support::Event::Decision(event) = &event {
                model.take(eadt_schemas::Topic::Decisions, &serde_json::to_vec(event).unwrap());
            }
        });
    });
    let resumed = served.events_until(&[("last-event-id", &id)], "event: update").await;
    assert!(!resumed.contains("event: reset"), "{resumed}");
    assert_eq!(resumed.matches("event: notice").count(), 4, "{resumed}");
    assert!(resumed.contains("team/b"), "{resumed}");
    let foreign = served.events_until(&[("last-event-id", "00000000000000ff-3")], "event: update").await;
    assert!(foreign.contains("event: reset"), "{foreign}");
    // A connected client gets the news.
    let mut waiting = served.events(&[]).await;
    waiting.until("event: reset").await;
    served.model.change(|model| {
        let event = crate::support::decision(
            "team/b",
            30,
            eadt_schemas::v1::ControllerAction::Revert,
            eadt_schemas::v1::ChangeValidation::Failed,
            None,
        );
        model.take(eadt_schemas::Topic::Decisions, &serde_json::to_vec(&event).unwrap());
    });
    let stream = waiting.until("decided at minute 30").await;
    assert!(stream.contains("event: notice"), "{stream}");
}

#[test]
fn a_query_reads_as_it_is_written() {
    let query: FleetQuery = serde_json::from_str(r#"{"sort": "saving_ratio", "order": "asc"}"#).unwrap();
    assert_eq!(query.sort, SortKey::SavingRatio);
}
