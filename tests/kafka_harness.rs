//! The harness itself: a broker starts, survives a restart with its data, and goes with its owner.

use std::path::Path;
use std::time::{Duration, Instant};

use eadt_tests::Kafka;

#[test]
fn a_broker_starts_restarts_and_leaves_nothing_running() {
    let mut kafka = Kafka::start().unwrap();
    let first = kafka.pid().unwrap();
    std::net::TcpStream::connect(kafka.brokers()).unwrap();
    kafka.kill().unwrap();
    assert_eq!(kafka.pid(), None);
    std::net::TcpStream::connect(kafka.brokers()).unwrap_err();
    kafka.start_again().unwrap();
    std::net::TcpStream::connect(kafka.brokers()).unwrap();
    kafka.stop().unwrap();
    kafka.start_again().unwrap();
    let last = kafka.pid().unwrap();
    assert_ne!(first, last);
    assert!(std::fs::read_to_string(kafka.log()).unwrap().contains("Kafka Server started"));
    drop(kafka);
    let begun = Instant::now();
    while Path::new(&format!("/proc/{last}/cmdline")).exists() {
        assert!(begun.elapsed() < Duration::from_secs(5), "the broker outlives its owner");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_broker_that_cannot_start_reports_why() {
    let error = Kafka::start_with(&["log.dirs=/proc/nowhere"]).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("failed") || message.contains("ended at its start"), "{message}");
}
