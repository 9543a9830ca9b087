//! Tests the right to report progress: the real program behind TLS and tokens, and hostile senders.

use crate::support;

use std::time::{Duration, Instant};

use serde_json::json;
use support::ingest::{Ingest, PAUSE, V1, certificate, create, progress, secret, token, tokens};
use support::{eadt, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_reports_for_its_namespaces_and_is_rotated_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (id, team_a) = create(dir.path(), &["--namespace", "team-a"]);
    let (_, everyone) = create(dir.path(), &["--namespace", "*", "--expires", "1d"]);
    let mut ingest = Ingest::start(dir, &[]);
    let post = async |token: Option<&str>, path: &str, body: String| ingest.post(&trusted, token, path, &body).await;

    assert_eq!(post(Some(&team_a), V1, progress("team-a/x")).await, (202, json!({"accepted": 1})));
    let batch = format!("[{},{}]", progress("team-a/x"), progress("team-b/x"));
    // Each event is judged for itself: the other namespace's is refused, and costs the first nothing.
    let (status, answer) = post(Some(&team_a), V1, batch).await;
    let refused = &answer["refused"][0];
    assert_eq!((status, &answer["accepted"], answer["refused"].as_array().unwrap().len()), (202, &json!(1), 1), "{answer}");
    assert_eq!(
        (&refused["status"], &refused["field"], &refused["index"]),
        (&json!(403), &json!("workload"), &json!(1)),
        "{answer}"
    );
    assert!(refused["error"].as_str().unwrap().contains(&id), "{answer}");
    assert_eq!(post(Some(&team_a), V1, progress("team-b/x")).await.0, 403);
    assert_eq!(post(Some(&everyone), V1, progress("team-b/x")).await.0, 202);
    let trainer = |namespace: &str| format!("/apis/trainer.kubeflow.org/v1alpha1/namespaces/{namespace}/trainjobs/j/status");
    let update = || r#"{"trainerStatus":{"progressPercentage":0}}"#.to_owned();
    assert_eq!(post(Some(&team_a), &trainer("team-a"), update()).await.0, 200);
    assert_eq!(post(Some(&team_a), &trainer("team-b"), update()).await.0, 403);

    let wrong = format!("{}x", &team_a[..team_a.len() - 1]);
    for bad in [None, Some(""), Some("eadt__"), Some(wrong.as_str()), Some(id.as_str()), Some("Bearer")] {
        let (status, response) = post(bad, V1, progress("team-a/x")).await;
        assert_eq!(status, 401, "{bad:?}: {response}");
    }
    // Without TLS there is no answer at all.
    let mut plain = ingest.plain().await;
    plain.write_all(b"POST /v1/progress HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let mut bytes = Vec::new();
    drop(plain.read_to_end(&mut bytes).await);
    assert!(!String::from_utf8_lossy(&bytes).contains("HTTP"), "{bytes:?}");

    // Another token, another certificate, and the first ones are worth nothing.
    let (_, second) = create(ingest.dir.path(), &["--namespace", "team-a"]);
    assert!(token(ingest.dir.path(), &["revoke", &id]).2);
    let until = Instant::now() + Duration::from_mins(1);
    while post(Some(&second), V1, progress("team-a/x")).await.0 != 202
        || post(Some(&team_a), V1, progress("team-a/x")).await.0 != 401
    {
        assert!(Instant::now() < until, "the change of tokens is not seen");
        tokio::time::sleep(PAUSE).await;
    }
    let next = certificate(ingest.dir.path());
    while ingest.tls(&next).await.is_err() {
        assert!(Instant::now() < until, "the change of the certificate is not seen");
        tokio::time::sleep(PAUSE).await;
    }
    assert!(ingest.tls(&trusted).await.is_err(), "the former certificate is gone");

    // An invalid file changes nothing.
    std::fs::write(tokens(ingest.dir.path()), "nonsense").unwrap();
    ingest.stderr.until("the content that was read before stays in force");
    assert_eq!(ingest.post(&next, Some(&second), V1, &progress("team-a/x")).await.0, 202);

    support::signal(&ingest.child.0, "-INT");
    assert!(ingest.child.0.wait().unwrap().success());
    ingest.stderr.drain();
    let logged = ingest.stderr.so_far.join("\n");
    for token in [&team_a, &everyone, &second] {
        assert!(!logged.contains(secret(token)), "a secret is in the logs");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_senders_are_cut_off_and_large_and_frequent_ones_refused() {
    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (_, all) = create(dir.path(), &["--namespace", "*"]);
    let limits = [("REQUEST_SECONDS", "8"), ("BODY_BYTES", "2048"), ("CONNECTIONS", "3"), ("REQUESTS_PER_SECOND", "0.2")];
    let ingest = Ingest::start(dir, &limits);
    // As many as there may be: no handshake, half a head, half a body, and, if there is a token, one request in five seconds.
    let mut silent = ingest.plain().await;
    let mut head = ingest.tls(&trusted).await.unwrap();
    head.write_all(b"POST /v1/progress HTTP/1.1\r\nhost:").await.unwrap();
    let mut body = ingest.tls(&trusted).await.unwrap();
    let request = format!(
        "POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {all}\r\ncontent-length: 50\r\n\r\n{{"
    );
    body.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    drop(silent.read_to_end(&mut bytes).await);
    drop(head.read_to_end(&mut bytes).await);
    bytes.clear();
    drop(body.read_to_end(&mut bytes).await);
    assert!(String::from_utf8_lossy(&bytes).starts_with("HTTP/1.1 408 "), "{}", String::from_utf8_lossy(&bytes));

    // They held every place and are gone: others are served, and refused when they come too often.
    let until = Instant::now() + Duration::from_mins(3);
    loop {
        let (status, response) = ingest.post(&trusted, Some(&all), V1, &progress("n/x")).await;
        if status == 429 {
            assert!(response["error"].as_str().unwrap().contains("requests_per_second"), "{response}");
            break;
        }
        assert!(status == 202 && Instant::now() < until, "{status}: {response}");
    }
    let large = "x".repeat(5000);
    loop {
        let (status, response) = ingest.post(&trusted, Some(&all), V1, &large).await;
        if status == 413 {
            break;
        }
        assert!(status == 429 && Instant::now() < until, "{status}: {response}");
        tokio::time::sleep(PAUSE).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_hold_no_place_that_a_job_needs_and_do_not_ask_without_end() {
    let dir = tempfile::tempdir().unwrap();
    let trusted = certificate(dir.path());
    let (_, all) = create(dir.path(), &["--namespace", "*"]);
    // Longer than the test waits for anything.
    let limits = [("REQUEST_SECONDS", "600"), ("CONNECTIONS", "3"), ("REQUESTS_PER_SECOND", "5")];
    let ingest = Ingest::start(dir, &limits);
    let patience = Duration::from_mins(1);
    // A job that keeps its connection.
    let mut job = ingest.tls(&trusted).await.unwrap();
    let body = progress("n/x");
    let kept = format!(
        "POST {V1} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nauthorization: Bearer {all}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut bytes = Vec::new();
    for answers in 1..=2 {
        job.write_all(kept.as_bytes()).await.unwrap();
        while String::from_utf8_lossy(&bytes).matches(r#"{"accepted":1}"#).count() < answers {
            let read = tokio::time::timeout(patience, job.read_buf(&mut bytes)).await.expect("the job is answered").unwrap();
            assert!(read > 0, "ended after {}", String::from_utf8_lossy(&bytes));
        }
        if answers == 2 {
            break;
        }
        // A client opens twice the permitted connections and is silent: its oldest give way to the next, and to another job.
        let mut silent = Vec::new();
        for _ in 0..6 {
            silent.push(ingest.plain().await);
        }
        let post = ingest.post(&trusted, Some(&all), V1, &body);
        let (status, refused) = tokio::time::timeout(patience, post).await.expect("another job is let in");
        assert_eq!(status, 202, "{refused}");
        for stream in &mut silent[..5] {
            let ended = tokio::time::timeout(patience, stream.read_u8()).await.expect("its place is given away");
            assert!(ended.is_err(), "{ended:?}");
        }
    }
    // A client that keeps asking without a valid token is refused, and one with a token is answered all the same. Over one
    // connection: with a handshake for each a busy machine would not ask too often.
    let mut stranger = ingest.tls(&trusted).await.unwrap();
    let asked = format!(
        "POST {V1} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer eadt_0_0\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\r\n"
    );
    let until = Instant::now() + patience;
    loop {
        stranger.write_all(asked.as_bytes()).await.unwrap();
        let mut bytes = Vec::<u8>::new();
        while !bytes.ends_with(b"}") {
            let read =
                tokio::time::timeout(patience, stranger.read_buf(&mut bytes)).await.expect("a stranger is answered").unwrap();
            assert!(read > 0, "ended after {}", String::from_utf8_lossy(&bytes));
        }
        let answer = String::from_utf8_lossy(&bytes);
        if answer.starts_with("HTTP/1.1 429 ") {
            assert!(answer.contains("requests_per_second"), "{answer}");
            break;
        }
        assert!(answer.starts_with("HTTP/1.1 401 ") && Instant::now() < until, "{answer}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ingest.post(&trusted, Some(&all), V1, &body).await.0, 202);
}

#[test]
fn what_is_missing_is_reported_before_anything_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let up = |pairs: &[(&str, &str)]| {
        let mut command = eadt(dir.path(), &["up", "--gpus", "nvml", "--no-view"]);
        command.envs(pairs.iter().map(|(key, value)| (format!("EADT_COLLECTOR__PROGRESS__{key}"), value)));
        let (out, err, good) = text(command);
        assert!(!good && out.is_empty(), "{out}");
        err
    };
    let err = up(&[("LISTEN", "0.0.0.0:0")]);
    assert!(err.contains("collector.progress.listen") && err.contains("eadt token create"), "{err}");
    assert!(!dir.path().join("log").exists(), "nothing is written before the settings are checked");
    let mut nowhere = eadt(dir.path(), &["up", "--gpus", "nvml", "--no-view"]);
    nowhere.env("EADT_COLLECTOR__PROGRESS__SERVICE_ACCOUNTS__ENABLED", "true").env("KUBECONFIG", dir.path().join("none"));
    let (_, err, good) = text(nowhere);
    assert!(!good && err.contains("collector.progress.service_accounts") && err.contains("no cluster is configured"), "{err}");

    let (out, err, good) = token(dir.path(), &["create", "--namespace", "team/a"]);
    assert!(!good && out.is_empty() && err.contains("\"team/a\" is no namespace"), "{err}");
    assert!(!token(dir.path(), &["list"]).2 && !tokens(dir.path()).exists());
    let (id, made) = create(dir.path(), &["--namespace", "a,b", "--expires", "90d"]);
    let (listed, _, _) = token(dir.path(), &["list"]);
    assert!(listed.contains(&id) && listed.contains("a,b") && !listed.contains(secret(&made)), "{listed}");
    let (_, err, good) = token(dir.path(), &["revoke", "nobody"]);
    assert!(!good && err.contains("there is no token nobody"), "{err}");
    let (_, err, good) = text(eadt(dir.path(), &["token", "list"]));
    assert!(!good && err.contains("collector.progress.tokens_file"), "{err}");
}
