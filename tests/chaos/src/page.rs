//! Writes `docs/evidence/reliability.md`: the promises, the results of the fault rows, and what was not tested.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::row::{Row, Words};
use crate::rows::ROWS;
use crate::run::{Found, State};
use crate::surroundings::Surroundings;

/// A fault that has a test of its own instead of a row.
struct Elsewhere {
    fault: &'static str,
    promise: &'static str,
    /// Files from the root of the repository, and the tests in them.
    tests: &'static [(&'static str, &'static str)],
}

const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        fault: "power cut under the embedded log: what was not synced is gone",
        promise: "nothing committed is lost; on a disk that acknowledges syncs that it did not do, data is lost, and the test notices",
        tests: &[
            ("crates/bus/tests/embedded_crash.rs", "a_power_cut_loses_nothing_that_was_committed_and_leaves_nothing_half"),
            ("crates/bus/tests/embedded_crash.rs", "a_disk_that_acknowledges_a_sync_that_it_did_not_do_loses_steps"),
        ],
    },
    Elsewhere {
        fault: "the embedded log's disk is full",
        promise: "below its reserve it refuses appends with an error that names the cause, deletes what has expired, and continues once there is room; without any room it stops, and leaves no partial step",
        tests: &[
            ("crates/bus/tests/embedded_crash.rs", "a_disk_below_its_reserve_refuses_and_goes_on_when_there_is_room"),
            ("crates/bus/tests/embedded_crash.rs", "below_its_reserve_a_log_still_lets_go_what_it_need_not_keep"),
            ("crates/bus/tests/embedded_crash.rs", "a_log_that_has_filled_its_file_system_lets_go_what_expired_and_goes_on"),
            ("crates/bus/tests/embedded_crash.rs", "a_file_system_without_any_room_stops_with_words_and_leaves_nothing_half"),
            ("crates/bus/tests/embedded_crash.rs", "a_full_disk_stops_with_words_and_leaves_nothing_half"),
        ],
    },
    Elsewhere {
        fault: "the archiver is killed, or loses power, at each step on its disk, also during a compaction: what was not synced is gone",
        promise: "each offset is in exactly one file, every file is complete at any time, and no leftovers remain; without syncs files are lost, and the test notices",
        tests: &[
            ("crates/lake/src/tests/crash.rs", "killed_or_powerless_at_any_step_each_offset_is_in_exactly_one_file"),
            ("crates/lake/src/tests/crash.rs", "a_compaction_killed_at_any_step_loses_and_doubles_nothing"),
            ("crates/lake/src/tests/crash.rs", "a_disk_that_never_syncs_loses_what_it_had"),
        ],
    },
    Elsewhere {
        fault: "bits of the archive's files flip, files or the folder of a topic are removed, and files are replaced while others list them",
        promise: "every difference is an error or a warning that names the file or the offsets",
        tests: &[
            ("crates/lake/src/tests/damage.rs", "a_thousand_flipped_bits_change_no_row_unsaid"),
            ("crates/lake/src/tests/damage.rs", "a_file_that_is_gone_is_missed_wherever_it_was"),
            ("crates/lake/src/tests/damage.rs", "the_folder_of_a_topic_that_is_gone_is_missed"),
            ("crates/lake/src/store/disk.rs", "files_that_others_replace_meanwhile_hide_no_other_file"),
        ],
    },
    Elsewhere {
        fault: "the archiver is frozen after it has read records across a change of date, and another one takes over",
        promise: "the frozen one writes nothing more, and ends",
        tests: &[("services/archiver/src/service.rs", "who_was_replaced_writes_no_file_of_what_it_had_read_before")],
    },
    Elsewhere {
        fault: "at every call of the log and every step on its disk, chosen by a seed, the archiver fails, is killed, loses power or its partitions, or is frozen while another one takes over",
        promise: "the visible files are a prefix of the log at any time, each offset in one complete file; the test notices if syncs, the sweep of leftovers or the ownership check is switched off, or if renames are not atomic",
        tests: &[
            ("services/archiver/tests/simulation.rs", "however_the_story_goes_each_offset_is_in_exactly_one_file"),
            ("services/archiver/tests/simulation.rs", "what_is_broken_on_purpose_is_found_out"),
        ],
    },
    Elsewhere {
        fault: "crashes at every call of the bus, in simulated time, chosen by a seed",
        promise: "windows, decisions and state are those of a run without crashes",
        tests: &[(
            "services/processor/tests/simulation.rs",
            "however_the_story_goes_everything_is_written_once_and_the_state_is_the_same",
        )],
    },
    Elsewhere {
        fault: "records that are small when compressed, but too large for a dead letter when decompressed",
        promise: "no partition stalls; each becomes a dead letter with its first bytes, its length and its hash",
        tests: &[("tests/kafka_processor.rs", "records_that_are_small_only_while_they_are_compressed_hold_no_partition_up")],
    },
    Elsewhere {
        fault: "a progress counter falls (restart from a checkpoint)",
        promise: "no progress is invented",
        tests: &[("crates/core/tests/histories.rs", "a_fall_of_the_progress_counter_is_a_restart_and_never_speed")],
    },
    Elsewhere {
        fault: "an energy counter falls or disagrees; a GPU changes its workload",
        promise: "the energy of all windows and the unassigned energy add up to the total",
        tests: &[
            ("services/collector/tests/nvml.rs", "counters_that_fall_are_reported_and_those_that_disagree_left_out"),
            ("services/collector/tests/nvml.rs", "an_assignments_file_moves_a_gpu_between_workloads"),
            ("tests/recordings.rs", "windows_and_unassigned_of_a_simulated_log_are_the_whole"),
        ],
    },
    Elsewhere {
        fault: "a GPU hangs under the collector, is lost, or has an error (Xid) that only a reset ends (on an NVML library that the tests build)",
        promise: "the other GPUs are sampled as before, no value is invented",
        tests: &[
            ("services/collector/tests/nvml.rs", "one_hanging_gpu_stops_nobody_else_and_invents_nothing"),
            ("services/collector/tests/nvml.rs", "a_gpu_that_hangs_or_is_lost_at_start_joins_later"),
        ],
    },
    Elsewhere {
        fault: "other requests to the API server fail; it or its etcd is killed; watches break off or expire (410)",
        promise: "decisions are only delayed, and no event is missed",
        tests: &[
            ("tests/kubernetes_faults.rs", "a_change_that_is_refused_for_the_moment_or_whose_answer_is_lost_is_done_once"),
            ("tests/kubernetes_faults.rs", "requests_that_get_no_answer_hold_nothing_up_for_ever"),
            ("tests/kubernetes_faults.rs", "watches_that_break_off_or_have_run_out_miss_nothing"),
            (
                "tests/kubernetes_faults.rs",
                "an_api_server_that_is_killed_and_an_etcd_that_is_restarted_delay_decisions_and_no_more",
            ),
        ],
    },
    Elsewhere {
        fault: "the leading actuator stops or is killed while another one is on standby",
        promise: "the standby continues with the open decisions, and applies each once",
        tests: &[
            ("tests/kubernetes_takeover.rs", "a_standby_actuator_goes_on_with_the_decisions_of_one_that_left_or_was_killed"),
            ("tests/kubernetes_actuator.rs", "a_second_actuator_takes_over_and_the_first_ones_late_writes_do_no_harm"),
        ],
    },
    Elsewhere {
        fault: "SIGKILL of the node agent's program, also while an MPS control program that it started keeps running",
        promise: "after the next start all settings are as before",
        tests: &[
            (
                "services/agent/tests/crash.rs",
                "killed_before_and_after_each_call_of_a_setting_the_next_start_puts_everything_back",
            ),
            ("services/agent/tests/crash.rs", "what_a_control_program_sets_after_its_agent_was_killed_is_put_back_too"),
        ],
    },
    Elsewhere {
        fault: "intents that are expired, from the future or unreadable; another tool unlocks clocks, a state that cannot be read",
        promise: "the intents are not followed, and earlier settings are put back; the other tool's change is left alone and reported",
        tests: &[
            ("services/agent/tests/holds.rs", "without_a_live_intent_everything_is_put_back"),
            ("services/agent/tests/holds.rs", "what_somebody_else_changed_is_left_alone_and_reported"),
        ],
    },
    Elsewhere {
        fault: "decisions that are stale, expired, or made for another layout",
        promise: "they change nothing",
        tests: &[("tests/kubernetes_actuator.rs", "decisions_that_are_stale_expired_or_for_another_layout_change_nothing")],
    },
    Elsewhere {
        fault: "the actuator's clock is an hour ahead or behind",
        promise: "it applies nothing and reports why; an actuator with a correct clock takes over",
        tests: &[(
            "tests/kubernetes_actuator.rs",
            "an_actuator_whose_clock_is_an_hour_off_changes_nothing_and_one_with_a_right_clock_takes_over",
        )],
    },
    Elsewhere {
        fault: "an hour of decisions that contradict each other, in simulated time",
        promise: "a workload is changed at most once in `actuator.change_interval_seconds`, by the time that its object records",
        tests: &[("services/actuator/src/check.rs", "contradictory_decisions_change_a_workload_at_most_so_often")],
    },
    Elsewhere {
        fault: "an assignor other than `range`, or another property of Kafka that a promise rests on",
        promise: "the service refuses to start before it reads anything",
        tests: &[("tests/kafka_bus.rs", "settings_that_break_promises_are_refused")],
    },
    Elsewhere {
        fault: "clients that lack a right, or have the rights of another part",
        promise: "access is denied, and the error names the missing right",
        tests: &[
            ("tests/kafka_security.rs", "only_who_is_known_by_password_or_certificate_gets_in"),
            ("tests/kafka_security.rs", "no_right_of_a_file_implies_another_one_and_lacking_any_is_noticed"),
            ("tests/kubernetes_roles.rs", "every_right_is_used_and_none_is_missing"),
        ],
    },
    Elsewhere {
        fault: "planted secrets, with the most verbose logs",
        promise: "no secret appears in any output",
        tests: &[("tests/kafka_secured.rs", "no_output_contains_a_secret")],
    },
    Elsewhere {
        fault: "slow, large and frequent senders of progress",
        promise: "cut off or refused",
        tests: &[("tests/ingest.rs", "slow_senders_are_cut_off_and_large_and_frequent_ones_refused")],
    },
    Elsewhere {
        fault: "one tenant opens hundreds of slow connections for progress",
        promise: "the reports of other tenants are accepted",
        tests: &[
            ("services/collector/src/progress/http.rs", "who_opens_hundreds_of_slow_connections_takes_nothing_from_others"),
            ("crates/service/src/connections.rs", "who_comes_with_a_crowd_has_time_to_speak"),
        ],
    },
    Elsewhere {
        fault: "a panic in a task",
        promise: "the panic is reported, and the other tasks are drained",
        tests: &[("crates/service/src/supervise.rs", "a_panic_is_seen_and_drains_the_others")],
    },
];

/// Faults that no test covers.
const MISSING: &[&str] = &[
    "a power cut of the only broker of a cluster, or of all brokers at once: records that Kafka acknowledged but had not synced are \
     lost, as in `broker-power` without copies ([operations](../operate/operations.md#copies))",
    "the memory that a backlog of hostile records of a megabyte each takes: 34 MB more than an honest backlog were measured, since the \
     read-ahead buffer fills while each large dead letter is a step of its own",
];

/// Findings of rows that have no good run yet.
const UNSETTLED: &[(&str, &str)] = &[];

/// Returns the page as Markdown.
pub fn page(state: &State) -> String {
    let mut text = String::from(
        "# Reliability: promises and results of the fault tests\n\n\
         <!-- Written by `cargo xtask chaos`; the figures are in reliability.json. -->\n\n\
         For everybody who wants to know which faults were tried, and what came out.\n\n\
         Each row injects a fault into the real parts: Apache Kafka, a Kubernetes control plane if the row needs one, and EADT's services as\n\
         processes that are killed, stopped, disconnected or starved. The node agent sets four GPUs of an NVML library that the tests build. It calls this\n\
         library through the same binding as NVIDIA's. The expected result is computed from a seed, both by a model that shares no code with EADT and by EADT's own code\n\
         without the fault. It is compared with everything that was committed. Each row is also run with its mitigation switched off, and must fail then: a fault that\n\
         never causes a violation proves nothing. The services are builds with debug assertions, some of them optimised (`CARGO_PROFILE_DEV_OPT_LEVEL=2`;\n\
         [which](#builds-and-versions)); a release build has no such switches. Times come from a loaded machine with few cores, and are for orientation only.\n\n\
         ```\ncargo xtask chaos                      # all rows at full length, which takes hours; then writes this page\n\
         cargo xtask chaos --resume             # continues an interrupted run; rows of another build start over\n\
         cargo xtask chaos killed --rounds 50   # one row\n\
         cargo xtask chaos --list\n```\n\n\
         `cargo xtask test` runs a short form of a third of the rows, drawn by its seed (`--all-rows`: of all). `cargo test -p eadt-chaos` runs the short form of all. Only a\n\
         longer run can check the memory limits of `poison`.\n\n",
    );
    write(
        &mut text,
        format_args!(
            "Seed {}. If fewer rounds were run than a full run has, the full number is in brackets. *Builds* is the number of builds that the figures come from\n\
             ([which](#builds-and-versions)). Promise, fault and mitigation are those of the row when it was run. A star marks a row whose text has changed since;\n\
             [row by row](#row-by-row) has the present text, to which these figures do not refer.\n\n",
            state.seed
        ),
    );
    write(
        &mut text,
        format_args!("| row | promise | rounds | builds | compared | lost | doubled | wrong | without the mitigation |\n"),
    );
    write(&mut text, format_args!("|---|---|---:|---:|---:|---:|---:|---:|---|\n"));
    for row in ROWS {
        summary(&mut text, row, state.rows.get(row.name));
    }
    write(&mut text, format_args!("\n## Row by row\n"));
    for row in ROWS {
        if let Some(found) = state.rows.get(row.name) {
            details(&mut text, row, found);
        }
    }
    write(&mut text, format_args!("\n## Builds and versions\n\n"));
    let mut with: BTreeMap<&Surroundings, BTreeSet<&str>> = BTreeMap::new();
    for (name, found) in &state.rows {
        for surroundings in &found.surroundings {
            with.entry(surroundings).or_default().insert(name);
        }
    }
    for (Surroundings { eadt, kafka, kubernetes, librdkafka, fetch, java, linux, cores }, rows) in with {
        let kubernetes = if kubernetes.is_empty() { String::new() } else { format!(" Kubernetes {kubernetes},") };
        let fetch = if fetch.is_empty() { String::new() } else { format!(" records read by `bus.fetch = \"{fetch}\"`,") };
        let rows: Vec<String> = rows.into_iter().map(|row| format!("`{row}`")).collect();
        write(
            &mut text,
            format_args!(
                "- EADT {eadt}, Apache Kafka {kafka},{kubernetes} librdkafka {librdkafka},{fetch} {java}, Linux {linux}, {cores} cores: {}\n",
                rows.join(", ")
            ),
        );
    }
    write(&mut text, format_args!("\n## Faults with tests of their own\n\n| fault | promise | tests |\n|---|---|---|\n"));
    for Elsewhere { fault, promise, tests } in ELSEWHERE {
        let tests: Vec<String> = tests.iter().map(|(file, test)| format!("`{test}` in `{file}`")).collect();
        write(&mut text, format_args!("| {fault} | {promise} | {} |\n", tests.join("; ")));
    }
    write(&mut text, format_args!("\n## Not run\n\n"));
    for row in ROWS.iter().filter(|row| !state.rows.contains_key(row.name)) {
        write(&mut text, format_args!("- `{}`: {}\n", row.name, row.fault));
        for (_, seen) in UNSETTLED.iter().filter(|(name, _)| *name == row.name) {
            write(&mut text, format_args!("  - not settled: {seen}\n"));
        }
    }
    for fault in MISSING {
        write(&mut text, format_args!("- {fault}\n"));
    }
    text
}

fn write(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("a string takes what is written");
}

fn summary(text: &mut String, row: &Row, found: Option<&Found>) {
    let Row { name, full, .. } = row;
    let Some(found) = found else {
        write(text, format_args!("| `{name}` | {} | not run ({full}) | | | | | | |\n", row.promise));
        return;
    };
    let words = found.words(row);
    let (promise, star) = (&words.promise, if words == row.words() { "" } else { " \\*" });
    let (with, without) = (&found.with, &found.without);
    let rounds = if with.rounds < *full { format!("{} ({full})", with.rounds) } else { with.rounds.to_string() };
    let bites = match (without.violations(), without.rounds) {
        (_, 0) => "not run".to_owned(),
        (0, rounds) => format!("**no violation in {rounds} rounds**"),
        (violations, rounds) => format!("{violations} violations in {rounds} rounds"),
    };
    let (compared, lost, duplicated, wrong) = (with.compared, with.lost, with.duplicated, with.wrong);
    let builds = found.builds();
    write(
        text,
        format_args!(
            "| `{name}`{star} | {promise} | {rounds} | {builds} | {compared} | {lost} | {duplicated} | {wrong} | {bites} |\n"
        ),
    );
}

fn details(text: &mut String, row: &Row, found: &Found) {
    let (name, words) = (row.name, found.words(row));
    let Words { fault, promise, without } = &words;
    write(text, format_args!("\n**`{name}`**: {fault}. Switched off: {without}.\n\n"));
    let today = row.words();
    let changes =
        [("fault", fault, &today.fault), ("promise", promise, &today.promise), ("switched off", without, &today.without)];
    for (what, _, now) in changes.iter().filter(|(_, then, now)| then != now) {
        write(text, format_args!("- \\* {what}, in the present text of the row: {now}\n"));
    }
    if found.words.is_none() {
        write(text, format_args!("- the text of the row at the time of the run was not kept: this is the present text\n"));
    }
    write(text, format_args!("- with the mitigation, {}\n", found.with.figure()));
    if found.without.rounds > 0 {
        write(text, format_args!("- without it, {}\n", found.without.figure()));
    }
    for example in found.without.examples.iter().take(1) {
        let example: String = example.lines().next().unwrap_or_default().chars().take(300).collect();
        write(text, format_args!("  - for example: {example}\n"));
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_test_that_is_named_exists() {
        for (file, test) in ELSEWHERE.iter().flat_map(|elsewhere| elsewhere.tests) {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        }
    }

    #[test]
    fn the_page_agrees_with_the_figures() {
        let state = State::read(&root().join("docs/evidence/reliability.json")).unwrap();
        let written = std::fs::read_to_string(root().join("docs/evidence/reliability.md")).unwrap();
        assert!(
            page(&state) == written,
            "docs/evidence/reliability.md does not agree with docs/evidence/reliability.json: cargo xtask chaos --page"
        );
        assert!(state.rows.values().all(Found::is_good), "a row is broken or does not bite");
        assert!(state.rows.keys().all(|name| ROWS.iter().any(|row| row.name == *name)), "a row is no row any more");
    }

    #[test]
    fn a_row_that_changed_since_its_run_is_marked_and_shown_with_its_text_of_then() {
        let row = ROWS.iter().find(|row| row.name == "killed").unwrap();
        let shown = |words: Option<Words>| {
            let found = Found { words, surroundings: [Surroundings::default()].into(), ..Found::default() };
            page(&State { seed: 1, rows: [("killed".to_owned(), found)].into() })
        };
        let same = shown(Some(row.words()));
        assert!(
            same.contains(&format!("| `killed` | {} | 0 (1000) | 1 |", row.promise))
                && !same.contains("in the present text of the row"),
            "{same}"
        );
        let former = Words { promise: "less".into(), ..row.words() };
        let other = shown(Some(former));
        assert!(other.contains("| `killed` \\* | less | 0 (1000) | 1 |"), "{other}");
        assert!(other.contains(&format!("- \\* promise, in the present text of the row: {}\n", row.promise)), "{other}");
        assert!(!other.contains("switched off, in the present text of the row"), "{other}");
        assert!(shown(None).contains("was not kept: this is the present text"));
    }

    #[test]
    fn every_row_of_the_page_has_its_text_of_when_it_was_run() {
        let state = State::read(&root().join("docs/evidence/reliability.json")).unwrap();
        let without: Vec<_> = state.rows.iter().filter(|(_, found)| found.words.is_none()).map(|(name, _)| name).collect();
        assert!(
            without.is_empty(),
            "docs/evidence/reliability.json lacks \"words\" of {without:?}: take them from the row at its newest commit"
        );
    }

    #[test]
    fn what_was_not_run_is_listed() {
        let text = page(&State::default());
        assert!(ROWS.iter().all(|row| text.contains(&format!("- `{}`: {}", row.name, row.fault))), "{text}");
    }
}
