//! The Python package on the real frameworks, one process each, and on the real program with a directive in its log.

use std::path::Path;
use std::process::Command;

use eadt_bus::embedded::{EmbeddedLog, EmbeddedOptions};
use eadt_bus::topics::{PartitionGrowthPolicy, apply, desired, plan, read_topics};
use eadt_bus::{Bus, ProducerRecord};
use eadt_schemas::v1::Directive;
use eadt_schemas::{Envelope, EventTime, EventType, Topic};
use eadt_tests::python::{package_tests, training_interpreter};
use eadt_tests::root;

/// Runs test modules in one process, unless this machine cannot have the frameworks.
fn lane(modules: &[&str], variables: &[(&str, &Path)]) {
    if let Some(python) = training_interpreter().unwrap() {
        package_tests(&python, modules, variables).unwrap();
    }
}

#[test]
fn plain_loops_are_frozen_without_any_trap() {
    lane(&["tests.torch.test_plain", "tests.core.test_backend"], &[]);
}

#[test]
fn other_architectures_are_frozen_exactly_or_refused() {
    lane(&["tests.torch.test_blocks", "tests.torch.test_architectures"], &[]);
}

#[test]
fn hugging_face_needs_one_line() {
    lane(&["tests.torch.test_hf"], &[]);
}

#[test]
fn lightning_and_accelerate_report_and_freeze_and_loggers_log() {
    lane(&["tests.torch.test_frameworks", "tests.torch.test_loggers"], &[]);
}

#[test]
fn deepspeed_freezes_by_groups() {
    lane(&["tests.torch.test_deepspeed"], &[]);
}

#[test]
fn types_and_style_are_clean() {
    let Some(python) = training_interpreter().unwrap() else { return };
    for arguments in [&["-m", "mypy"][..], &["-m", "ruff", "check", "."], &["-m", "ruff", "format", "--check", "."]] {
        let output = Command::new(&python).args(arguments).current_dir(root().join("python")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// Writes a directive for a workload into the log of a data folder, as an actuator does.
fn ask(data: &Path, workload: &str, frozen: u32) {
    std::fs::write(data.join("origin"), "measured\n").unwrap();
    let log = EmbeddedLog::open(&data.join("log"), EmbeddedOptions::default()).unwrap();
    let topics = plan(&read_topics(&log, "eadt.").unwrap(), &desired("eadt.", 4, 1), PartitionGrowthPolicy::Refuse);
    apply(&log, &topics).unwrap();
    let time: EventTime = "2026-01-02T03:04:05Z".parse().unwrap();
    let name = format!("eadt.{}", Topic::Directives).into();
    let mut producer = log.producer("tests").unwrap();
    let directive = Directive {
        time,
        workload: workload.to_owned(),
        decision_id: "d-1".to_owned(),
        frozen_prefix_layers: Some(frozen),
        ..Directive::default()
    };
    let envelope = Envelope {
        id: format!("d-1/{workload}"),
        source: "/actuator".to_owned(),
        kind: EventType::Directive,
        time,
        subject: workload.to_owned(),
    };
    producer.send(ProducerRecord::event(&name, workload, &envelope, &directive)).unwrap();
    assert!(producer.flush(std::time::Duration::from_mins(2)).unwrap());
}

#[test]
fn two_ranks_take_up_a_directive_of_the_real_program() {
    let data = tempfile::tempdir().unwrap();
    ask(data.path(), "team/gpt", 2);
    let variables = [("EADT_TEST_PROGRAM", eadt_tests::program()), ("EADT_TEST_DATA", data.path())];
    lane(&["tests.torch.test_together"], &variables);
}

#[test]
fn the_guard_takes_back_what_a_real_training_was_asked() {
    let variables = [("EADT_TEST_PROGRAM", eadt_tests::program())];
    lane(&["tests.torch.test_guard"], &variables);
}

#[test]
fn each_example_reports_to_the_real_program_and_takes_up_a_directive() {
    let data = tempfile::tempdir().unwrap();
    let variables = [("EADT_TEST_PROGRAM", eadt_tests::program()), ("EADT_TEST_DATA", data.path())];
    lane(&["tests.torch.test_examples"], &variables);
}
